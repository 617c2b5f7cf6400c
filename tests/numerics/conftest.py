"""The tests of this folder run on the interpreter; tests/gpu runs many of them again, with its own fixtures."""

from __future__ import annotations

import pytest


@pytest.fixture
def device():
    return "cpu"


@pytest.fixture
def runs():
    """How often a test repeats a call that has to give the same bits."""
    return 3
