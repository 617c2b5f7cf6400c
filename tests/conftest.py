"""What all tests share: one thread each, caches of their own, repeatable examples, and what becomes of gpu tests."""

from __future__ import annotations

import os
import shutil
import tempfile
from functools import cache
from pathlib import Path

import hypothesis
import pytest

# Two workers share two cores; and with one thread a sum has one order. Set before anything imports torch or numpy.
for _name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(_name, "1")

# The same examples in every run. `--hypothesis-profile=search` looks for new ones.
hypothesis.settings.register_profile("repeatable", derandomize=True, deadline=None, print_blob=True)
hypothesis.settings.register_profile("search", deadline=None, max_examples=1000, print_blob=True)
hypothesis.settings.load_profile("repeatable")

CACHES = ("TRITON_CACHE_DIR", "UNIEP_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR")


def pytest_addoption(parser):
    parser.addoption(
        "--require-gpu", action="store_true", help="fail, not skip, gpu tests where there is no CUDA device"
    )
    parser.addoption("--update-golden", action="store_true", help="rewrite the golden files that differ, and then fail")


def pytest_configure(config):
    config.pluginmanager.register(GpuTests(), "uniep-gpu-tests")
    if not hasattr(config, "workerinput"):  # xdist's workers inherit the environment of the process that starts them
        use_own_caches(config)


def use_own_caches(config):
    """Points every kernel cache into a folder of this run, which ends with it: no test passes by a stale kernel."""
    folder = Path(tempfile.mkdtemp(prefix="uniep-tests-"))
    for name in CACHES:
        os.environ[name] = str(folder / name.lower())
    config.add_cleanup(lambda: shutil.rmtree(folder, ignore_errors=True))


@cache
def has_cuda():
    import torch  # only here: most test runs have no gpu test, and torch takes seconds

    return torch.cuda.is_available()


class GpuTests:
    """Skips gpu tests where there is no CUDA device, and says loudly at the end how many did not run."""

    def __init__(self):
        self.num_found = 0
        self.num_ran = 0
        self.num_skipped = 0

    @pytest.hookimpl(tryfirst=True)  # before `-m` deselects them
    def pytest_collection_modifyitems(self, items):
        gpu_tests = [item for item in items if item.get_closest_marker("gpu")]
        self.num_found = len(gpu_tests)
        for item in gpu_tests:
            item.user_properties.append(("gpu", True))

    def pytest_runtest_setup(self, item):
        if item.get_closest_marker("gpu") and not has_cuda():
            if item.config.getoption("--require-gpu"):
                pytest.fail("no CUDA device", pytrace=False)
            pytest.skip("no CUDA device")

    def pytest_runtest_logreport(self, report):
        if ("gpu", True) in report.user_properties:
            self.num_ran += report.when == "call" and not report.skipped
            self.num_skipped += report.skipped

    def pytest_sessionfinish(self, session):
        if hasattr(session.config, "workeroutput"):
            session.config.workeroutput["num_gpu_tests"] = self.num_found

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node):
        """In the process that controls the workers of xdist: it collects nothing itself, and each of them all tests."""
        self.num_found = max(self.num_found, getattr(node, "workeroutput", {}).get("num_gpu_tests", 0))

    def pytest_terminal_summary(self, terminalreporter):
        num_missing = self.num_found - self.num_ran
        if num_missing:
            reason = "no CUDA device" if self.num_skipped else "left out; `make test-gpu` runs them on a CUDA device"
            terminalreporter.write_sep(
                "!", f"GPU TESTS DID NOT RUN ({num_missing} tests: {reason})", yellow=True, bold=True
            )
