"""Generated modules: source text becomes a file in the disk cache, and the file a module.

Triton reads the source of a kernel from a file, so text alone won't do. Ranks write the same file at the same time:
each writes under a name of its own, and renames.
"""

from __future__ import annotations

import atexit
import importlib.util
import logging
import os
import shutil
import sys
import tempfile
import threading
from functools import cache
from hashlib import sha256
from pathlib import Path
from types import ModuleType

from triton import knobs

CACHE_VARIABLE = "UNIEP_CACHE_DIR"

interpreter_lock = threading.RLock()
"""Held while an interpreted kernel runs: Triton's interpreter patches `triton.language` for the whole process."""

_log = logging.getLogger(__name__)


def load_module(source: str, name: str, interpret: bool) -> ModuleType:
    """The module with that source, imported once per process.

    `name` is for people to read; what tells modules apart is their text. With `interpret`, kernels run in Triton's
    interpreter, also where Triton was imported for compiling before; otherwise they compile, whatever the variable
    TRITON_INTERPRET says.
    """
    digest = sha256(source.encode()).hexdigest()[:16]
    stem = f"{name}_{digest}"
    module_name = f"uniep_generated_{stem}_{'interpreted' if interpret else 'compiled'}"
    with interpreter_lock:
        if module_name not in sys.modules:
            path = write_source(source, f"{stem}.py")
            sys.modules[module_name] = _import_file(path, module_name, interpret)
        return sys.modules[module_name]


def write_source(source: str, file_name: str) -> Path:
    """Writes the file into the cache directory, or into a temporary one where that can't be written. Gives its path."""
    try:
        return _write(source, cache_folder() / file_name)
    except (OSError, RuntimeError) as error:  # RuntimeError: no home directory
        folder = _fallback_folder()
        _log.warning(
            "can't write generated kernels to the cache (%s); using %s. %s names another.",
            error,
            folder,
            CACHE_VARIABLE,
        )
        return _write(source, folder / file_name)


def cache_folder() -> Path:
    """The folder of generated modules: `$UNIEP_CACHE_DIR/modules`, by default under `~/.cache/uniep`."""
    root = os.environ.get(CACHE_VARIABLE)
    return (Path(root) if root else Path.home() / ".cache" / "uniep") / "modules"


def _write(source: str, path: Path) -> Path:
    text = source.encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_file() and path.read_bytes() == text:
        return path
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.stem}-", suffix=".tmp")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(text)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    return path


@cache
def _fallback_folder() -> Path:
    folder = tempfile.mkdtemp(prefix="uniep-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)


def _import_file(path: Path, module_name: str, interpret: bool) -> ModuleType:
    spec = importlib.util.spec_from_file_location(module_name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # `triton.jit` looks at the knob while it decorates; the scope puts the knob and its variable back.
    with knobs.runtime.scope():
        knobs.runtime.interpret = interpret
        spec.loader.exec_module(module)
    return module
