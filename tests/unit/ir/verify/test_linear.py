"""The decision procedure: what it refutes has no solution, and it refutes what proofs of schedules need."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from uniep_compiler.ir.verify.linear import Linear, refuted

SMALL = st.integers(-3, 3)
TERMS = st.builds(
    lambda coefficients, const: Linear({v: c for v, c in enumerate(coefficients) if c}, const),
    st.tuples(SMALL, SMALL, SMALL),
    st.integers(-5, 5),
)


def value(term, point):
    return term.const + sum(c * point[v] for v, c in term.terms.items())


def at_most(term, bound):
    return term.times(-1).shifted(bound)


@given(st.lists(TERMS, max_size=6))
def test_what_is_refuted_has_no_solution(terms):
    if refuted(terms):
        points = itertools.product(range(-6, 7), repeat=3)
        assert not any(all(value(term, point) >= 0 for term in terms) for point in points)


@given(st.lists(TERMS, max_size=4), st.tuples(SMALL, SMALL, SMALL))
def test_what_holds_somewhere_is_not_refuted(terms, point):
    assert not refuted([term.shifted(max(0, -value(term, point))) for term in terms])


def variables(number):
    return [Linear.variable(v) for v in range(number)]


def test_a_group_is_known_from_a_task_in_it():
    """12 g + r = 12 s + j with r and j in 0..11: so g = s. Over rational numbers it would not be."""
    g, r, s, j = variables(4)
    equal = g.times(12).plus(r).minus(s.times(12)).minus(j)
    known = [r, at_most(r, 11), j, at_most(j, 11), equal, equal.times(-1)]
    assert refuted([*known, g.minus(s).shifted(-1)])
    assert refuted([*known, s.minus(g).shifted(-1)])
    assert not refuted(known)


@pytest.mark.parametrize(("shift", "expected"), [(0, False), (1, True)])
def test_an_odd_number_is_no_even_one(shift, expected):
    """2 x = 2 y + shift."""
    x, y = variables(2)
    equal = x.times(2).minus(y.times(2)).shifted(-shift)
    assert refuted([equal, equal.times(-1)]) is expected


@given(TERMS, TERMS, SMALL)
def test_sums_and_multiples(one, other, factor):
    point = (2, -1, 3)
    total = one.plus(other, factor)
    assert value(total, point) == value(one, point) + factor * value(other, point)
    assert all(total.terms.values())
    assert value(one.times(factor), point) == factor * value(one, point)
    assert value(one.substituted({0: other}), (0, -1, 3)) == value(one, (value(other, (0, -1, 3)), -1, 3)) or (
        0 in other.terms
    )
