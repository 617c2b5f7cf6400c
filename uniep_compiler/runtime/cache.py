"""The disk cache: texts under names that hold their digest. It never decides what is right, it only saves time.

Modules are kept so that tracebacks, profilers and people find their lines; proofs, so that a schedule is proved once
and not in every process. Whoever asks has the text in hand, and a file counts only if it holds just that text. So a
file that is truncated, altered, or from another version is no hit, and is written anew.

Imports neither torch nor triton, so that `uniepc cache` starts quickly.
"""

from __future__ import annotations

import os
import re
import time
from dataclasses import dataclass
from enum import StrEnum
from hashlib import sha256
from pathlib import Path

from uniep_compiler.runtime.folder import Folder, Listed

CACHE_VARIABLE = "UNIEP_CACHE_DIR"

_MAX_NAME = 120  # file systems allow 255 bytes
_DAY_SECONDS = 86400.0


class Kind(StrEnum):
    """What is kept; also the name of the folder that it is kept in."""

    MODULES = "modules"
    PROOFS = "proofs"

    @property
    def suffix(self) -> str:
        """How the names of its files end."""
        return {Kind.MODULES: ".py", Kind.PROOFS: ".txt"}[self]


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A text to keep. `name` is for people; what tells entries apart is their text."""

    kind: Kind
    name: str
    text: str

    @property
    def file_name(self) -> str:
        """Name and digest of the text (SHA-256, the first 128 bits)."""
        return f"{self.name[:_MAX_NAME]}-{sha256(self.text.encode()).hexdigest()[:32]}{self.kind.suffix}"


_FILE_NAME = re.compile(r"(?P<name>[A-Za-z_]\w*)-[0-9a-f]{32}(?P<suffix>\.\w+)", re.ASCII)


def cache_root() -> Path:
    """The folder of everything: `$UNIEP_CACHE_DIR`, by default `~/.cache/uniep`. OSError if there is no home."""
    root = os.environ.get(CACHE_VARIABLE)
    if root:
        return Path(root).absolute()
    try:
        return Path.home() / ".cache" / "uniep"
    except RuntimeError as error:
        raise FileNotFoundError(str(error)) from None


def find(entry: Entry) -> Path | None:
    """The file that holds the entry, if it is there and whole. OSError where the cache can't be used."""
    folder = Folder(cache_root(), entry.kind)
    return folder.path / entry.file_name if folder.read(entry.file_name) == entry.text.encode() else None


def keep(entry: Entry, root: Path | None = None) -> Path:
    """The entry's file, written if need be; in the cache, or under another root. OSError if it can't be."""
    folder = Folder(root or cache_root(), entry.kind)
    content = entry.text.encode()
    if folder.read(entry.file_name) != content:
        folder.write(entry.file_name, content)
    return folder.path / entry.file_name


# -- what there is, and its end -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """A file of the cache. `name` is that of its entry, and empty for half a file that a process left behind."""

    kind: Kind
    name: str
    file: Listed


def stored() -> tuple[Stored, ...]:
    """Every file that the cache made. Files that others put there are not among them."""
    found = []
    for kind in Kind:
        for file in Folder(cache_root(), kind).listing():
            match = _FILE_NAME.fullmatch(file.name)
            if match and match["suffix"] == kind.suffix:
                found.append(Stored(kind=kind, name=match["name"], file=file))
            elif file.abandoned:
                found.append(Stored(kind=kind, name="", file=file))
    return tuple(found)


def clear(older_than_days: float = 0.0) -> tuple[Stored, ...]:
    """Remove the files of the cache that were not used for so many days. Gives what was removed."""
    latest = time.time() - older_than_days * _DAY_SECONDS
    removed = tuple(one for one in stored() if not older_than_days or one.file.used < latest)
    for one in removed:
        Folder(cache_root(), one.kind).remove(one.file.name)
    return removed
