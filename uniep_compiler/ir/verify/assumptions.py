"""What is assumed in one step of a proof, as linear arithmetic, and what follows from it.

Equations are kept solved, so that equal terms look the same; inequalities are kept in normal form.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from uniep_compiler.ir.verify.linear import Linear, refuted

Case = tuple[Linear, ...]
"""Inequalities (`>= 0`) that hold together."""


@dataclass(slots=True)
class Assumptions:
    """Equations, inequalities and case distinctions over numbered variables.

    `bounds` holds the first `num_normal` inequalities: the least constant for each left side.
    """

    solved: dict[int, Linear] = field(default_factory=dict)
    inequalities: list[Linear] = field(default_factory=list)
    cases: list[tuple[Case, Case]] = field(default_factory=list)
    next_variable: int = 0
    impossible: bool = False
    num_normal: int = 0
    bounds: dict[frozenset[tuple[int, int]], int] = field(default_factory=dict)

    def fresh(self) -> Linear:
        """A variable about which nothing is known."""
        self.next_variable += 1
        return Linear.variable(self.next_variable)

    def normal(self, term: Linear) -> Linear:
        """The term with solved variables replaced: equal terms look the same as far as equations go."""
        return term.substituted(self.solved)

    def assume(self, *terms: Linear) -> None:
        """Each of `terms` is at least 0."""
        self.inequalities.extend(terms)

    def assume_equal(self, lhs: Linear, rhs: Linear) -> None:
        """Both are equal."""
        term = self.normal(lhs.minus(rhs))
        if term.is_constant:
            self.impossible |= term.const != 0
            return
        units = [variable for variable, coefficient in term.terms.items() if abs(coefficient) == 1]
        if not units:
            self.assume(term, term.times(-1))
            return
        variable = max(units)
        rest = {v: c for v, c in term.terms.items() if v != variable}
        self.solve(variable, Linear(rest, term.const).times(-term.terms[variable]))

    def solve(self, variable: int, value: Linear) -> None:
        """The variable is `value`, which does not mention it."""
        equation = {variable: value}
        self.num_normal = 0
        for other, term in self.solved.items():
            if variable in term.terms:
                self.solved[other] = term.substituted(equation)
        self.solved[variable] = value

    # -- consequences -----------------------------------------------------------------------------------------------

    def proves(self, *goals: Linear) -> bool:
        """Whether each of `goals` is at least 0 in all that the context allows."""
        return all(self._proves(self.normal(goal)) for goal in goals)

    def _proves(self, goal: Linear) -> bool:
        if self.impossible:
            return True
        if goal.is_constant:
            return goal.const >= 0
        self._normalise()
        known = self.bounds.get(frozenset(goal.terms.items()))
        if known is not None and known <= goal.const:
            return True
        return self._refutes([goal.times(-1).shifted(-1)])

    def _normalise(self) -> None:
        """Bring the inequalities to normal form, and note the tightest one for each left side in `bounds`."""
        if not self.num_normal:
            self.bounds = {}
        for number in range(self.num_normal, len(self.inequalities)):
            term = self.inequalities[number] = self.normal(self.inequalities[number])
            side = frozenset(term.terms.items())
            if self.bounds.get(side, term.const) >= term.const:
                self.bounds[side] = term.const
        self.num_normal = len(self.inequalities)

    def proves_equal(self, lhs: Linear, rhs: Linear) -> bool:
        """Whether both are equal in all that the context allows."""
        term = self.normal(lhs.minus(rhs))
        if term.is_constant:
            return term.const == 0 or self.impossible
        return self._proves(term) and self._proves(term.times(-1))

    def is_impossible(self) -> bool:
        """Whether the assumptions contradict each other."""
        return self.impossible or self._refutes([])

    def _refutes(self, extra: list[Linear]) -> bool:
        self._normalise()
        known = [Linear(dict(side), const) for side, const in self.bounds.items()]
        cases = [tuple(tuple(self.normal(term) for term in case) for case in pair) for pair in self.cases]
        if extra:
            known, cases = _connected(extra, known, cases)
        return _refuted_by_cases(extra + known, cases)


def _connected(
    start: list[Linear], known: list[Linear], cases: list[tuple[Case, ...]]
) -> tuple[list[Linear], list[tuple[Case, ...]]]:
    """The inequalities and cases that share variables with `start`, through any number of others."""
    reached = {variable for term in start for variable in term.terms}
    waiting_terms, waiting_cases = list(known), list(cases)
    used_terms: list[Linear] = []
    used_cases: list[tuple[Case, ...]] = []
    grown = True
    while grown:
        grown = False
        rest: list[Linear] = []
        for term in waiting_terms:
            if term.terms.keys() & reached:
                reached |= term.terms.keys()
                used_terms.append(term)
                grown = True
            else:
                rest.append(term)
        waiting_terms = rest
        others: list[tuple[Case, ...]] = []
        for pair in waiting_cases:
            variables = {variable for case in pair for term in case for variable in term.terms}
            if variables & reached:
                reached |= variables
                used_cases.append(pair)
                grown = True
            else:
                others.append(pair)
        waiting_cases = others
    return used_terms, used_cases


def _refuted_by_cases(known: Iterable[Linear], cases: list[tuple[Case, ...]]) -> bool:
    """Whether `known` is refuted, at once or in every combination of cases."""
    known = list(known)
    if refuted(known):
        return True
    if not cases:
        return False
    first, *rest = cases
    return all(_refuted_by_cases([*known, *case], rest) for case in first)
