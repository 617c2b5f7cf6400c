"""Generated modules: where their files go, who wins a race, and which of Triton's two ways of running they take."""

from __future__ import annotations

import errno
import inspect
import multiprocessing
import os
import subprocess
import sys
import traceback
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from triton import knobs
from triton.runtime.interpreter import InterpretedFunction
from triton.runtime.jit import JITFunction

from uniep_compiler.codegen.loader import template_text
from uniep_compiler.runtime import modules
from uniep_compiler.runtime.cache import CACHE_VARIABLE, cache_root
from uniep_compiler.runtime.folder import Folder
from uniep_compiler.runtime.modules import load_module

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
    monkeypatch.setattr(modules, "_loaded", {})
    modules._temporary_folder.cache_clear()
    monkeypatch.setattr(modules, "_warned", set())
    return tmp_path / "cache" / "modules"


def file_of(module):
    return Path(module.__file__)


def test_a_module_is_a_file_in_the_cache(cache):
    module = load_module("x = 1\n", "layer", interpret=True)
    assert module.x == 1
    assert file_of(module).parent == cache
    assert file_of(module).name.startswith("layer-")
    assert file_of(module).read_text() == "x = 1\n"
    assert [path.name for path in cache.iterdir()] == [file_of(module).name]  # no bytecode, that nobody would check


def test_the_same_text_is_imported_once(cache):
    first = load_module("y = []\n", "layer", interpret=True)
    assert load_module("".join(["y = ", "[]\n"]), "layer", interpret=True) is first
    assert load_module("y = []\n", "layer", interpret=False) is not first
    assert load_module("y = [1]\n", "layer", interpret=True) is not first


def test_a_module_that_is_loaded_costs_neither_lock_nor_disk(cache, monkeypatch):
    module = load_module("x = 1\n", "layer", interpret=True)
    monkeypatch.setattr(modules, "interpreter_lock", None)
    monkeypatch.setattr(modules, "keep", None)
    assert load_module("x = 1\n", "layer", interpret=True) is module


def test_threads_get_the_same_module(cache):
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: load_module("import time; time.sleep(0.05)\n", "slow", True), range(8)))
    assert len(set(map(id, found))) == 1


def test_a_module_that_fails_to_import_is_not_kept(cache):
    before = set(sys.modules)
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            load_module("z = 1 // 0\n", "layer", interpret=True)
    assert set(sys.modules) == before


def test_tracebacks_show_the_lines_of_a_module(cache):
    module = load_module("def fail():\n    return 1 // 0  # here\n", "layer", interpret=True)
    file_of(module).unlink()
    with pytest.raises(ZeroDivisionError) as caught:
        module.fail()
    assert "# here" in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize("separator", ["\r", "\r\n", "\x0c", "\u2028"])
def test_lines_are_counted_as_python_counts_them(cache, separator):
    module = load_module(f"# a{separator}# b\ndef here():\n    pass\n", "lines", interpret=True)
    assert inspect.getsource(module.here) == "def here():\n    pass\n"


# -- faults of the disk ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("content", ["", "x = ", "x = 2\n", "raise SystemExit\n"])
def test_a_broken_file_is_mended_and_never_imported(cache, content):
    path = file_of(load_module("x = 1\n", "layer", interpret=True))
    path.write_text(content)
    modules._loaded.clear()
    assert load_module("x = 1\n", "layer", interpret=True).x == 1
    assert path.read_text() == "x = 1\n"


def test_where_the_cache_cannot_be_a_temporary_folder_is(cache, caplog):
    cache.parent.write_text("a file where the folder should be")
    paths = [file_of(load_module(f"a = {i}\n", "layer", interpret=True)) for i in range(3)]
    assert [path.read_text() for path in paths] == ["a = 0\n", "a = 1\n", "a = 2\n"]
    assert not any(cache.parent in path.parents for path in paths)
    assert caplog.text.count(CACHE_VARIABLE) == 1


def test_folders_in_place_of_files_give_one_warning_that_names_the_first(cache, caplog):
    texts = [f"a = {i}\n" for i in range(3)]
    first = [file_of(load_module(text, "layer", interpret=True)) for text in texts]
    for path in first:
        path.unlink()
        path.mkdir()
    modules._loaded.clear()
    assert [load_module(text, "layer", interpret=True).a for text in texts] == [0, 1, 2]
    (record,) = caplog.records
    assert f"Is a directory: '{first[0]}'" in record.getMessage()
    assert "unfinished" not in record.getMessage()


