"""Layers, inputs and comparisons that the tests of kernels share. `device` is "cpu" (the interpreter) or "cuda"."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache

import torch
from torch.utils._python_dispatch import TorchDispatchMode

import uniep_compiler as uniep
from uniep_compiler.frontend.bind import dims_to_bind
from uniep_compiler.frontend.lower import lower
from uniep_compiler.runtime.workspace import workspace_of

SWIGLU = """
uniep 1

moe layer(
    x       : bf16[T, H],
    experts : i32[T, K],
    weights : f32[T, K],
    w13     : bf16[E, 2*I, H],
    w2      : bf16[E, H, I],
) -> bf16[T, H] {
    r  = route(experts)
    xs = dispatch(x, r)
    h  = group_gemm(xs, w13)
    gate, up = split(h, halves)
    a  = silu(gate) * up
    y  = group_gemm(a, w2)
    return combine(y, weights)
}
"""
"""A SwiGLU layer without any condition on its dims."""

DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}
TOLERANCE = {"f32": 1e-5, "f16": 2e-3, "bf16": 1e-2}
"""Relative error against float64, in the Frobenius norm."""


@dataclass(frozen=True, kw_only=True)
class Shape:
    """Tokens, experts, routes per token, hidden and intermediate size."""

    tokens: int = 13
    experts: int = 4
    topk: int = 2
    hidden: int = 16
    inner: int = 16

    @property
    def dims(self):
        return {"H": self.hidden, "I": self.inner, "E": self.experts, "K": self.topk}


def compile_layer(shape, device, *, dtype="f32", ranks=None, placement=None, text=SWIGLU, timeout=None, **schedule):
    """A layer that raises errors of its kernels at once. `ranks` makes a virtual group; `schedule` are its options."""
    dims = tuple(shape.dims.items())
    return _compile(dims, device, dtype, ranks, placement, text, timeout, tuple(schedule.items()))


def timeout_of(device):
    """Seconds that a task may wait in tests: a kernel that hangs must not hold a GPU."""
    return 10.0 if device == "cpu" else 2.0


@cache
def _compile(dims, device, dtype, ranks, placement, text, timeout, schedule):
    program = uniep.parse(text)
    names = dims_to_bind(lower(program))
    return uniep.compile(
        program,
        dims={name: size for name, size in dims if name in names},
        target=device,
        dtype=dtype,
        group=None if ranks is None else uniep.virtual_group(ranks),
        placement=placement,
        schedule=dict(schedule),
        timeout=timeout or timeout_of(device),
        debug=True,
    )


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """Arguments of a SwiGLU layer, as one big rank has them."""

    x: torch.Tensor
    ids: torch.Tensor
    weights: torch.Tensor
    w13: torch.Tensor
    w2: torch.Tensor

    @property
    def args(self):
        return self.x, self.ids, self.weights, self.w13, self.w2

    def but(self, **changes):
        return replace(self, **changes)

    def tokens(self, chosen):
        """The same with some of the tokens only."""
        return replace(self, x=self.x[chosen], ids=self.ids[chosen], weights=self.weights[chosen])

    def split(self, tokens, placement):
        """The arguments of a virtual group: a list per parameter."""
        by_token = [list(value.split(list(tokens))) for value in (self.x, self.ids, self.weights)]
        return (*by_token, *(list(value.split(list(placement))) for value in (self.w13, self.w2)))


def make_inputs(shape, device, *, dtype="f32", seed=0, ids=None):
    """Random inputs by seed. `ids` are expert ids, by default uniform ones without repetition in a token."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*size):
        return torch.randn(*size, generator=generator)

    if ids is None:
        ids = torch.rand(shape.tokens, shape.experts, generator=generator).topk(shape.topk, dim=1).indices
    real = DTYPES[dtype]
    return Inputs(
        x=normal(shape.tokens, shape.hidden).to(real).to(device),
        ids=torch.as_tensor(ids, dtype=torch.int32).reshape(shape.tokens, shape.topk).to(device),
        weights=(0.1 + torch.rand(shape.tokens, shape.topk, generator=generator)).to(device),
        w13=(normal(shape.experts, 2 * shape.inner, shape.hidden) * shape.hidden**-0.5).to(real).to(device),
        w2=(normal(shape.experts, shape.hidden, shape.inner) * shape.inner**-0.5).to(real).to(device),
    )


