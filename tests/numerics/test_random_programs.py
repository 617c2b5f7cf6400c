"""Random programs: each is refused with a reason, or right, and the same under any schedule."""

from __future__ import annotations

import random

import pytest
import torch

import uniep_compiler as uniep
from tests.numerics.layers import assert_same_bits, relative_error
from tests.numerics.test_programs import DIMS, GROUPS, ONE_RANK, arguments, layer_of, results_of, run
from tests.random_programs import random_program

TOLERANCE = 3e-2  # against the same program with its roundings, which long chains may take differently


def build(text, device, schedule):
    """The layer, or None if the back end refuses it."""
    try:
        return layer_of(text, device, tuple(DIMS.items()), tuple(schedule.items()))
    except uniep.UniepError as error:
        if set(error.codes) != {"UEP0401"}:
            raise
        return None


def check(seed, device):
    """Whether the program is built: then it is right, and gives the same bits under another schedule."""
    text = random_program(seed)
    layer = build(text, device, {})
    if layer is None:
        return False
    args = arguments(layer, device)
    results = run(layer, args)
    for out, reference in zip(results, results_of(layer.reference(*args)), strict=True):
        if isinstance(reference, torch.Tensor) and reference.isfinite().all() and reference.any():
            assert relative_error(out, reference.double()) <= TOLERANCE, text
    again = build(text, device, random.Random(seed).choice([*ONE_RANK, *GROUPS]))
    if again is not None:
        for out, expected in zip(run(again, args), results, strict=True):
            if expected is not None:
                assert_same_bits(out.nan_to_num(), expected.nan_to_num())
    return True


def test_random_programs(interpreter):
    built = [check(seed, interpreter) for seed in range(12)]
    assert sum(built) >= 10


@pytest.mark.parametrize("schedule", [*ONE_RANK, *GROUPS], ids=str)
def test_weights_that_feed_nothing(interpreter, schedule):
    """Seed 297: most of its weights are in GEMMs that no result needs."""
    text = random_program(297)
    layer, again = build(text, interpreter, {}), build(text, interpreter, schedule)
    args = arguments(layer, interpreter)
    for out, expected in zip(run(again, args), run(layer, args), strict=True):
        if expected is not None:
            assert_same_bits(out, expected)


@pytest.mark.long
@pytest.mark.parametrize("first", range(1000, 1400, 50))
def test_many_random_programs(first, interpreter):
    built = [check(seed, interpreter) for seed in range(first, first + 50)]
    assert sum(built) >= 40