def test_a_file_in_place_of_the_folder_is_named_by_its_path(cache, caplog):
    cache.parent.mkdir(mode=0o700)
    cache.write_text("a file where the folder should be")
    load_module("a = 1\n", "layer", interpret=True)
    (record,) = caplog.records
    assert f"Not a directory: '{cache}'" in record.getMessage()


@pytest.mark.skipif(os.geteuid() == 0, reason="root can write everywhere")
def test_a_folder_that_cannot_be_written_is_read_all_the_same(cache):
    check_read_only(cache, deny=lambda: cache.chmod(0o500))


def test_a_file_system_that_cannot_be_written_is_read_all_the_same(cache, monkeypatch):
    def write(folder, name, content):
        if folder.root == cache.parent:
            raise OSError(errno.EROFS, "Read-only file system")
        return real_write(folder, name, content)

    real_write = Folder.write
    check_read_only(cache, deny=lambda: monkeypatch.setattr(Folder, "write", write))


def check_read_only(cache, deny):
    load_module("x = 1\n", "layer", interpret=True)
    deny()
    modules._loaded.clear()
    old, new = (load_module(f"x = {i}\n", "layer", interpret=True) for i in (1, 2))
    assert (old.x, new.x) == (1, 2)
    assert file_of(old).parent == cache
    assert file_of(new).parent != cache
    assert file_of(new).read_text() == "x = 2\n"


def test_a_cache_that_others_can_write_is_not_used(cache, caplog):
    path = file_of(load_module("x = 1\n", "layer", interpret=True))
    path.write_text("x = 2\n")
    cache.chmod(0o777)
    modules._loaded.clear()
    module = load_module("x = 1\n", "layer", interpret=True)
    assert module.x == 1
    assert file_of(module) != path
    assert path.read_text() == "x = 2\n"
    assert f"others can write to {cache}" in caplog.text
    assert f"`chmod go-w {cache}` mends it" in caplog.text


def test_the_temporary_folder_goes_with_its_process_only(cache, tmp_path):
    cache.parent.write_text("a file where the folder should be")
    done = run_python("""
import os
from uniep_compiler.runtime.folder import Folder
from uniep_compiler.runtime.modules import load_module
path = load_module("a = 1", "layer", True).__file__
if os.fork() == 0:
    raise SystemExit  # at its exit, the child removes nothing
os.wait()
print(path, os.path.exists(path))
""")
    path, there = done.stdout.split()
    assert there == "True"
    assert not Path(path).exists()
    assert not Path(path).parents[1].exists()


def test_where_no_disk_takes_a_file_modules_work_all_the_same(cache):
    """Also kernels, whose source Triton reads."""
    done = run_python(f"""
import resource, torch
from uniep_compiler.runtime.folder import Folder
from uniep_compiler.runtime.modules import load_module
resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))
module = load_module({source_of(interpret=True)!r}, "kernel", True)
source, target = torch.arange(4), torch.zeros(4, dtype=torch.int64)
module.double[(1,)](source, target)
print(module.__file__, target.tolist())
""")
    assert done.stdout.startswith("<kernel-"), done.stderr
    assert done.stdout.endswith("> [0, 2, 4, 6]\n")
    assert list(cache.iterdir()) == []


def run_python(code):
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, env=env)


NUM_TEXTS = 20


def text_of(number):
    return f"x = {number}\n" * 1000


def load_often(start):
    """What a rank does while others do the same, and somebody breaks files."""
    start.wait()
    for number in range(NUM_TEXTS):
        module = load_module(text_of(number), "race", interpret=True)
        assert module.x == number
        assert file_of(module).parent == cache_root() / "modules"
        file_of(module).write_text("x = 0\n" if number % 2 else "")


def test_processes_that_race_for_files_all_get_them_right(cache):
    context = multiprocessing.get_context("fork")
    start = context.Event()
    racers = [context.Process(target=load_often, args=(start,)) for _ in range(8)]
    for racer in racers:
        racer.start()
    start.set()
    for racer in racers:
        racer.join()
    assert [racer.exitcode for racer in racers] == [0] * 8
    modules._loaded.clear()
    for number in range(NUM_TEXTS):
        assert file_of(load_module(text_of(number), "race", interpret=True)).read_text() == text_of(number)
    assert len(list(cache.iterdir())) == NUM_TEXTS


# -- how kernels run ---------------------------------------------------------------------------------------------------


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
from uniep_compiler.runtime.folder import Folder
from uniep_compiler.runtime.modules import load_module
source = {source_of(interpret=False)!r} + '''
@triton.jit
def kernel(p):
    x = tl.load(p + tl.arange(0, 64))
    for i in range(cdiv(max_of(x, 0), 2)):
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
