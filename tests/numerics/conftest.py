"""Where the tests of this folder run: each on the interpreter, and again on a CUDA device (marker gpu)."""

from __future__ import annotations

import pytest


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=[pytest.mark.gpu, pytest.mark.timeout(120)])])
def device(request):
    return request.param


@pytest.fixture
def interpreter():
    """The device of tests that would say nothing new on a GPU."""
    return "cpu"


@pytest.fixture
def runs(device):
    """How often a test repeats a call that has to give the same bits."""
    return 3 if device == "cpu" else 100
