"""Random inputs of a layer, and its result in float64."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import silu

from benchmarks.shapes import Shape

DTYPE = torch.bfloat16


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """What every system computes on.

    `x` [T, H], `w13` [E, 2·I, H] (gate rows, then up rows) and `w2` [E, H, I] are bf16. `ids` [T, K] is int64, as
    `topk` gives it. `weights` [T, K] is bf16, as routers hand it on; a system that takes float32 gets the same values.
    """

    shape: Shape
    x: Tensor
    ids: Tensor
    weights: Tensor
    w13: Tensor
    w2: Tensor

    @property
    def fingerprint(self) -> int:
        """A number that two processes share if they drew the same inputs."""
        ids = self.ids.flatten()
        places = torch.arange(1, ids.numel() + 1, device=ids.device)
        last = torch.cat([self.x[-1], self.w13[-1, -1], self.w2[-1, -1]]).view(torch.int16).long()
        return int((ids * places).sum()) + int(last.sum())


def make_inputs(shape: Shape, seed: int, device: torch.device) -> Inputs:
    """Random inputs: each token's experts are distinct and every expert is as likely as another.

    Weights are scaled by their depth, so that values stay near 1 from GEMM to GEMM.
    """
    generator = torch.Generator(device).manual_seed(seed)

    def normal(*sizes: int) -> Tensor:
        return torch.randn(*sizes, generator=generator, device=device, dtype=DTYPE)

    scores, ids = torch.randn(shape.T, shape.E, generator=generator, device=device).topk(shape.K, dim=1)
    return Inputs(
        shape=shape,
        x=normal(shape.T, shape.H),
        ids=ids,
        weights=scores.softmax(dim=1).to(DTYPE),
        w13=normal(shape.E, 2 * shape.I, shape.H).mul_(shape.H**-0.5),
        w2=normal(shape.E, shape.H, shape.I).mul_(shape.I**-0.5),
    )


def sample_rows(num_rows: int, wanted: int, seed: int, device: torch.device) -> Tensor:
    """int64: that many of the rows, in order, with the first and the last among them; all of them if `wanted` is 0."""
    if wanted == 0 or wanted >= num_rows:
        return torch.arange(num_rows, device=device)
    inner = torch.randperm(num_rows - 2, generator=torch.Generator().manual_seed(seed))[: max(wanted - 2, 0)] + 1
    rows = torch.cat([torch.tensor([0, num_rows - 1]), inner])
    return rows.sort().values.to(device)


def expected_rows(inputs: Inputs, tokens: Tensor) -> Tensor:
    """float64 [len(tokens), H]: the layer's result for these tokens, one expert after the other, never rounded."""
    return _rows(inputs, inputs.x[tokens].double(), tokens)


def expected_gradients(inputs: Inputs, upstream: Tensor, tokens: Tensor) -> Tensor:
    """float64 [len(tokens), H]: the gradients of these tokens, given the one of the layer's result."""
    with torch.enable_grad():
        x = inputs.x[tokens].detach().double().requires_grad_()
        (found,) = torch.autograd.grad(_rows(inputs, x, tokens), x, upstream[tokens].double())
    return found


def _rows(inputs: Inputs, x: Tensor, tokens: Tensor) -> Tensor:
    ids, weights = inputs.ids[tokens], inputs.weights[tokens].detach().double()
    out = torch.zeros_like(x)
    for expert in ids.unique().tolist():
        token, place = (ids == expert).nonzero(as_tuple=True)
        gate, up = (x[token] @ inputs.w13[expert].detach().double().T).chunk(2, dim=-1)
        y = (silu(gate) * up) @ inputs.w2[expert].detach().double().T
        out = out.index_add(0, token, y * weights[token, place, None])
    return out


def relative_error(rows: Tensor, expected: Tensor) -> float:
    """The Frobenius norm of the difference over that of what was expected. NaN where a row holds one."""
    return float((rows.double() - expected).norm() / expected.norm())
