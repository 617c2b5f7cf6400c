"""`uniepc` as a process: it starts quickly, imports only what it needs, and dies quietly when its pipe does."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from time import perf_counter

import pytest

ROOT = Path(__file__).parents[3]
FULL_SIZE = ("examples/qwen3_moe.uniep", "--dims", "H=2048,I=768,E=128,K=8")

# Runs a command, and prints what it imported: {module: number of its modules}.
SPY = """
import json, sys
from uniep_compiler.cli import main
try:
    main()
except SystemExit as end:
    assert not end.code, end.code
finally:
    sys.stdout = sys.__stderr__
    print(json.dumps(sorted({name.partition(".")[0] for name in sys.modules})))
"""


def start(*command, **options):
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [sys.executable, *command], cwd=ROOT, env=env, capture_output=True, text=True, check=False, **options
    )


@pytest.mark.parametrize(
    "arguments",
    [
        ("compile", *FULL_SIZE, "--target", "sm_90", "--json"),
        ("show", *FULL_SIZE, "--stage", "source", "--ranks", "8"),
        ("verify", *FULL_SIZE),
        ("explain", "UEP0201"),
        ("ops", "--json"),
    ],
    ids=lambda arguments: arguments[0],
)
def test_neither_torch_nor_triton_is_imported(arguments):
    done = start("-c", SPY, *arguments)
    assert done.returncode == 0, done.stderr
    imported = json.loads(done.stderr.splitlines()[-1])
    assert "typer" in imported
    assert not {"torch", "triton", "networkx", "numpy", "transformers"}.intersection(imported)


def test_compile_starts_cold_in_a_moment(tmp_path):
    """The least of a few: other processes of a test run share the cores."""
    seconds = []
    for number in range(3):
        start_time = perf_counter()
        done = start("-m", "uniep_compiler.cli", "compile", *FULL_SIZE, "-o", str(tmp_path / str(number)))
        seconds.append(perf_counter() - start_time)
        assert done.returncode == 0, done.stderr
    assert min(seconds) < 3.0, seconds


def test_the_module_is_the_command():
    done = start("-m", "uniep_compiler.cli", "explain", "UEP9999")
    assert done.returncode == 2
    assert done.stderr.startswith("error: there is no code UEP9999")


def test_a_closed_pipe_is_not_an_error():
    command = f"{sys.executable} -m uniep_compiler.cli show {' '.join(FULL_SIZE)} --stage source | head -c 10"
    done = subprocess.run(
        command,
        shell=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0
    assert done.stderr == ""
    assert len(done.stdout) == 10