def random_ids(shape, seed):
    """Ids by seed, in one of many ways: uniform, skewed, one expert, few tokens with any, many -1, repetitions."""
    rng = random.Random(seed)
    popular = rng.sample(range(shape.experts), k=rng.randint(1, shape.experts))
    missing = rng.choice((0.0, 0.0, 0.2, 0.9))
    distinct = rng.random() < 0.5 and len(popular) >= shape.topk

    def token():
        ids = rng.sample(popular, k=shape.topk) if distinct else rng.choices(popular, k=shape.topk)
        return [-1 if rng.random() < missing else e for e in ids]

    return torch.tensor([token() for _ in range(shape.tokens)], dtype=torch.int32).reshape(shape.tokens, shape.topk)


@contextmanager
def poison(device) -> Iterator[None]:
    """Whatever a call allocates, or takes from the workspace, holds NaN (or the largest integer) at first."""
    workspace = workspace_of(torch.device(device))
    before = workspace.poisoned, torch.are_deterministic_algorithms_enabled()
    workspace.poisoned = True
    torch.use_deterministic_algorithms(True)  # with `fill_uninitialized_memory`, which is on by default
    try:
        yield
    finally:
        workspace.poisoned = before[0]
        torch.use_deterministic_algorithms(before[1])


def call(layer, *args):
    """The layer called with all of its memory poisoned."""
    with poison(layer.device):
        return layer(*args)


def run(layer, inputs, tokens=None):
    """The layer's output on inputs of one big rank. A virtual group gets them split into ranks of `tokens` tokens."""
    if layer.group is None:
        return call(layer, *inputs.args)
    parts = call(layer, *inputs.split(tokens or even(len(inputs.x), layer.group.num_ranks), layer.placement))
    return torch.cat(parts)


class Allocations(TorchDispatchMode):
    """Watches what is allocated inside: floating-point tensors, in order, each filled with sevens before it is used.

    Those of a call are its outputs. Copies larger than `most_elements` are an error.
    """

    def __init__(self, most_elements=2**40):
        super().__init__()
        self.outputs: list[torch.Tensor] = []
        self.most_elements = most_elements

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        copies = (torch.ops.aten.clone.default, torch.ops.aten._to_copy.default, torch.ops.aten.cat.default)
        if function in copies and isinstance(args[0], torch.Tensor):
            assert args[0].numel() <= self.most_elements, f"{function} of {args[0].numel()} elements"
        made = function(*args, **(kwargs or {}))
        if function is torch.ops.aten.empty.memory_format and made.is_floating_point():
            self.outputs.append(made.fill_(7))
        return made


def even(tokens, ranks):
    """Tokens per rank, as equal as can be."""
    return [tokens // ranks + (rank < tokens % ranks) for rank in range(ranks)]


def relative_error(out, reference):
    """Of the whole tensor, in the Frobenius norm; 0 for tensors without elements, infinite if the zeros differ."""
    norm = reference.double().norm()
    if norm == 0:
        return 0.0 if out.double().norm() == 0 else float("inf")
    return ((out.double() - reference).norm() / norm).item()


def assert_close(layer, inputs, out, dtype):
    """The output is near the same program in float64."""
    reference = layer.reference(*inputs.args, dtype=torch.float64)
    assert out.shape == reference.shape
    assert out.dtype == DTYPES[dtype]
    error = relative_error(out, reference)
    assert error <= TOLERANCE[dtype], f"relative error {error:.2e}"


def assert_same_bits(out, expected):
    """Equal, the signs of zeros included."""
    assert out.shape == expected.shape
    assert out.dtype == expected.dtype
    whole = {4: torch.int32, 2: torch.int16}[out.element_size()]
    different = out.contiguous().view(whole) != expected.contiguous().view(whole)
    assert not different.any(), f"{int(different.sum())} of {different.numel()} elements differ"
