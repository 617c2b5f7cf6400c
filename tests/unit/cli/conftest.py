"""`uniepc` in this process, on the examples."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from uniep_compiler.cli.app import app

ROOT = Path(__file__).parents[3]


@pytest.fixture
def uniepc():
    """Run `uniepc` with these arguments: `.exit_code`, `.stdout` and `.stderr`."""

    def run(*arguments):
        return CliRunner().invoke(app, [str(argument) for argument in arguments], prog_name="uniepc")

    return run


@pytest.fixture
def example():
    return ROOT / "examples" / "qwen3_moe.uniep"


@pytest.fixture
def two_layers(tmp_path):
    """A file with the layers `first` and `second`."""
    text = "uniep 1\n" + "\n".join(
        f"moe {name}(x : bf16[T, H], experts : i32[T, K], w : bf16[E, N, H]) -> bf16[T, N] {{\n"
        f"    return combine(group_gemm(dispatch(x, experts), w))\n}}\n"
        for name in ("first", "second")
    )
    (path := tmp_path / "two.uniep").write_text(text)
    return path
