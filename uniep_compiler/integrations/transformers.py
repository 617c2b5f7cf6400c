"""`experts_implementation="uniep"`: the Mixture-of-Experts models of transformers 5 on compiled layers.

    uniep.integrations.transformers.register()
    model = AutoModelForCausalLM.from_pretrained(..., experts_implementation="uniep")

What a model's experts compute is read from what transformers knows of their module: whether it has a gate, biases,
transposed weights; its activation; and how it applies its gate. The last two are code, so they are known by name, and
then compared once with what the program computes. Experts that are not known are an error that names their class.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from uniep_compiler.diagnostics import Diagnostic, UniepError
from uniep_compiler.frontend.lower import lower
from uniep_compiler.programs import ExpertsForm
from uniep_compiler.runtime.experts import ExpertsSize, Options, call_experts, constant, experts_layer
from uniep_compiler.runtime.reference import run_reference

NAME = "uniep"
"""What transformers knows the implementation by."""

ACTIVATIONS: Mapping[str, str] = MappingProxyType(
    {
        # classes of transformers
        "SiLUActivation": "silu",
        "GELUActivation": "gelu",
        "GELUTanh": "gelu_tanh",
        "NewGELUActivation": "gelu_tanh",
        "FastGELUActivation": "gelu_tanh",
        "AccurateGELUActivation": "gelu_tanh",
        "QuickGELUActivation": "quick_gelu",
        "ReLUSquaredActivation": "relu2",
        "LinearActivation": "identity",
        # classes of torch.nn
        "SiLU": "silu",
        "ReLU": "relu",
        "ReLU6": "relu6",
        "Hardswish": "hardswish",
        "Sigmoid": "sigmoid",
        "Tanh": "tanh",
        "Identity": "identity",
        # functions of torch
        "silu": "silu",
        "relu": "relu",
        "relu6": "relu6",
        "hardswish": "hardswish",
        "sigmoid": "sigmoid",
        "tanh": "tanh",
    }
)
"""Activations of `uniep.programs` by the name of the class or function that a module has as its `act_fn`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    """How experts apply their gate. `numbers`: the module's attributes that it reads, each a path.

    `options` are the program's, from the activation (`silu`, if the gate does not read `act_fn`) and the numbers.
    """

    options: Callable[..., Options]
    numbers: tuple[str, ...] = ()
    reads_activation: bool = False


def _plain(activation: str) -> Options:
    """The activation of the gate, times up."""
    return (("activation", activation),)


def _clamped(activation: str, limit: float) -> Options:
    """The same, where both are clamped first."""
    return (("activation", activation), ("limit", limit))


def _offset(_: str, limit: float, alpha: float) -> Options:
    """Both clamped first, then `gate * sigmoid(alpha * gate) * (up + 1)`."""
    return (("limit", limit), ("alpha", alpha), ("up_offset", 1.0))


def _interleaved(_: str, limit: float, alpha: float) -> Options:
    """The same, where gate and up are columns in turn."""
    return (*_offset(_, limit, alpha), ("split", "interleaved"))


def _softcapped(_: str, gate: float, up: float) -> Options:
    """Both within soft caps, `c * tanh(v / c)`, and `sigmoid(gate)` of what the gate was before."""

    def cap(value: str, c: float) -> str:
        return f"{c!r} * (2.0 * sigmoid({2.0 / c!r} * {value}) - 1.0)"

    return (("activation", f"{cap('gate', gate)} * sigmoid(gate) * {cap('up', up)}"),)


_SOFTCAPS = ("act_fn.gate_softcap.softcap", "act_fn.up_softcap.softcap")

