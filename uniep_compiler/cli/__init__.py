"""The command line, `uniepc`: one file per command, and `app.py` that puts them together."""

from __future__ import annotations

from uniep_compiler.cli.app import main

__all__ = ["main"]
