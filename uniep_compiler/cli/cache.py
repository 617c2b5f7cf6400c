"""`uniepc cache`: what the disk cache holds, and how to empty it."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby
from typing import Annotated, Any

import typer

from uniep_compiler.cli.failures import UsageError, guarded
from uniep_compiler.cli.options import AsJson
from uniep_compiler.cli.output import print_json, print_table, print_text
from uniep_compiler.runtime.cache import CACHE_VARIABLE, Stored, cache_root, clear, stored
from uniep_compiler.runtime.folder import UntrustedError

Days = Annotated[
    float, typer.Option("--older-than", min=0.0, metavar="DAYS", help="Only what was not used for so many days.")
]

cache_app = typer.Typer(invoke_without_command=True)


@cache_app.callback()
def cache_command(context: typer.Context, as_json: AsJson = False) -> None:
    """Show what the cache of generated modules and proofs holds; `clear` empties it."""
    if context.invoked_subcommand is None:
        show(as_json=as_json)


@guarded
def show(*, as_json: bool) -> None:
    """Print where the cache is, and its entries by name."""
    with _blaming_the_folder():
        root, rows = str(cache_root()), _rows(stored())
    total = {"count": sum(row["count"] for row in rows), "bytes": sum(row["bytes"] for row in rows)}
    if as_json:
        print_json({"ok": True, "folder": root, **total, "entries": rows})
        return
    if rows:
        print_table(
            f"{total['count']} files, {_size(total['bytes'])}",
            ("name", "kind", "files", "size", "last used"),
            ((row["name"], row["kind"], row["count"], _size(row["bytes"]), _age(row["used"])) for row in rows),
        )
    print_text(f"{'in' if rows else 'nothing in'} {root}; {CACHE_VARIABLE} names another place")


@cache_app.command("clear")
@guarded
def clear_command(context: typer.Context, older_than: Days = 0.0, as_json: AsJson = False) -> None:
    """Remove what the cache holds. Files that are not its own stay."""
    as_json = as_json or bool(context.parent and context.parent.params["as_json"])  # `uniepc cache --json clear`
    with _blaming_the_folder():
        root, removed = str(cache_root()), clear(older_than)
    num_bytes = sum(one.file.num_bytes for one in removed)
    if as_json:
        print_json({"ok": True, "folder": root, "count": len(removed), "bytes": num_bytes})
    else:
        print_text(f"removed {len(removed)} files, {_size(num_bytes)}, from {root}")


@contextmanager
def _blaming_the_folder() -> Iterator[None]:
    try:
        yield
    except UntrustedError as error:
        raise UsageError(f"the cache is not used: {error}", error.mend) from None
    except OSError as error:
        raise UsageError(f"the cache cannot be used: {error}", f"{CACHE_VARIABLE} names another place") from None


def _rows(files: Sequence[Stored]) -> list[dict[str, Any]]:
    """One row for each name and kind: the files of one program lie together."""

    def key(one: Stored) -> tuple[str, str]:
        return (one.name, one.kind)

    rows = []
    for (name, kind), group in groupby(sorted(files, key=key), key=key):
        members = [one.file for one in group]
        rows.append(
            {
                "name": name or "(unfinished)",
                "kind": kind,
                "count": len(members),
                "bytes": sum(file.num_bytes for file in members),
                "used": max(file.used for file in members),
            }
        )
    return rows


def _size(num_bytes: int) -> str:
    return f"{num_bytes / 1024:.0f} KiB" if num_bytes < 1024**2 else f"{num_bytes / 1024**2:.1f} MiB"


def _age(used: float) -> str:
    hours = max(0.0, time.time() - used) / 3600
    if hours < 1:
        return "within the hour"
    return f"{hours:.0f} h ago" if hours < 48 else f"{hours / 24:.0f} days ago"