GATES: Mapping[str, Gate] = MappingProxyType(
    {
        "_default_apply_gate": Gate(options=_plain, reads_activation=True),
        "BeamExperts._apply_gate": Gate(options=_plain, reads_activation=True),
        "DeepseekV4Experts._apply_gate": Gate(options=_clamped, numbers=("limit",), reads_activation=True),
        "Glm5NextTextExperts._apply_gate": Gate(options=_clamped, numbers=("swiglu_limit",)),
        "GptOssExperts._apply_gate": Gate(options=_interleaved, numbers=("limit", "alpha")),
        "HYV4Experts._apply_gate": Gate(options=_clamped, numbers=("swiglu_limit",)),
        "HYV4VLExperts._apply_gate": Gate(options=_clamped, numbers=("swiglu_limit",)),
        "Inkling2Experts._apply_gate": Gate(options=_softcapped, numbers=_SOFTCAPS),
        "Inkling2LoopExperts._apply_gate": Gate(options=_softcapped, numbers=_SOFTCAPS),
        "MiniMaxM3VLExperts._apply_gate": Gate(options=_offset, numbers=("swiglu_limit", "swiglu_alpha")),
        "OpenAIPrivacyFilterExperts._apply_gate": Gate(options=_offset, numbers=("limit", "alpha")),
    }
)
"""Every gate that is known, by the qualified name of the method."""


# -- the entry of transformers -----------------------------------------------------------------------------------------


class _Registry(Protocol):
    def register(self, key: str, value: Callable[..., Tensor]) -> None: ...


def register() -> None:
    """Make `experts_implementation="uniep"` known to transformers. It may be called any number of times.

    Raises UEP0605 if transformers is not installed, or takes no implementations of others (before 5.7).
    """
    _registry().register(NAME, experts_forward)


def _registry() -> _Registry:
    """Where transformers keeps its implementations of experts, and its models look them up."""
    needed = "it takes transformers 5.7 or later: pip install 'uniep-compiler[transformers]'"
    try:
        version = import_module("transformers").__version__
    except ImportError as error:
        raise _unusable(f"transformers cannot be imported: {error}", needed) from error
    try:
        found: _Registry = import_module("transformers.modeling_utils").ALL_EXPERTS_FUNCTIONS
    except (ImportError, AttributeError) as error:
        raise _unusable(f"transformers {version} does not let others compute its experts", needed) from error
    return found


