"""Routes as a Python value: the plan of one call, for layers that are written in parts."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch.utils._pytree as pytree
from torch import Tensor

from uniep_compiler.runtime.plan import Plan, PlanShape, carve_plan


@dataclass(frozen=True, slots=True, kw_only=True)
class Routes:
    """What `route(ids)` gives: which row each route has, and which expert each row. A pytree of tensors."""

    plan: Plan

    @property
    def expert_rows(self) -> Tensor:
        """i32[E]: number of rows of each expert."""
        return self.plan.expert_rows

    @property
    def num_rows(self) -> Tensor:
        """i32 scalar on the device: number of valid routes of the first rank."""
        return self.plan.totals[0, 1]

    @property
    def row_of(self) -> Tensor:
        """i32[T, K]: row of each route, -1 where it has no expert."""
        return self.plan.row_of.view(self.plan.shape.total_tokens, self.plan.shape.topk)


def _flatten(routes: Routes) -> tuple[list[object], PlanShape]:
    return [routes.plan.storage], routes.plan.shape


def _unflatten(leaves: Iterable[object], shape: PlanShape) -> Routes:
    (storage,) = leaves
    if not isinstance(storage, Tensor):
        raise TypeError("Routes are made of one tensor")
    return Routes(plan=carve_plan(shape, storage))


pytree.register_pytree_node(Routes, _flatten, _unflatten, serialized_type_name="uniep_compiler.Routes")
