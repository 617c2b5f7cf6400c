"""Modules: `uniep.nn.Experts` holds the weights of an expert layer, and runs it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from uniep_compiler.programs import ExpertsForm, Layout, Split, WeightOn
from uniep_compiler.runtime.arguments import argument_error
from uniep_compiler.runtime.experts import DTYPES, ExpertsSize, Options, call_experts, call_ranks, experts_layer
from uniep_compiler.runtime.keywords import check_group, is_count
from uniep_compiler.runtime.layer import Layer
from uniep_compiler.runtime.targets import target_error
from uniep_compiler.transports.virtual import VirtualGroup


class Experts(nn.Module):
    """The experts of a Mixture-of-Experts layer. The router is another module's: it says who goes where.

    Parameters have the names and layouts of transformers' models, so that a state dict fits both:
    `gate_up_proj[E, 2*I, H]` (`up_proj[E, I, H]` if not `gated`) and `down_proj[E, H, I]`, with `layout="kn"` both
    transposed, and with `bias` also `gate_up_proj_bias[E, 2*I]` and `down_proj_bias[E, H]`. `uniep.programs.experts`
    says what the other options mean.

    The layer is compiled when it is first called, for the device and the dtype that the weights have then; modules that
    are alike share one. With a virtual group the module holds the weights of all ranks. Raises UEP0601 for options
    that do not go together.
    """

    def __init__(
        self,
        num_experts: int,
        hidden_size: int,
        intermediate_size: int,
        *,
        topk: int,
        activation: str = "silu",
        gated: bool = True,
        bias: bool = False,
        layout: Layout = "nk",
        split: Split = "halves",
        weight_on: WeightOn = "combine",
        limit: float | None = None,
        alpha: float | None = None,
        up_offset: float = 0.0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        target: str = "auto",
        group: VirtualGroup | None = None,
    ) -> None:
        super().__init__()
        self.options: Options = (
            ("activation", activation),
            ("gated", gated),
            ("bias", bias),
            ("layout", layout),
            ("split", split),
            ("weight_on", weight_on),
            ("limit", limit),
            ("alpha", alpha),
            ("up_offset", up_offset),
        )
        self.gated, self.bias, self.layout = self.form.gated, self.form.bias, self.form.layout
        sizes = {"num_experts": num_experts, "hidden_size": hidden_size, "intermediate_size": intermediate_size}
        _check_sizes({**sizes, "topk": topk})
        if topk > num_experts:
            raise argument_error(f"topk is {topk}, but there are only {num_experts} experts")
        _check_dtype(dtype)
        check_group(group)
        if not isinstance(target, str):
            raise target_error(f"a target is named by a text, not by {target!r}")
        self.size = ExpertsSize(experts=num_experts, topk=topk, hidden=hidden_size, inner=intermediate_size)
        self.target = target
        self.group = group
        for name, shape in self._shapes():
            self.register_parameter(name, nn.Parameter(torch.empty(shape, device=device, dtype=dtype)))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Fills weights and biases as `torch.nn.Linear` does: uniformly, within one over the root of their inputs."""
        with torch.no_grad():
            for name, _ in self._shapes():
                fan_in = self.size.inner if name.startswith("down") else self.size.hidden
                self.get_parameter(name).uniform_(-(fan_in**-0.5), fan_in**-0.5)

    @property
    def form(self) -> ExpertsForm:
        """What the experts compute, but for the dtype; `form.text` is the program."""
        return ExpertsForm(**dict(self.options))

    @property
    def layer(self) -> Layer:
        """The compiled layer for the device and dtype that the weights have now."""
        weight: Tensor = self.down_proj  # type: ignore[assignment]
        ranks = None if self.group is None else self.group.num_ranks
        return experts_layer(self.options, self.size, weight.dtype, weight.device, self.target, ranks)

    def forward(
        self,
        hidden_states: Tensor | Sequence[Tensor],
        top_k_index: Tensor | Sequence[Tensor],
        top_k_weights: Tensor | Sequence[Tensor],
    ) -> Tensor | list[Tensor]:
        """hidden_states[..., H], top_k_index[..., K] and top_k_weights[..., K] to [..., H]; -1 is no expert.

        With a virtual group each of them is a list with one tensor per rank, and so is the result.
        """
        layer, params = self.layer, [getattr(self, name) for name, _ in self._shapes()]
        if layer.group is not None:
            hidden, ids, weights = self._by_rank(hidden_states, top_k_index, top_k_weights)
            return call_ranks(layer, hidden, ids, weights, params)
        for value in (hidden_states, top_k_index, top_k_weights):
            if not isinstance(value, Tensor):
                raise argument_error(f"experts take tensors, not {type(value).__name__}")
        return call_experts(layer, hidden_states, top_k_index, top_k_weights, params)  # type: ignore[arg-type]

    def _by_rank(self, *args: Tensor | Sequence[Tensor]) -> tuple[list[Tensor], ...]:
        """Lists with one tensor for each rank. UEP0601 for anything else."""
        ranks = 1 if self.group is None else self.group.num_ranks
        for arg in args:
            if not isinstance(arg, list | tuple) or len(arg) != ranks or not all(isinstance(v, Tensor) for v in arg):
                raise argument_error(f"experts take lists with one tensor for each of {ranks} ranks")
        return tuple(list(arg) for arg in args)

    def extra_repr(self) -> str:
        size, default = self.size, ExpertsForm()
        changed = [f"{name}={value!r}" for name, value in self.options[1:] if value != getattr(default, name)]
        text = f"{size.experts}, {size.hidden}, {size.inner}, topk={size.topk}, activation={self.options[0][1]!r}"
        return ", ".join([text, *changed])

    def _shapes(self) -> list[tuple[str, tuple[int, ...]]]:
        """Names and shapes of the parameters, in the order in which the layer takes them."""
        size = self.size
        found: list[tuple[str, tuple[int, ...]]] = []
        up = 2 * size.inner if self.gated else size.inner
        first = "gate_up_proj" if self.gated else "up_proj"
        for name, rows, cols in ((first, up, size.hidden), ("down_proj", size.hidden, size.inner)):
            found.append((name, (size.experts, rows, cols) if self.layout == "nk" else (size.experts, cols, rows)))
            if self.bias:
                found.append((f"{name}_bias", (size.experts, rows)))
        return found


def _check_sizes(sizes: Mapping[str, object]) -> None:
    for name, size in sizes.items():
        if not is_count(size) or size < 1:
            raise argument_error(f"{name} is an integer of at least 1, not {size!r}")


def _check_dtype(dtype: object) -> None:
    """UEP0601 unless kernels read weights of that dtype, or of PyTorch's default one where it is None."""
    found = torch.get_default_dtype() if dtype is None else dtype
    if found not in tuple(DTYPES):
        names = ", ".join(str(known) for known in DTYPES)
        raise argument_error(f"dtype has to be one of {names}, not {found!r}")