def experts_forward(module: nn.Module, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
    """What transformers calls instead of a module's own forward: hidden[T, H], ids[T, K], weights[T, K] to [T, H].

    Raises UEP0605 for experts that are not known, UEP0603 for ids that are no expert's, and what the layer raises.
    """
    traits = traits_of(module)
    if not _is_compared(*traits):
        _compare(module, *traits)
    down = _param(module, "down_proj")
    ids, weights = _routes(module, down.shape[0], top_k_index, top_k_weights)
    hidden, inner = (2, 1) if traits.is_transposed else (1, 2)
    size = ExpertsSize(experts=down.shape[0], topk=ids.shape[-1], hidden=down.shape[hidden], inner=down.shape[inner])
    layer = experts_layer(_options(*traits), size, down.dtype, down.device)
    return call_experts(layer, hidden_states, ids, weights, _params(module))


# -- tensors -----------------------------------------------------------------------------------------------------------


def _params(module: nn.Module) -> list[Tensor]:
    """Weights and biases, in the order in which a layer takes them."""
    first = "gate_up_proj" if module.has_gate else "up_proj"
    names = [first, f"{first}_bias", "down_proj", "down_proj_bias"] if module.has_bias else [first, "down_proj"]
    return [_param(module, name) for name in names]


def _param(module: nn.Module, name: str) -> Tensor:
    param = getattr(module, name, None)
    if not isinstance(param, Tensor):
        raise _unknown(type(module), f"have no tensor `{name}`")
    if isinstance(param, DTensor):
        raise _unknown(type(module), f"have a distributed tensor as `{name}`: a layer needs this rank's part of it")
    return param


def _routes(module: nn.Module, experts: int, ids: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Expert ids with -1 for "no expert", and one weight for each.

    Under transformers' expert-parallel plan, ids are those of this rank's experts, and `experts` (one more than the
    last) stands for all others. Up to 5.17 modules do not say whether they are under it.
    """
    if not getattr(module, "_is_expert_parallel", True):
        return ids, weights
    elsewhere = ids == experts
    ids = ids.masked_fill(elsewhere, -1)
    if ids.shape[-1] <= experts:
        return ids, weights
    # There are more routes than experts here, so that most go elsewhere: keep the others, in their order.
    first = elsewhere.to(torch.int8).argsort(dim=-1, stable=True)[..., :experts]
    torch._assert_async(((~elsewhere).sum(-1) <= experts).all(), "a token names an expert twice")
    return ids.gather(-1, first), weights.gather(-1, first)


# -- what a module computes --------------------------------------------------------------------------------------------


class Traits(NamedTuple):
    """All that decides what the experts of a module compute. Modules with the same traits compute the same."""

    experts: type
    act: object
    approximate: object
    has_gate: bool
    has_bias: bool
    is_transposed: bool
    is_concatenated: bool
    has_post_expert_norm: bool
    has_own_gate: bool
    numbers: tuple[float, ...]


def traits_of(module: object) -> Traits:
    """The traits of a module of transformers' experts. UEP0605 for another object; nothing else is judged here."""
    if not isinstance(module, nn.Module):
        message = f"experts are a module, not {type(module).__name__}"
        raise _unusable(message, "pass the `experts` of one of a model's layers")
    act = getattr(module, "act_fn", None)
    return Traits(
        experts=type(module),
        act=type(act) if isinstance(act, nn.Module) else act,
        approximate=getattr(act, "approximate", None),  # of torch.nn.GELU
        has_gate=_flag(module, "has_gate"),
        has_bias=_flag(module, "has_bias"),
        is_transposed=_flag(module, "is_transposed"),
        is_concatenated=_flag(module, "is_concatenated"),
        has_post_expert_norm=bool(getattr(module, "has_post_expert_norm", False)),
        has_own_gate="_apply_gate" in vars(module),
        numbers=tuple([_number(module, path) for path in _paths(type(module))]),
    )


def _flag(module: nn.Module, name: str) -> bool:
    value = getattr(module, name, None)
    if value is None:
        raise _unknown(type(module), f"do not say `{name}`: is this a module of experts, as transformers has them?")
    return bool(value)


@constant
def _paths(experts: type) -> tuple[str, ...]:
    """Where the gate of such experts has its numbers; none if it is not known."""
    gate = GATES.get(_gate_name(experts))
    return gate.numbers if gate is not None else ()


def _number(module: nn.Module, path: str) -> float:
    value: object = module
    for name in path.split("."):
        value = getattr(value, name, None)
    if not isinstance(value, int | float):
        raise _unknown(type(module), f"have no number `{path}`, which their gate reads")
    return float(value)


def _gate_name(experts: type) -> str:
    gate = getattr(experts, "_apply_gate", None)
    return str(getattr(gate, "__qualname__", type(gate).__name__))


def form_of(module: nn.Module) -> ExpertsForm:
    """What the experts of a module compute, but for the dtype. Raises UEP0605, with the class's name, for unknown ones.

    The first time for each class (and other numbers or another activation), its gate is compared with the program's.
    """
    traits = traits_of(module)
    if not _is_compared(*traits):
        _compare(module, *traits)
    return ExpertsForm(**dict(_options(*traits)))


@constant
def _options(*values: Any) -> Options:
    return _options_of(Traits(*values))


@cache
def _options_of(traits: Traits) -> Options:
    """The options of the program. Raises UEP0605 for experts that are not known."""
    experts = traits.experts
    if traits.has_post_expert_norm:
        raise _unknown(experts, "normalise what each expert gives, which programs cannot say yet")
    common: Options = (
        ("gated", traits.has_gate),
        ("bias", traits.has_bias),
        ("layout", "kn" if traits.is_transposed else "nk"),
    )
    if not traits.has_gate:
        return (*common, ("activation", _activation(traits)))
    name = _gate_name(experts)
    if name not in GATES or traits.has_own_gate:
        which = "a function of one module" if traits.has_own_gate else f"`{name}`"
        raise _unknown(experts, f"apply their gate by {which}, which is not known")
    gate = GATES[name]
    if gate.options is _plain and not traits.is_concatenated:
        raise _unknown(experts, "have gate and up in turn, but split them in halves")
    return (*common, *gate.options(_activation(traits) if gate.reads_activation else "silu", *traits.numbers))


def _activation(traits: Traits) -> str:
    """The activation by its name in `uniep.programs`."""
    name = getattr(traits.act, "__name__", type(traits.act).__name__)
    if name in ("GELU", "gelu"):
        return "gelu_tanh" if traits.approximate == "tanh" else "gelu"
    if name not in ACTIVATIONS:
        raise _unknown(traits.experts, f"have the activation `{name}`, which is not known")
    return ACTIVATIONS[name]


# -- the comparison ----------------------------------------------------------------------------------------------------

_ROWS, _COLUMNS = 64, 32
_SPREAD = 8.0  # so that values pass the limits of clamps, which are 7 or 10

_compared: set[Traits] = set()


@constant
def _is_compared(*values: Any) -> bool:
    return Traits(*values) in _compared


@constant
def _compare(module: nn.Module, *values: Any) -> None:
    """Raises UEP0605 if the module's gate (or activation, without one) and the program's are not the same function."""
    traits = Traits(*values)
    form = ExpertsForm(**dict(_options_of(traits)))
    rows = _SPREAD * torch.randn(_ROWS, _COLUMNS, generator=torch.Generator().manual_seed(0))
    function: Any = module._apply_gate if form.gated else module.act_fn
    with torch.no_grad():
        try:
            found = function(rows.to(_param(module, "down_proj").device)).cpu()
        except (RuntimeError, TypeError, AttributeError) as error:
            raise _unknown(traits.experts, f"have a gate that cannot be tried: {error}") from error
        expected = _activated(form, rows)
    if found.shape != expected.shape or not torch.allclose(found.double(), expected, rtol=1e-4, atol=1e-5):
        raise _unknown(traits.experts, "have a gate or an activation that computes something else than its name says")
    _compared.add(traits)


def _activated(form: ExpertsForm, rows: Tensor) -> Tensor:
    """What the program makes of the results of its first GEMM, in float64: its weights are identities here."""
    cols = rows.shape[1]
    inner = cols // 2 if form.gated else cols
    program = ExpertsForm(
        activation=form.activation,
        gated=form.gated,
        split=form.split,
        limit=form.limit,
        alpha=form.alpha,
        up_offset=form.up_offset,
    ).program()
    identity = torch.eye(cols)[None]
    inputs = (rows, torch.zeros(len(rows), 1, dtype=torch.int32), torch.ones(len(rows), 1), identity)
    ops = lower(program)
    names = [param.name for param in ops.params]
    given = dict(zip(names, (*inputs, identity[:, :, :inner].contiguous()), strict=True))
    (out,) = run_reference(ops, {"H": cols, "I": inner, "E": 1, "K": 1}, given, torch.float64)
    if not isinstance(out, Tensor):
        raise TypeError(f"an expert layer returns one tensor, not {type(out).__name__}")
    return out[:, :inner]


# -- errors ------------------------------------------------------------------------------------------------------------


def _unknown(experts: type, what: str) -> UniepError:
    """The error for experts that do something that is not known. Nothing is guessed."""
    return _unusable(
        f"`{experts.__name__}` cannot run on uniep: its experts {what}",
        'choose another implementation for this model: model.set_experts_implementation("grouped_mm")',
    )


def _unusable(message: str, help_text: str) -> UniepError:
    return UniepError([Diagnostic(code="UEP0605", message=message, help=help_text)])
