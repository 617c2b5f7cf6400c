"""Generated modules: where their files go, who wins a race, and which of Triton's two ways of running they take."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from triton import knobs
from triton.runtime.interpreter import InterpretedFunction
from triton.runtime.jit import JITFunction

from uniep_compiler.codegen.loader import template_text
from uniep_compiler.runtime import modules
from uniep_compiler.runtime.modules import CACHE_VARIABLE, cache_folder, load_module, write_source

KERNEL = """
@triton.jit
def double(source, target):
    at = tl.arange(0, 4)
    tl.store(target + at, twice(tl.load(source + at)))


@device_function
def twice(x):
    return x + x
"""


def source_of(*, interpret):
    return template_text(f"prelude/arith_{'interpreted' if interpret else 'compiled'}.py.jinja") + KERNEL


@pytest.fixture
def cache(monkeypatch, tmp_path):
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    modules._fallback_folder.cache_clear()
    return tmp_path / "cache" / "modules"


def test_a_module_is_a_file_in_the_cache(cache):
    module = load_module("x = 1\n", "layer", interpret=True)
    assert module.x == 1
    assert Path(module.__file__).parent == cache
    assert Path(module.__file__).name.startswith("layer_")
    assert Path(module.__file__).read_text() == "x = 1\n"


def test_the_same_text_is_imported_once(cache):
    first = load_module("y = []\n", "layer", interpret=True)
    assert load_module("y = []\n", "layer", interpret=True) is first
    assert load_module("y = []\n", "layer", interpret=False) is not first
    assert load_module("y = [1]\n", "layer", interpret=True) is not first


def test_a_module_that_fails_to_import_is_not_kept(cache):
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            load_module("z = 1 // 0\n", "layer", interpret=True)


def test_the_cache_is_in_the_home_directory_by_default(monkeypatch):
    monkeypatch.delenv(CACHE_VARIABLE, raising=False)
    monkeypatch.setenv("HOME", "/home/somebody")
    assert cache_folder() == Path("/home/somebody/.cache/uniep/modules")


def test_a_broken_file_is_written_anew(cache):
    path = write_source("a = 1\n", "a.py")
    path.write_text("a =")
    assert write_source("a = 1\n", "a.py").read_text() == "a = 1\n"


def test_a_file_that_is_right_stays_as_it_is(cache):
    path = write_source("a = 1\n", "a.py")
    before = path.stat().st_ino
    assert write_source("a = 1\n", "a.py").stat().st_ino == before


def test_where_the_cache_cannot_be_a_temporary_folder_is(cache, caplog):
    cache.parent.write_text("a file where the folder should be")
    path = write_source("a = 1\n", "a.py")
    assert path.read_text() == "a = 1\n"
    assert cache.parent not in path.parents
    assert CACHE_VARIABLE in caplog.text


def test_a_full_disk_leaves_no_half_written_file(cache, monkeypatch):
    rename = Path.replace

    def replace(self, target):
        if cache in Path(target).parents:
            raise OSError(28, "No space left on device")
        return rename(self, target)

    monkeypatch.setattr(Path, "replace", replace)
    assert write_source("a = 1\n", "a.py").read_text() == "a = 1\n"
    assert list(cache.iterdir()) == []


def write_often(folder, text):
    os.environ[CACHE_VARIABLE] = folder
    for number in range(50):
        assert write_source(text, f"{number}.py").read_text() == text


def test_processes_that_race_for_a_file_all_get_it(cache):
    context = multiprocessing.get_context("fork")
    racers = [context.Process(target=write_often, args=(str(cache.parent), "x = 1\n" * 5000)) for _ in range(3)]
    for racer in racers:
        racer.start()
    for racer in racers:
        racer.join()
    assert [racer.exitcode for racer in racers] == [0, 0, 0]
    assert sorted(path.name for path in cache.iterdir()) == sorted(f"{number}.py" for number in range(50))


def test_both_ways_of_running_live_side_by_side(cache):
    interpreted = load_module(source_of(interpret=True), "both", interpret=True)
    compiled = load_module(source_of(interpret=False), "both", interpret=False)
    assert isinstance(interpreted.double, InterpretedFunction)
    assert isinstance(compiled.double, JITFunction)
    assert isinstance(compiled.twice, JITFunction)
    source, target = torch.arange(4), torch.zeros(4, dtype=torch.int64)
    interpreted.double[(1,)](source, target)
    assert target.tolist() == [0, 2, 4, 6]


@pytest.mark.parametrize("interpret", [True, False])
@pytest.mark.parametrize("variable", [None, "0", "1"])
def test_the_knob_is_as_it_was_after_an_import(cache, monkeypatch, variable, interpret):
    if variable is None:
        monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    else:
        monkeypatch.setenv("TRITON_INTERPRET", variable)
    load_module(f"from triton import knobs\nseen = knobs.runtime.interpret  # {variable}\n", "knob", interpret)
    assert os.environ.get("TRITON_INTERPRET") == variable
    assert knobs.runtime.interpret == (variable == "1")


def test_compiled_kernels_build_where_triton_was_imported_to_interpret(cache, tmp_path):
    """With TRITON_INTERPRET=1, Triton's own library functions cannot be compiled; the prelude does without them."""
    code = f"""
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from uniep_compiler.runtime.modules import load_module
source = {source_of(interpret=False)!r} + '''
@triton.jit
def kernel(p):
    x = tl.load(p + tl.arange(0, 64))
    for i in range(as_int(cdiv(max_of(x, 0), 2))):
        tl.store(p + i + tl.arange(0, 64), sum_of(x, 0) + prefix_sum(x, 0) + zeros([64], tl.int32))
'''
kernel = load_module(source, "library", interpret=False).kernel
signature = ASTSource(fn=kernel, signature={{"p": "*i32"}})
print(triton.compile(signature, target=GPUTarget("cuda", 90, 32)).asm["ptx"][:0], "built")
"""
    env = {**os.environ, "TRITON_INTERPRET": "1", "TRITON_CACHE_DIR": str(tmp_path)}
    env["PYTHONPATH"] = str(Path(__file__).parents[3])
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, env=env)
    assert done.stdout.strip() == "built", done.stderr
