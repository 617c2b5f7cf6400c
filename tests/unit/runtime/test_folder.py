"""Folders of the cache: who may have written what is read, and what is left of a write that fails."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from uniep_compiler.runtime.folder import Folder, UntrustedError

ROOT = Path(__file__).parents[3]


@pytest.fixture
def folder(tmp_path):
    return Folder(tmp_path / "root", "modules")


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


def names(folder):
    return [file.name for file in folder.listing()]


def test_what_was_written_is_read(folder):
    assert folder.read("a.py") is None
    assert folder.listing() == ()
    folder.write("a.py", b"one")
    folder.write("b.py", b"")
    folder.write("a.py", b"other")
    assert (folder.read("a.py"), folder.read("b.py")) == (b"other", b"")
    assert [(file.name, file.num_bytes) for file in folder.listing()] == [("a.py", 5), ("b.py", 0)]
    folder.remove("a.py")
    folder.remove("a.py")
    assert names(folder) == ["b.py"]


@pytest.mark.parametrize("umask", [0o000, 0o002, 0o077, 0o777])
def test_modes_do_not_depend_on_the_umask(folder, umask):
    before = os.umask(umask)
    try:
        folder.write("a.py", b"text")
    finally:
        os.umask(before)
    assert [mode(path) for path in (folder.root, folder.path)] == [0o700, 0o700]
    assert mode(folder.path / "a.py") == 0o600
    assert folder.read("a.py") == b"text"


# -- whom to trust -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bits", [0o020, 0o002])
@pytest.mark.parametrize("which", ["root", "folder"])
def test_a_folder_that_others_can_write_is_not_used(folder, which, bits):
    folder.write("a.py", b"text")
    path = folder.root if which == "root" else folder.path
    path.chmod(0o700 | bits)
    for use in (lambda: folder.read("a.py"), lambda: folder.write("b.py", b""), folder.listing):
        with pytest.raises(UntrustedError, match="others can write"):
            use()
    with pytest.raises(UntrustedError):
        folder.remove("a.py")
    assert (folder.path / "a.py").exists()


@pytest.mark.parametrize("bits", [0o020, 0o002])
def test_a_file_that_others_can_write_is_not_read_but_replaced(folder, bits):
    folder.write("a.py", b"text")
    (folder.path / "a.py").chmod(0o600 | bits)
    assert folder.read("a.py") is None
    folder.write("a.py", b"text")
    assert folder.read("a.py") == b"text"


def test_a_folder_of_another_user_is_not_used(folder, monkeypatch):
    folder.write("a.py", b"text")
    me = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: me + 1)
    with pytest.raises(UntrustedError, match="somebody else"):
        folder.read("a.py")
    with pytest.raises(UntrustedError):
        folder.write("b.py", b"")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_a_file_of_another_user_is_not_read(folder):
    folder.write("a.py", b"text")
    os.chown(folder.path / "a.py", 12345, -1)
    assert folder.read("a.py") is None
    assert names(folder) == []


def test_a_link_to_a_file_is_not_followed_and_its_target_stays(folder, tmp_path):
    folder.write("b.py", b"")
    (target := tmp_path / "target.py").write_bytes(b"text")
    link = folder.path / "a.py"
    link.symlink_to(target)
    assert folder.read("a.py") is None
    assert names(folder) == ["b.py"]
    folder.write("a.py", b"mine")
    assert not link.is_symlink()
    assert (folder.read("a.py"), target.read_bytes()) == (b"mine", b"text")


def test_a_link_in_place_of_the_folder_is_not_followed(folder, tmp_path):
    (elsewhere := Folder(tmp_path / "root", "elsewhere")).write("a.py", b"text")
    folder.path.symlink_to(elsewhere.path)
    with pytest.raises(OSError, match="modules"):
        folder.read("a.py")
    with pytest.raises(OSError, match="modules"):
        folder.write("b.py", b"")
    assert names(elsewhere) == ["a.py"]


def test_the_root_may_be_a_link_that_the_user_made(tmp_path):
    (tmp_path / "real").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to(tmp_path / "real")
    Folder(tmp_path / "link", "modules").write("a.py", b"text")
    assert Folder(tmp_path / "real", "modules").read("a.py") == b"text"


def test_a_root_that_leads_nowhere_is_an_error(tmp_path):
    (tmp_path / "root").symlink_to(tmp_path / "gone")
    with pytest.raises(FileNotFoundError, match="leads nowhere"):
        Folder(tmp_path / "root", "modules").write("a.py", b"")


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_what_is_no_file_is_not_read(folder, make):
    folder.write("b.py", b"")
    make(folder.path / "a.py")
    assert folder.read("a.py") is None
    assert names(folder) == ["b.py"]


def test_use_keeps_a_file_young(folder):
    folder.write("a.py", b"")
    os.utime(folder.path / "a.py", (1e9, 1e9))
    (old,) = folder.listing()
    folder.read("a.py")
    (young,) = folder.listing()
    assert old.used == 1e9
    assert time.time() - young.used < 60


# -- writes that fail --------------------------------------------------------------------------------------------------


def run_python(code, folder):
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", code, str(folder.root)]
    return subprocess.run(command, env=env, capture_output=True, text=True, check=False)


FULL = """
import resource, sys
from pathlib import Path
from uniep_compiler.runtime.folder import Folder
folder = Folder(Path(sys.argv[1]), "modules")
folder.write("small.py", b"s")
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))  # like a disk with so much room: writes the start, then fails
try:
    folder.write("large.py", b"x" * 5000)
except OSError as error:
    print([file.name for file in folder.listing()], folder.read("large.py"))
"""


def test_a_full_disk_leaves_nothing_behind(folder):
    done = run_python(FULL, folder)
    assert done.stdout.strip() == "['small.py'] None", done.stderr


KILLED = """
import os, signal, sys
from pathlib import Path
from uniep_compiler.runtime import folder
def die(*args, **kwargs):
    os.kill(os.getpid(), signal.SIGKILL)
{}
folder.Folder(Path(sys.argv[1]), "modules").write("a.py", b"x" * 100_000)
"""
HALF_WAY = """
class Half:
    def __init__(self, descriptor, mode): self.descriptor = descriptor
    def __enter__(self): return self
    def __exit__(self, *error): pass
    def write(self, content): os.write(self.descriptor, content[:50_000]); die()
os.fdopen = Half
"""


@pytest.mark.parametrize(("patch", "num_bytes"), [(HALF_WAY, 50_000), ("os.rename = die", 100_000)])
def test_a_process_that_is_killed_leaves_no_file_that_is_read(folder, patch, num_bytes):
    done = run_python(KILLED.format(patch), folder)
    assert done.returncode == -9, done.stderr
    assert folder.read("a.py") is None
    (left,) = folder.listing()
    assert left.num_bytes == num_bytes
    assert not left.abandoned  # it may still be at work
    os.utime(folder.path / left.name, (1e9, 1e9))
    assert folder.listing()[0].abandoned
