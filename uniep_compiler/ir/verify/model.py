"""What all rules share: the graph's families, who posts what, the launches, and elements in contexts of their own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from uniep_compiler.ir.schedule import Schedule, families_of
from uniep_compiler.ir.tasks import Access, Family, Post, TaskGraph, Wait
from uniep_compiler.ir.verify.context import Context
from uniep_compiler.ir.verify.elements import Element, Touched, assumed
from uniep_compiler.ir.verify.facts import PlanFacts, plan_facts

_VARIABLES_PER_ELEMENT = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Use:
    """An access of a family, and the family's number in data-flow order."""

    number: int
    family: Family
    access: Access
    is_write: bool


class Model:
    """A schedule as the rules look at it."""

    def __init__(self, schedule: Schedule, *, shared_device: bool) -> None:
        self.schedule = schedule
        self.shared_device = shared_device
        self._elements: dict[tuple[str, int, int], tuple[Context, Element]] = {}
        self._kept: list[Touched] = []

    @cached_property
    def graph(self) -> TaskGraph:
        """The schedule's graph."""
        return self.schedule.graph

    @cached_property
    def facts(self) -> PlanFacts:
        """What may be assumed of the plan."""
        return plan_facts(self.graph)

    @cached_property
    def launches_of(self) -> dict[str, list[int]]:
        """The launches that each family has tasks in."""
        launches: dict[str, list[int]] = {family.name: [] for family in self.graph.families}
        for number, launch in enumerate(self.schedule.launches):
            for segment in launch.segments:
                for name in families_of(segment):
                    launches[name].append(number)
        return launches

    def is_in_earlier_launch(self, first: Family, second: Family) -> bool:
        """Whether every task of `first` is in an earlier launch than any of `second`."""
        before, after = self.launches_of[first.name], self.launches_of[second.name]
        return bool(before and after) and max(before) < min(after)

    def waits(self) -> Iterator[tuple[Family, int, Wait]]:
        """Every wait with its family and its number there."""
        for family in self.graph.families:
            for number, wait in enumerate(family.waits):
                yield family, number, wait

    @cached_property
    def posters(self) -> dict[str, list[tuple[Family, Post]]]:
        """Who posts each signal."""
        posters: dict[str, list[tuple[Family, Post]]] = {signal.name: [] for signal in self.graph.signals}
        for family in self.graph.families:
            for post in family.posts:
                posters[post.signal].append((family, post))
        return posters

    def writes(self, buffer: str) -> list[Use]:
        """Every write to a buffer."""
        return [use for use in self.uses if use.access.buffer == buffer and use.is_write]

    def reads(self, buffer: str) -> list[Use]:
        """Every read of a buffer."""
        return [use for use in self.uses if use.access.buffer == buffer and not use.is_write]

    @cached_property
    def uses(self) -> list[Use]:
        """Every access, in data-flow order."""
        return [
            Use(number=number, family=family, access=access, is_write=bool(is_write))
            for number, family in enumerate(self.graph.families)
            for is_write, accesses in enumerate((family.reads, family.writes))
            for access in accesses
        ]

    def is_remote(self, touched: Access | Post) -> bool:
        """Whether it may touch another rank."""
        return touched.rank is not None and self.graph.ranks > 1

    def element(self, family: Family, touched: Touched, copy: int = 0) -> tuple[Context, Element]:
        """Any element of a family's access, post or wait, in its own context. Copies have variables of their own.

        The context is shared: copy it, or unite it with another, before adding to it.
        """
        key = (family.name, id(touched), copy)
        if key not in self._elements:
            self._kept.append(touched)  # so that its id stays its own
            context = Context(facts=self.facts, next_variable=len(self._elements) * _VARIABLES_PER_ELEMENT)
            self._elements[key] = context, assumed(context, family, touched)
        return self._elements[key]
