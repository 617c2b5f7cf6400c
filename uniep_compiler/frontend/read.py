"""Reads the text of a program from a file: UTF-8, at most so many bytes, of anything that ends."""

from __future__ import annotations

import os
import stat
from difflib import get_close_matches
from pathlib import Path

from uniep_compiler.diagnostics import Diagnostic, UniepError, reason
from uniep_compiler.source import Source

MAX_SOURCE_BYTES = 256 * 1024
"""Longer texts are refused."""


class UnreadableError(UniepError):
    """There is no file at a path, or none that a program can be read from."""


def path_named(path: object) -> Path:
    """The path that a str or an os.PathLike stands for. UEP0601 for anything else."""
    text = os.fspath(path) if isinstance(path, os.PathLike) else path
    if not isinstance(text, str):
        raise _wrong_argument(
            f"parse_file takes a path, not {type(path).__name__}", "a path is a str or a pathlib.Path"
        )
    if not text:
        raise _unreadable("the path of the program is empty")
    return Path(text)


def check_text(text: object, name: object) -> None:
    """UEP0601 unless a text and what errors call it are texts."""
    if not isinstance(text, str):
        help_ = "uniep.parse_file(path) reads a file" if isinstance(text, os.PathLike) else "a text is a str"
        raise _wrong_argument(f"parse takes the text of a program, not {type(text).__name__}", help_)
    if not isinstance(name, str):
        raise _wrong_argument(f"the name of a text is a str, not {type(name).__name__}", "leave it out")


def read_text(file: Path) -> str:
    """What a file holds. UnreadableError (UEP0105) where it cannot be read, UEP0105 where it is not a program's text.

    A pipe is read to its end, or until it is too long, as `uniepc show <(command)` needs it; devices are not read.
    """
    try:
        mode = file.stat().st_mode
        if not (stat.S_ISREG(mode) or stat.S_ISFIFO(mode) or stat.S_ISDIR(mode)):
            raise _unreadable(f"cannot read {_shown(file)}: not a file")
        with file.open("rb") as opened:
            raw = opened.read(MAX_SOURCE_BYTES + 1)
            size = max(os.fstat(opened.fileno()).st_size, len(raw))
    except OSError as error:
        raise _unreadable(f"cannot read {_shown(file)}: {reason(error)}", _near_file(file)) from None
    except ValueError:  # a zero byte, or a surrogate that stands for no byte
        raise _unreadable(f"cannot read {_shown(file)}: no file has such a name") from None
    if len(raw) > MAX_SOURCE_BYTES:
        raise UniepError([too_long(size)], Source(name=str(file), text=""))
    return _decoded(raw, file)


def too_long(num_bytes: int) -> Diagnostic:
    """The error for a text of so many bytes, or more."""
    message = f"the text has {num_bytes} bytes, and the most is {MAX_SOURCE_BYTES}"
    return Diagnostic(code="UEP0105", message=message, help="is this the right file?")


def _wrong_argument(message: str, help_: str) -> UniepError:
    return UniepError([Diagnostic(code="UEP0601", message=message, help=help_)])


def _decoded(raw: bytes, file: Path) -> str:
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        message = f"`{file}` is not UTF-8: byte 0x{raw[error.start]:02x} on line {line}"
        diagnostic = Diagnostic(code="UEP0105", message=message, help="save the file as UTF-8")
        raise UniepError([diagnostic], Source(name=str(file), text="")) from None


def _unreadable(message: str, help_: str = "") -> UnreadableError:
    return UnreadableError([Diagnostic(code="UEP0105", message=message, help=help_)])


def _shown(file: Path) -> str:
    return str(file) if str(file).isprintable() else repr(str(file))


def _near_file(file: Path) -> str:
    """A file that may have been meant."""
    try:
        names = [path.name for path in file.parent.iterdir() if path.is_file()]
        near = [] if file.exists() else get_close_matches(file.name, names, n=1)
    except OSError:
        return ""
    return f"did you mean {file.with_name(near[0])}?" if near else ""
