"""What becomes of errors: the one place where an exception turns into text on stderr and an exit status."""

from __future__ import annotations

import sys
import tempfile
import traceback
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import ParamSpec

import typer

from uniep_compiler.cli.output import diagnostics_json, print_json, warn
from uniep_compiler.diagnostics import InternalError, UniepError

WRONG_PROGRAM = 1
WRONG_USAGE = 2

P = ParamSpec("P")


class UsageError(Exception):
    """The command line is wrong: `message` says how, in one line, and `help` how to mend it."""

    def __init__(self, message: str, help: str = "") -> None:
        super().__init__(message)
        self.help = help

    def as_json(self) -> dict[str, object]:
        """In the form of a diagnostic; it has no code and no place."""
        return {
            "code": None,
            "severity": "error",
            "message": self.args[0],
            "labels": [],
            "notes": [],
            "help": self.help,
        }

    def __str__(self) -> str:
        return f"error: {self.args[0]}" + (f"\n  = help: {self.help}" if self.help else "")


class WrongOptionsError(UniepError):
    """What the compiler found wrong with something that the command line said: usage, not a wrong program."""


def guarded(command: Callable[P, None]) -> Callable[P, None]:
    """The command with its errors shown on stderr, and as JSON on stdout where it was asked for that (`as_json`)."""

    @wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            command(*args, **kwargs)
            sys.stdout.flush()  # a pipe that was closed shows here, where typer still ends quietly
        except UsageError as error:
            warn(str(error))
            if kwargs.get("as_json"):
                print_json({"ok": False, "diagnostics": [error.as_json()]})
            raise typer.Exit(WRONG_USAGE) from None
        except UniepError as error:
            _show(error, as_json=bool(kwargs.get("as_json")))
            raise typer.Exit(WRONG_USAGE if isinstance(error, WrongOptionsError) else WRONG_PROGRAM) from None
        except (typer.Exit, typer.Abort, BrokenPipeError):
            raise
        except Exception as error:
            _show(_bug(error), as_json=bool(kwargs.get("as_json")))
            raise typer.Exit(WRONG_PROGRAM) from None

    return run


def _show(error: UniepError, *, as_json: bool) -> None:
    warn(str(error))
    if as_json:
        print_json({"ok": False, "diagnostics": diagnostics_json(error.diagnostics)})


def _bug(error: Exception) -> InternalError:
    """The error that stands for an exception that nobody expected. Its dump is the traceback."""
    with tempfile.NamedTemporaryFile("w", prefix="uniepc-", suffix=".traceback", delete=False) as file:
        file.write(traceback.format_exc())
    text = f"{type(error).__name__}: {error}".strip().partition("\n")[0]
    return InternalError(text, dumps=[Path(file.name)])
