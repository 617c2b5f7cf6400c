"""Proofs of schedules: each is made once, and remembered by this process and by the disk cache.

The static check takes most of the time of `compile`, and a model compiles the same program for each of its layers.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from functools import cache
from hashlib import sha256
from pathlib import Path

import uniep_compiler
from uniep_compiler import compiler
from uniep_compiler.ir.schedule import Schedule
from uniep_compiler.runtime.cache import Entry, Kind, find, keep
from uniep_compiler.source import Source
from uniep_compiler.version import VERSION

_log = logging.getLogger(__name__)
_proved: set[str] = set()


def check_once(schedule: Schedule, source: Source | None) -> None:
    """`compiler.check`, unless this very schedule has been proved before, by the checker as it is now."""
    checker = checker_digest()
    if checker is None:
        compiler.check(schedule, source)
        return
    text = f"uniep {VERSION}, checker {checker}: proved free of deadlock and races\n\n{schedule}"
    entry = Entry(kind=Kind.PROOFS, name=schedule.graph.name, text=text)
    if entry.file_name in _proved:
        return
    if not _is_kept(entry):
        compiler.check(schedule, source)
        with suppress(OSError):  # the next process proves it again
            keep(entry)
    _proved.add(entry.file_name)


def _is_kept(entry: Entry) -> bool:
    try:
        return find(entry) is not None
    except OSError as error:
        _log.debug("no proofs from the cache: %s", error)
        return False


@cache
def checker_digest() -> str | None:
    """A digest of the code that proves: the IR and its checker. None where there is no source to read."""
    folder = Path(uniep_compiler.__file__).parent / "ir"
    digest = sha256()
    files = sorted(folder.rglob("*.py"))
    for path in files:
        digest.update(path.relative_to(folder).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest() if files else None
