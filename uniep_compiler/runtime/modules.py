"""Generated modules: source text becomes a file in the disk cache, and a module of this process.

The file is for those who look for its lines: tracebacks, debuggers, profilers. What is imported is the text itself, so
no fault of the disk changes what runs, or stops it.
"""

from __future__ import annotations

import atexit
import linecache
import logging
import os
import shutil
import sys
import tempfile
from functools import cache
from io import StringIO
from pathlib import Path
from types import ModuleType

from triton import knobs

from uniep_compiler.runtime.cache import CACHE_VARIABLE, Entry, Kind, keep
from uniep_compiler.runtime.folder import UntrustedError
from uniep_compiler.runtime.locks import lock_across_forks

interpreter_lock = lock_across_forks()
"""Held while an interpreted kernel runs: Triton's interpreter patches `triton.language` for the whole process."""

_log = logging.getLogger(__name__)
_warned: set[str] = set()
_loaded: dict[tuple[str, str, bool], ModuleType] = {}


def load_module(source: str, name: str, interpret: bool) -> ModuleType:
    """The module with that source, imported once per process. Cheap afterwards: a text keeps its hash.

    `name` is for people to read; what tells modules apart is their text. With `interpret`, kernels run in Triton's
    interpreter, also where Triton was imported for compiling before; otherwise they compile, whatever the variable
    TRITON_INTERPRET says.
    """
    key = (source, name, interpret)
    module = _loaded.get(key)
    if module is None:
        with interpreter_lock:
            module = _loaded.get(key) or _loaded.setdefault(key, _import(source, name, interpret))
    return module


def module_path(entry: Entry) -> Path | None:
    """The file of a module: in the cache, else in a temporary folder; None if no disk takes it."""
    try:
        return keep(entry)
    except OSError as error:
        mend = f"{error.mend} mends it, and " if isinstance(error, UntrustedError) else ""
        _warn_once(
            "can't keep generated kernels in the cache", f"({error}); {mend}{CACHE_VARIABLE} names another place"
        )
    try:
        return keep(entry, _temporary_folder())
    except OSError as error:
        _warn_once("generated kernels are in memory only", f"({error}): profilers and debuggers won't find their lines")
        return None


def _warn_once(what: str, why: str) -> None:
    """Warns of a thing, with the first reason that there is for it."""
    if what not in _warned:
        _warned.add(what)
        _log.warning("%s %s", what, why)


@cache
def _temporary_folder() -> Path:
    """A folder that ends with this process, and not with one that it forks."""
    folder, owner = tempfile.mkdtemp(prefix="uniep-"), os.getpid()

    def remove() -> None:
        if os.getpid() == owner:
            shutil.rmtree(folder, ignore_errors=True)

    atexit.register(remove)
    return Path(folder)


def _import(source: str, name: str, interpret: bool) -> ModuleType:
    entry = Entry(kind=Kind.MODULES, name=name, text=source)
    path = module_path(entry)
    file_name = f"<{entry.file_name}>" if path is None else str(path)
    # Triton reads a kernel's source through here. Lines without a time are never looked up on disk.
    linecache.cache[file_name] = (len(source), None, StringIO(source, newline=None).readlines(), file_name)
    way = "interpreted" if interpret else "compiled"
    module = ModuleType(f"uniep_generated_{entry.file_name.removesuffix('.py').replace('-', '_')}_{way}")
    module.__file__ = file_name
    # `triton.jit` looks at the knob while it decorates; the scope puts the knob and its variable back.
    with knobs.runtime.scope():
        knobs.runtime.interpret = interpret
        exec(compile(source, file_name, "exec", dont_inherit=True), module.__dict__)
    sys.modules[module.__name__] = module
    return module
