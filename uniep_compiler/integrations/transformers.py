"""`experts_implementation="uniep"`: the Mixture-of-Experts models of transformers 5 on compiled layers.

    uniep.integrations.transformers.register()
    model = AutoModelForCausalLM.from_pretrained(..., experts_implementation="uniep")

What a model's experts compute is read from what transformers knows of their module: whether it has a gate, biases,
transposed weights; its activation; and how it applies its gate. The last two are code, so they are known by name, and
then compared once with what the program computes. Experts that are not known are an error that names their class.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from types import MappingProxyType
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from uniep_compiler.diagnostics import Diagnostic, UniepError
from uniep_compiler.frontend.lower import lower
from uniep_compiler.programs import ExpertsForm
from uniep_compiler.runtime.experts import ExpertsSize, call_experts, experts_layer
from uniep_compiler.runtime.reference import run_reference

NAME = "uniep"
"""What transformers knows the implementation by."""

Options = tuple[tuple[str, Any], ...]
"""Arguments of `ExpertsForm`, by name."""

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
    form, params = form_of(module), _params(module)
    size = _size(form, params, top_k_index.shape[-1])
    ids, weights = _routes(module, size.experts, top_k_index, top_k_weights)
    size = _size(form, params, ids.shape[-1])
    layer = experts_layer(form, size, params[0].dtype, params[0].device)
    return call_experts(layer, hidden_states, ids, weights, params)


# -- tensors -----------------------------------------------------------------------------------------------------------


def _params(module: nn.Module) -> list[Tensor]:
    """Weights and biases, in the order in which a layer takes them."""
    first = "gate_up_proj" if module.has_gate else "up_proj"
    names = [name for proj in (first, "down_proj") for name in (proj, f"{proj}_bias")]
    if not module.has_bias:
        names = names[::2]
    return [_param(module, name) for name in names]


def _param(module: nn.Module, name: str) -> Tensor:
    param = getattr(module, name, None)
    if not isinstance(param, Tensor):
        raise _unknown(module, f"have no tensor `{name}`")
    if isinstance(param, torch.distributed.tensor.DTensor):
        raise _unknown(module, f"have a distributed tensor as `{name}`: a layer needs this rank's part of it")
    return param


def _size(form: ExpertsForm, params: list[Tensor], topk: int) -> ExpertsSize:
    down = params[2 if form.bias else 1]
    hidden, inner = (1, 2) if form.layout == "nk" else (2, 1)
    return ExpertsSize(experts=down.shape[0], topk=topk, hidden=down.shape[hidden], inner=down.shape[inner])


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

_forms: dict[tuple[type, Options], ExpertsForm] = {}


def form_of(module: nn.Module) -> ExpertsForm:
    """What the experts of a module compute, as far as it is known. Raises UEP0605, with the class's name, if it isn't.

    The first time for each class (and other numbers or another activation), its gate is compared with the program's.
    """
    options = _options(module)
    key = (type(module), options)
    if key not in _forms:
        form = ExpertsForm(**dict(options))
        _compare(module, form)
        _forms[key] = form
    return _forms[key]


def _options(module: nn.Module) -> Options:
    if getattr(module, "has_post_expert_norm", False):
        raise _unknown(module, "normalise what each expert gives, which programs cannot say yet")
    common: Options = (
        ("bias", bool(module.has_bias)),
        ("layout", "kn" if module.is_transposed else "nk"),
    )
    if not module.has_gate:
        return (*common, ("gated", False), ("activation", _activation(module)))
    gate = getattr(module, "_apply_gate", None)
    name = getattr(gate, "__qualname__", type(gate).__name__)
    if name not in GATES:
        raise _unknown(module, f"apply their gate by `{name}`, which is not known")
    return (*common, *GATES[name](module))


def _activation(module: nn.Module) -> str:
    """The activation that a module has as `act_fn`, by its name in `uniep.programs`."""
    function = getattr(module, "act_fn", None)
    name = function.__name__ if callable(function) and hasattr(function, "__name__") else type(function).__name__
    if name in ("GELU", "gelu"):
        return "gelu_tanh" if getattr(function, "approximate", "none") == "tanh" else "gelu"
    if name not in ACTIVATIONS:
        raise _unknown(module, f"have the activation `{name}`, which is not known")
    return ACTIVATIONS[name]


def _plain(module: nn.Module) -> Options:
    """act(gate) * up, where gate and up are the halves of what the first GEMM gives."""
    if not module.is_concatenated:
        raise _unknown(module, "have gate and up in turn, but split them in halves")
    return (("activation", _activation(module)),)


def _clamped(
    limit: str, *, alpha: str = "", silu: bool = False, interleaved: bool = False
) -> Callable[[nn.Module], Options]:
    """Gate and up are clamped first. `limit` and `alpha` name the module's attributes; with alpha, up gets 1 added."""

    def options(module: nn.Module) -> Options:
        found = [
            ("limit", float(getattr(module, limit))),
            ("split", "interleaved" if interleaved else "halves"),
            ("activation", "silu" if silu or alpha else _activation(module)),
        ]
        if alpha:
            found += [("alpha", float(getattr(module, alpha))), ("up_offset", 1.0)]
        return tuple(found)

    return options


