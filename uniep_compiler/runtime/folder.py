"""A folder whose files only the current user can write, whoever else can reach the place where it stands.

Generated modules are code, so what is read has to be the user's own. A folder is trusted if the user owns it and nobody
else may write to it; the same holds for each file, and no link is followed. Both are asked of what was opened, not of
its name, so nobody can swap it in between. Nothing of this depends on the umask.
"""

from __future__ import annotations

import os
import secrets
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

_FOLDER_MODE, _FILE_MODE = 0o700, 0o600
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC  # O_NONBLOCK: a pipe must not stop us
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_UNFINISHED = ".unfinished"
_ABANDONED_SECONDS = 3600.0
_TOUCH_SECONDS = 3600.0


class UntrustedError(PermissionError):
    """Somebody else could have written what is there. `mend` is what makes it the user's own."""

    def __init__(self, message: str, mend: str = "") -> None:
        super().__init__(message)
        self.mend = mend


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """A file of a folder: its size, and when it was last used (seconds since 1970)."""

    name: str
    num_bytes: int
    used: float

    @property
    def abandoned(self) -> bool:
        """Whether this is half a file, of a process that ended while it wrote."""
        return self.name.endswith(_UNFINISHED) and time.time() - self.used > _ABANDONED_SECONDS


@dataclass(frozen=True, slots=True)
class Folder:
    """The folder `root/name`. Every method raises OSError if it can't be used, UntrustedError if it must not be."""

    root: Path
    name: str

    @property
    def path(self) -> Path:
        """Where it is."""
        return self.root / self.name

    def read(self, name: str) -> bytes | None:
        """What a file holds. None if there is none, or what is there is not a file of the user's own.

        Marks the file as used, at most once an hour.
        """
        with self._open(create=False) as folder:
            if folder is None:
                return None
            try:
                descriptor = os.open(name, _READ, dir_fd=folder)
            except OSError:  # a link, for one: it is not followed
                return None
        try:
            return _content(descriptor)
        finally:
            os.close(descriptor)

    def write(self, name: str, content: bytes) -> None:
        """Make or replace a file, all of it or nothing. Makes the folder if need be."""
        with self._open(create=True) as folder:
            if folder is None:
                raise FileNotFoundError(f"{self.path} leads nowhere")
            with _about(self.path / name):
                _write(folder, name, content)

    def listing(self) -> tuple[Listed, ...]:
        """The user's own files, by name."""
        with self._open(create=False) as folder:
            if folder is None:
                return ()
            files = (_listed(name, folder) for name in sorted(os.listdir(folder)))  # noqa: PTH208 (a descriptor)
            return tuple(file for file in files if file is not None)

    def remove(self, name: str) -> None:
        """Remove a file; nothing happens if it is gone."""
        with self._open(create=False) as folder:
            if folder is not None:
                with _about(self.path / name), suppress(FileNotFoundError):
                    os.unlink(name, dir_fd=folder)

    @contextmanager
    def _open(self, *, create: bool) -> Iterator[int | None]:
        """A descriptor of the folder, by which its files are named from here on. None if there is no such folder."""
        if create:
            _make_root(self.root)
        with _descriptor(self.root) as root:
            if root is not None and create:
                with _about(self.path), suppress(FileExistsError):
                    os.mkdir(self.name, _FOLDER_MODE, dir_fd=root)
                    os.chmod(self.name, _FOLDER_MODE, dir_fd=root)
            if root is None:
                yield None
                return
            with _descriptor(self.path, name=self.name, root=root) as folder:
                yield folder


@contextmanager
def _about(path: Path) -> Iterator[None]:
    """Errors in here name the whole path, where they would name what it is relative to a descriptor."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error


def _write(folder: int, name: str, content: bytes) -> None:
    temporary = f".{os.getpid()}-{secrets.token_hex(8)}{_UNFINISHED}"
    descriptor = os.open(temporary, _CREATE, _FILE_MODE, dir_fd=folder)
    try:
        with os.fdopen(descriptor, "wb") as file:
            os.fchmod(descriptor, _FILE_MODE)
            file.write(content)
        os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary, dir_fd=folder)
        raise


def _content(descriptor: int) -> bytes | None:
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode) or not _is_own(status):
        return None
    if time.time() - status.st_mtime > _TOUCH_SECONDS:
        with suppress(OSError):
            os.utime(descriptor)
    with os.fdopen(descriptor, "rb", closefd=False) as file:
        return file.read()


def _listed(name: str, folder: int) -> Listed | None:
    """None for what is not a file of the user's own, or is gone by now."""
    with suppress(FileNotFoundError):
        status = os.stat(name, dir_fd=folder, follow_symlinks=False)
        if stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid():
            return Listed(name=name, num_bytes=status.st_size, used=status.st_mtime)
    return None


def _make_root(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with suppress(FileExistsError):
        path.mkdir(_FOLDER_MODE)
        path.chmod(_FOLDER_MODE)


@contextmanager
def _descriptor(path: Path, *, name: str | None = None, root: int | None = None) -> Iterator[int | None]:
    """A trusted folder, opened. The user chose the root, which may be a link to one; what is inside it may not."""
    link = os.O_NOFOLLOW if root is not None else 0
    try:
        with _about(path):
            descriptor = os.open(name or path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | link, dir_fd=root)
    except FileNotFoundError:
        yield None
        return
    try:
        status = os.fstat(descriptor)
        if status.st_uid != os.geteuid():
            raise UntrustedError(f"{path} belongs to somebody else", f"`chown $USER {path}`")
        if status.st_mode & _OTHERS_WRITE:
            raise UntrustedError(f"others can write to {path}", f"`chmod go-w {path}`")
        yield descriptor
    finally:
        os.close(descriptor)


def _is_own(status: os.stat_result) -> bool:
    return status.st_uid == os.geteuid() and not status.st_mode & _OTHERS_WRITE
