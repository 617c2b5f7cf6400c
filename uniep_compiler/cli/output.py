"""How commands speak: results on stdout, everything else on stderr. Rich is imported where something is drawn."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from io import StringIO

from uniep_compiler.diagnostics import Diagnostic


def print_text(text: str) -> None:
    """Print a text on stdout as it is."""
    sys.stdout.write(text if text.endswith("\n") else f"{text}\n")


def warn(text: str) -> None:
    """Print a text on stderr as it is."""
    sys.stderr.write(f"{text}\n")


class _Warnings(logging.Handler):
    """Shows what the package's modules log as commands show warnings."""

    def emit(self, record: logging.LogRecord) -> None:
        warn(f"{record.levelname.lower()}: {record.getMessage()}")


_HANDLER = _Warnings(logging.WARNING)


def show_logged_warnings() -> None:
    """Print what the package logs from now on, on stderr, with `warning:` in front."""
    logging.getLogger("uniep_compiler").addHandler(_HANDLER)


def print_json(value: Mapping[str, object]) -> None:
    """Print one JSON object on stdout."""
    print_text(json.dumps(value, indent=2, ensure_ascii=False))


def print_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]], width: int = 10_000) -> None:
    """Print a table on stdout, and a blank line.

    It is at most as wide as the terminal, or where there is none as `width`.
    """
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(title=title, title_justify="left", title_style="bold", box=SIMPLE_HEAD, pad_edge=False, expand=False)
    for name in columns:
        table.add_column(name, overflow="fold")
    for row in rows:
        table.add_row(*(Text(str(cell)) for cell in row))
    if sys.stdout.isatty():
        Console(file=sys.stdout).print(table, "")
        return
    buffer = StringIO()
    Console(file=buffer, width=width).print(table)
    print_text("".join(f"{line.rstrip()}\n" for line in buffer.getvalue().splitlines()) + "\n")


def print_markdown(text: str) -> None:
    """Print a page on stdout: drawn on a terminal, as it is elsewhere."""
    if not sys.stdout.isatty():
        print_text(text)
        return
    from rich.console import Console
    from rich.markdown import Markdown

    Console(file=sys.stdout).print(Markdown(text))


@contextmanager
def progress(what: str) -> Iterator[None]:
    """Say on stderr what is being done while it is done, if somebody is there to see it."""
    if not sys.stderr.isatty():
        yield
        return
    from rich.console import Console

    with Console(stderr=True).status(what):
        yield


def diagnostics_json(diagnostics: Iterable[Diagnostic]) -> list[dict[str, object]]:
    """Diagnostics as JSON: code, severity, message, labels with lines and columns, notes and help."""
    return [
        {
            "code": diagnostic.code,
            "severity": str(diagnostic.severity),
            "message": diagnostic.message,
            "labels": [
                {**asdict(label.span), "text": label.text, "primary": label.primary} for label in diagnostic.labels
            ],
            "notes": list(diagnostic.notes),
            "help": diagnostic.help,
        }
        for diagnostic in diagnostics
    ]
