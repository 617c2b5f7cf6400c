"""Linear integer arithmetic: terms, and a small decision procedure for conjunctions of inequalities.

`refuted` says that no integers satisfy a set of inequalities. It eliminates variables one by one (Fourier and
Motzkin) and tightens each inequality to the integers by the greatest common divisor of its coefficients. A
refutation is a proof; if it finds none there may be none, so everything that rests on it is rejected, never
accepted, where it gives up.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import gcd

_MAX_INEQUALITIES = 300


@dataclass(frozen=True, slots=True)
class Linear:
    """`const` plus integer multiples of variables. Variables are numbers; no coefficient is zero."""

    terms: Mapping[int, int]
    const: int = 0

    @staticmethod
    def number(value: int) -> Linear:
        """A constant."""
        return Linear({}, value)

    @staticmethod
    def variable(number: int) -> Linear:
        """The variable `number`."""
        return Linear({number: 1}, 0)

    def plus(self, other: Linear, factor: int = 1) -> Linear:
        """`self + factor * other`."""
        if not factor:
            return self
        terms = dict(self.terms)
        for variable, coefficient in other.terms.items():
            total = terms.get(variable, 0) + factor * coefficient
            if total:
                terms[variable] = total
            else:
                del terms[variable]
        return Linear(terms, self.const + factor * other.const)

    def minus(self, other: Linear) -> Linear:
        """`self - other`."""
        return self.plus(other, -1)

    def shifted(self, by: int) -> Linear:
        """`self + by`."""
        return Linear(self.terms, self.const + by)

    def times(self, factor: int) -> Linear:
        """`factor * self`."""
        if not factor:
            return Linear({}, 0)
        return Linear({v: c * factor for v, c in self.terms.items()}, self.const * factor)

    def substituted(self, solved: Mapping[int, Linear]) -> Linear:
        """Itself with every solved variable replaced by what it equals."""
        found = [variable for variable in self.terms if variable in solved]
        if not found:
            return self
        result = Linear({v: c for v, c in self.terms.items() if v not in solved}, self.const)
        for variable in found:
            result = result.plus(solved[variable], self.terms[variable])
        return result

    @property
    def is_constant(self) -> bool:
        """Whether it has no variables."""
        return not self.terms

    @property
    def key(self) -> tuple[frozenset[tuple[int, int]], int]:
        """Equal for equal terms; hashable."""
        return frozenset(self.terms.items()), self.const

    def same_as(self, other: Linear) -> bool:
        """Whether both are the same combination of the same variables."""
        return self.const == other.const and self.terms == other.terms


ZERO = Linear({}, 0)


class _ContradictionError(Exception):
    """An inequality between constants that does not hold."""


def refuted(inequalities: Iterable[Linear]) -> bool:
    """Whether no integers make every one of `inequalities` at least 0. False also where this can't be found out."""
    try:
        system = _System(inequalities)
        while system.bounds:
            if len(system.bounds) > _MAX_INEQUALITIES:
                return False
            system.eliminate(system.cheapest_variable())
    except _ContradictionError:
        return True
    return False


class _System:
    """Inequalities `terms + const >= 0`, the tightest for each left side."""

    def __init__(self, inequalities: Iterable[Linear]) -> None:
        self.bounds: dict[frozenset[tuple[int, int]], int] = {}
        for inequality in inequalities:
            self.add(inequality.terms, inequality.const)

    def add(self, terms: Mapping[int, int], const: int) -> None:
        if not terms:
            if const < 0:
                raise _ContradictionError
            return
        divisor = gcd(*terms.values())
        if divisor > 1:
            terms = {variable: coefficient // divisor for variable, coefficient in terms.items()}
            const //= divisor
        side = frozenset(terms.items())
        known = self.bounds.get(side)
        if known is not None and known <= const:
            return
        self.bounds[side] = const
        opposite = self.bounds.get(frozenset((variable, -coefficient) for variable, coefficient in side))
        if opposite is not None and opposite + const < 0:
            raise _ContradictionError

    def cheapest_variable(self) -> int:
        """The variable whose elimination makes the fewest new inequalities, exact ones (a unit coefficient) first."""
        signs: dict[int, list[int]] = {}
        for side in self.bounds:
            for variable, coefficient in side:
                counts = signs.setdefault(variable, [0, 0, 1, 1])
                counts[coefficient > 0] += 1
                if abs(coefficient) != 1:
                    counts[2 + (coefficient > 0)] = 0
        return min(signs, key=lambda v: (not (signs[v][2] or signs[v][3]), signs[v][0] * signs[v][1], v))

    def eliminate(self, variable: int) -> None:
        lower: list[tuple[dict[int, int], int]] = []
        upper: list[tuple[dict[int, int], int]] = []
        for side in list(self.bounds):
            terms = dict(side)
            if variable in terms:
                (lower if terms[variable] > 0 else upper).append((terms, self.bounds.pop(side)))
        for low, low_const in lower:
            for up, up_const in upper:
                self.add(*_combined(low, low_const, up, up_const, variable))


def _combined(
    low: dict[int, int], low_const: int, up: dict[int, int], up_const: int, variable: int
) -> tuple[dict[int, int], int]:
    """The consequence of a lower and an upper bound of a variable that does not mention it."""
    a, b = -up[variable], low[variable]
    terms = {v: a * c for v, c in low.items() if v != variable}
    for v, c in up.items():
        if v != variable:
            total = terms.get(v, 0) + b * c
            if total:
                terms[v] = total
            else:
                del terms[v]
    return terms, a * low_const + b * up_const
