"""Routes as a Python value: the plan of one call, for layers that are written in parts."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch.utils._pytree as pytree
from torch import Tensor

from uniep_compiler.ir.ops import OpGraph
from uniep_compiler.runtime.plan import Plan, PlanShape


@dataclass(frozen=True, slots=True, kw_only=True)
class Routes:
    """What `route(ids)` gives: which row each route has, and which expert each row. A pytree of tensors.

    `placement` is the number of experts of each rank. Under a virtual group all ranks' routes share one plan, and
    `rank` says whose these are.
    """

    plan: Plan
    placement: tuple[int, ...]
    rank: int = 0

    @property
    def expert_rows(self) -> Tensor:
        """i32[E]: number of rows of each expert, from the tokens of all ranks."""
        return self.plan.expert_rows

    @property
    def num_rows(self) -> Tensor:
        """i32 scalar on the device: number of rows that this rank computes."""
        return self.plan.totals[self.rank, 1]

    @property
    def row_of(self) -> Tensor:
        """i32[T, K]: row of each of this rank's routes on the rank of its expert, -1 where it has no expert."""
        shape = self.plan.shape
        first = sum(shape.tokens[: self.rank])
        return self.plan.row_of.view(shape.total_tokens, shape.topk)[first : first + shape.tokens[self.rank]]


def is_counts(ops: OpGraph, value: str) -> bool:
    """Whether a value of a program is what `counts` gives: the plan's `expert_rows`, which every rank gets whole."""
    maker = ops.producer(value)
    return maker is not None and maker.kind == "counts"


_Context = tuple[PlanShape, tuple[int, ...], int]


def _flatten(routes: Routes) -> tuple[list[object], _Context]:
    return [routes.plan.storage], (routes.plan.shape, routes.placement, routes.rank)


def _unflatten(leaves: Iterable[object], context: _Context) -> Routes:
    (storage,) = leaves
    shape, placement, rank = context
    if not isinstance(storage, Tensor):
        raise TypeError("Routes are made of one tensor")
    return Routes(plan=Plan(shape=shape, storage=storage), placement=placement, rank=rank)


pytree.register_pytree_node(Routes, _flatten, _unflatten, serialized_type_name="uniep_compiler.Routes")
