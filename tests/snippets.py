"""Programs inside documents: a page's snippets are compiled, so that what it says stays true.

A fence ```uniep holds a program without errors, and a fence ```uniep-error CODE one with that error. A snippet may be
less than a program: blocks without the version line, or statements alone, which then stand in the layer below.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from uniep_compiler.compiler import make_settings
from uniep_compiler.diagnostics import UniepError
from uniep_compiler.frontend.bind import dims_to_bind
from uniep_compiler.frontend.lower import diagnose, lower
from uniep_compiler.frontend.parse import Program, parse
from uniep_compiler.passes.check_support import check_support
from uniep_compiler.passes.target import TARGETS

UNSUPPORTED = "UEP0401"
HEADER = """uniep 1

moe m(
    x       : bf16[T, H],
    experts : i32[T, K],
    weights : f32[T, K],
    w13     : bf16[E, 2*I, H],
    w2      : bf16[E, H, I],
) -> bf16[T, H] {
"""
# What statements may use without defining it, in order: each with what it is made of.
PRELUDE = {
    "r": ("route(experts)", ()),
    "xs": ("dispatch(x, r)", ("r",)),
    "h": ("group_gemm(xs, w13)", ("xs",)),
}
_FENCE = re.compile(r"^```uniep(?:-error (UEP\d{4}))?\n(.*?)^```$", re.DOTALL | re.MULTILINE)


@dataclass(frozen=True, kw_only=True)
class Snippet:
    page: str
    line: int
    code: str | None  # of the error or warning that it has to give
    text: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def snippets(page: Path) -> list[Snippet]:
    text = page.read_text("utf-8")
    return [
        Snippet(page=page.name, line=text.count("\n", 0, found.start()) + 1, code=found[1], text=found[2])
        for found in _FENCE.finditer(text)
    ]


def whole(text: str, code: str | None) -> str:
    """The program that a snippet stands for."""
    blocks = re.search(r"^(moe|schedule|uniep)\b", text, re.MULTILINE)
    if blocks:
        return text if re.search(r"^uniep\b", text, re.MULTILINE) or code == "UEP0104" else f"uniep 1\n{text}"
    own, prelude = set(re.findall(r"^(\w+)", text, re.MULTILINE)), ""
    for name, (value, needs) in PRELUDE.items():
        if own.intersection({name, *needs}):
            own.add(name)
        else:
            prelude += f"{name} = {value}\n"
    end = "" if "return" in text else "return combine(dispatch(x, r))\n"
    return f"{HEADER}{prelude}{text}{end}}}\n"


def check_buildable(program: Program) -> None:
    """UniepError for what the language has, and the back end refuses."""
    ops = lower(program)
    dims = {name: 2 if name == "K" else 32 for name in dims_to_bind(ops)}
    target = next(target for target in TARGETS if target.name == "sm_90")
    check_support(ops, make_settings(program, dims=dims, target=target, placement=(dims["E"],), local=True))


def codes(snippet: Snippet) -> tuple[str, ...]:
    """Codes of what a snippet gives: errors, and of warnings those that it is about."""
    try:
        program = parse(whole(snippet.text, snippet.code), str(snippet))
        found = diagnose(program)
        if snippet.code == UNSUPPORTED:
            check_buildable(program)
    except UniepError as error:
        return error.codes
    return tuple(d.code for d in found if d.severity == "error" or d.code == snippet.code)
