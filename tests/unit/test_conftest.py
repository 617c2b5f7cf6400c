"""What the root conftest does with gpu tests, seen from a test run of its own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

CONFTEST = Path(__file__).parents[1] / "conftest.py"

CASES = """
import os, pytest

@pytest.mark.gpu
def test_on_a_device(): pass

@pytest.mark.parametrize("name", ["TRITON_CACHE_DIR", "UNIEP_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR"])
def test_anywhere(name):
    assert os.environ[name].startswith(os.environ["TMPDIR"] + "/uniep-tests-")
"""

# Stands in for torch: whether there is a device is then the test's choice, and nothing takes seconds.
TORCH = """
import os
class cuda:
    is_available = staticmethod(lambda: os.environ["HAS_CUDA"] == "1")
"""


@pytest.fixture
def run(tmp_path):
    (tmp_path / "conftest.py").write_text(CONFTEST.read_text())
    (tmp_path / "test_cases.py").write_text(CASES)
    (tmp_path / "torch.py").write_text(TORCH)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = gpu\n")
    (tmp_path / "caches").mkdir()

    def run_pytest(*arguments, cuda):
        caches = str(tmp_path / "caches")
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
        env = {**inherited, "HAS_CUDA": str(int(cuda)), "PYTHONPATH": str(tmp_path), "TMPDIR": caches}
        command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *arguments]
        done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
        assert not list((tmp_path / "caches").glob("uniep-tests-*")), "the caches outlived their run"
        return done.returncode, done.stdout

    return run_pytest


def loud_line(output):
    return re.findall(r"!+ (GPU TESTS .*?) !+", output)


def test_without_a_device_gpu_tests_are_skipped_and_it_says_so(run):
    status, output = run(cuda=False)
    assert (status, loud_line(output)) == (0, ["GPU TESTS DID NOT RUN (1 tests: no CUDA device)"])
    assert "3 passed, 1 skipped" in output


def test_gpu_tests_that_are_left_out_are_counted_over_xdists_workers(run):
    status, output = run("-n", "2", "-m", "not gpu", cuda=True)
    expected = "GPU TESTS DID NOT RUN (1 tests: left out; `make test-gpu` runs them on a CUDA device)"
    assert (status, loud_line(output)) == (0, [expected])


def test_with_a_device_gpu_tests_run_and_nothing_is_said(run):
    status, output = run(cuda=True)
    assert (status, loud_line(output)) == (0, [])
    assert "4 passed" in output


def test_a_gpu_run_without_a_device_fails(run):
    status, output = run("-m", "gpu", "--require-gpu", cuda=False)
    assert status == 1
    assert "no CUDA device" in output
