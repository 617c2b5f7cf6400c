"""`uniepc explain`: the page about an error code."""

from __future__ import annotations

from difflib import get_close_matches
from typing import Annotated

import typer

from uniep_compiler.cli.failures import UsageError, guarded
from uniep_compiler.cli.options import AsJson
from uniep_compiler.cli.output import print_json, print_markdown, print_table
from uniep_compiler.diagnostics import CODES, explain

Code = Annotated[str | None, typer.Argument(metavar="CODE", help="A code such as UEP0201.", show_default=False)]


@guarded
def explain_command(code: Code = None, as_json: AsJson = False) -> None:
    """Print the page about an error code, or a list of all codes."""
    if code is None:
        _list(as_json)
        return
    code = code.upper()
    page = _page(code)
    if as_json:
        print_json({"ok": True, "code": code, "title": CODES[code], "page": page})
    else:
        print_markdown(page)


def _list(as_json: bool) -> None:
    if as_json:
        print_json({"ok": True, "codes": dict(CODES)})
    else:
        print_table("codes", ("code", "what is wrong"), CODES.items())


def _page(code: str) -> str:
    try:
        return explain(code)
    except KeyError:
        near = get_close_matches(code, CODES, n=1)
        help_ = f"did you mean {near[0]}? `uniepc explain` lists all" if near else "`uniepc explain` lists all codes"
        raise UsageError(f"there is no code {code}", help_) from None
    except FileNotFoundError:
        return f"# {code}: {CODES[code]}\n"