def _softcapped(module: nn.Module) -> Options:
    """cap(gate) * sigmoid(gate) * cap(up), where cap(v) is c * tanh(v / c)."""
    function: Any = module.act_fn

    def cap(value: str, limit: float) -> str:
        return f"{limit!r} * (2.0 * sigmoid({2.0 / limit!r} * {value}) - 1.0)"

    gate = cap("gate", float(function.gate_softcap.softcap))
    up = cap("up", float(function.up_softcap.softcap))
    return (("activation", f"{gate} * sigmoid(gate) * {up}"),)


GATES: Mapping[str, Callable[[nn.Module], Options]] = MappingProxyType(
    {
        "_default_apply_gate": _plain,
        "BeamExperts._apply_gate": _plain,
        "DeepseekV4Experts._apply_gate": _clamped("limit"),
        "Glm5NextTextExperts._apply_gate": _clamped("swiglu_limit", silu=True),
        "GptOssExperts._apply_gate": _clamped("limit", alpha="alpha", interleaved=True),
        "HYV4Experts._apply_gate": _clamped("swiglu_limit", silu=True),
        "HYV4VLExperts._apply_gate": _clamped("swiglu_limit", silu=True),
        "Inkling2Experts._apply_gate": _softcapped,
        "Inkling2LoopExperts._apply_gate": _softcapped,
        "MiniMaxM3VLExperts._apply_gate": _clamped("swiglu_limit", alpha="swiglu_alpha"),
        "OpenAIPrivacyFilterExperts._apply_gate": _clamped("limit", alpha="alpha"),
    }
)
"""The options that say what a gate does, from its module, by the gate's qualified name."""


# -- the comparison ----------------------------------------------------------------------------------------------------

_ROWS, _COLUMNS = 64, 32
_SPREAD = 8.0  # so that values pass the limits of clamps, which are 7 or 10


def _compare(module: nn.Module, form: ExpertsForm) -> None:
    """Raises UEP0605 if the module's gate (or activation, without one) and the program's are not the same function."""
    generator = torch.Generator().manual_seed(0)
    rows = _SPREAD * torch.randn(_ROWS, _COLUMNS, generator=generator)
    function: Any = module._apply_gate if form.gated else module.act_fn
    with torch.no_grad():
        try:
            found = function(rows.to(_param(module, "down_proj").device)).cpu()
        except (RuntimeError, TypeError, AttributeError) as error:
            raise _unknown(module, f"have a gate that cannot be tried: {error}") from error
        expected = _activated(form, rows)
    if found.shape != expected.shape or not torch.allclose(found.double(), expected, rtol=1e-4, atol=1e-5):
        raise _unknown(module, "have a gate or an activation that computes something else than its name says")


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


def _unknown(module: nn.Module, what: str) -> UniepError:
    """The error for experts that do something that is not known. Nothing is guessed."""
    return _unusable(
        f"`{type(module).__name__}` cannot run on uniep: its experts {what}",
        'choose another implementation for this model: model.set_experts_implementation("grouped_mm")',
    )


def _unusable(message: str, help_text: str) -> UniepError:
    return UniepError([Diagnostic(code="UEP0605", message=message, help=help_text)])
