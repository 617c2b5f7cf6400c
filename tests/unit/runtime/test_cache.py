"""The disk cache: what counts as a hit, where it is, and what is removed from it."""

from __future__ import annotations

import os
import subprocess
import sys
from hashlib import sha256
from pathlib import Path

import pytest

from uniep_compiler.runtime.cache import CACHE_VARIABLE, Entry, Kind, cache_root, clear, find, keep, stored

ROOT = Path(__file__).parents[3]
ENTRY = Entry(kind=Kind.MODULES, name="layer_forward", text="x = 1\n")


@pytest.fixture
def root(monkeypatch, tmp_path):
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    return tmp_path / "cache"


def age(path, days):
    then = path.stat().st_mtime - days * 86400
    os.utime(path, (then, then))


def test_it_is_in_the_home_directory_by_default(monkeypatch):
    monkeypatch.delenv(CACHE_VARIABLE, raising=False)
    monkeypatch.setenv("HOME", "/home/somebody")
    assert cache_root() == Path("/home/somebody/.cache/uniep")


def test_a_relative_place_is_one_of_this_folder(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(CACHE_VARIABLE, "here")
    assert cache_root() == tmp_path / "here"


def test_a_user_without_a_home_gets_an_os_error(monkeypatch):
    def home():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv(CACHE_VARIABLE, raising=False)
    monkeypatch.setattr(Path, "home", home)
    with pytest.raises(OSError, match="home"):
        keep(ENTRY)


def test_an_entry_is_a_file_with_the_digest_of_its_text(root):
    assert find(ENTRY) is None
    path = keep(ENTRY)
    assert path == find(ENTRY) == root / "modules" / ENTRY.file_name
    assert path.read_text() == ENTRY.text
    assert path.name == f"layer_forward-{sha256(path.read_bytes()).hexdigest()[:32]}.py"


def test_other_texts_names_and_kinds_are_other_files(root):
    others = [
        Entry(kind=Kind.MODULES, name="layer_forward", text="x = 2\n"),
        Entry(kind=Kind.MODULES, name="layer_backward", text=ENTRY.text),
        Entry(kind=Kind.PROOFS, name="layer_forward", text=ENTRY.text),
    ]
    assert len({keep(entry) for entry in (ENTRY, *others)}) == 4


def test_a_whole_file_is_not_written_again(root):
    before = keep(ENTRY).stat()
    assert keep(ENTRY).stat().st_ino == before.st_ino


@pytest.mark.parametrize("content", [b"", b"x =", b"x = 2\n", b"x = 1\n\0", b"\xff\xfe"])
def test_a_file_that_does_not_hold_the_text_is_no_hit_and_is_mended(root, content):
    path = keep(ENTRY)
    path.write_bytes(content)
    assert find(ENTRY) is None
    assert keep(ENTRY).read_text() == ENTRY.text


def test_a_long_name_is_cut(root):
    entries = [Entry(kind=Kind.MODULES, name="a" * 400, text=f"x = {i}\n") for i in range(2)]
    assert len({keep(entry) for entry in entries}) == 2
    assert [find(entry) is not None for entry in entries] == [True, True]


def test_what_is_stored_is_listed_by_kind_and_name(root):
    assert stored() == ()
    keep(ENTRY)
    keep(Entry(kind=Kind.PROOFS, name="layer", text="proved"))
    assert [(one.kind, one.name, one.file.num_bytes) for one in stored()] == [
        (Kind.MODULES, "layer_forward", 6),
        (Kind.PROOFS, "layer", 6),
    ]


def test_clear_removes_its_own_files_only(root):
    path = keep(ENTRY)
    kept = [path.with_name(name) for name in ("notes.py", "layer-0123.py", f"{path.stem}.txt", "README")]
    for other in kept:
        other.write_text("mine")
    (half := path.with_name(".1-ab.unfinished")).write_text("x")
    age(half, 1)
    assert [one.name for one in clear()] == ["", "layer_forward"]
    assert sorted(path.parent.iterdir()) == sorted(kept)
    assert clear() == ()


def test_clear_spares_what_was_used_lately(root):
    old, new = keep(ENTRY), keep(Entry(kind=Kind.MODULES, name="new", text=""))
    age(old, 10)
    assert clear(11) == ()
    assert [one.name for one in clear(9)] == ["layer_forward"]
    assert [old.exists(), new.exists()] == [False, True]


def test_use_spares_a_file(root):
    age(keep(ENTRY), 10)
    find(ENTRY)
    assert clear(1) == ()


def test_it_imports_neither_torch_nor_triton():
    code = "import sys, uniep_compiler.runtime.cache as c; print({'torch', 'triton'} & set(sys.modules))"
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
