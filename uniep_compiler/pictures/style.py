"""How pictures look: a colour for each role, and the style sheet of families, buffers, signals and wires."""

from __future__ import annotations

from dataclasses import dataclass

from uniep_compiler.ir.tasks import Role


@dataclass(frozen=True, slots=True)
class Colours:
    """Of a role: filling, and line and text on it."""

    fill: str
    line: str


ROLES = {
    Role.COMM: Colours("#dbeafe", "#1d4ed8"),
    Role.RELAY: Colours("#cffafe", "#0e7490"),
    Role.COMPUTE: Colours("#ffedd5", "#c2410c"),
    Role.PUSH: Colours("#ede9fe", "#6d28d9"),
    Role.REDUCE: Colours("#dcfce7", "#15803d"),
}

MEANINGS = {
    Role.COMM: "sends rows to other ranks",
    Role.RELAY: "hands arrived rows on",
    Role.COMPUTE: "a tile of a grouped GEMM",
    Role.PUSH: "returns finished rows",
    Role.REDUCE: "sums a token's routes",
}


def style_sheet() -> str:
    """The rules of all pictures. Classes start with `u-`, so that a page can hold them beside its own."""
    roles = "".join(
        f".u-{role} .u-box, rect.u-{role} {{ fill: {colours.fill}; stroke: {colours.line} }}"
        f" .u-{role} .u-role {{ fill: {colours.line} }}\n"
        for role, colours in ROLES.items()
    )
    return f"\n{roles}{_SHEET}"


_SHEET = """\
text { fill: #1e293b }
.u-page { fill: #ffffff }
.u-box { stroke-width: 1.5 }
.u-name { font-weight: bold }
.u-role { font-weight: bold }
.u-small { font-size: 10.5px; fill: #475569 }
.u-heading { font-size: 15px; font-weight: bold }
.u-buffer .u-box { fill: #f1f5f9; stroke: #94a3b8; stroke-width: 1 }
.u-input .u-box { fill: #ffffff }
.u-output .u-box { fill: #ffffff; stroke: #1e293b; stroke-width: 2 }
.u-symmetric .u-box { stroke: #1d4ed8; stroke-dasharray: 2 2; stroke-width: 1.5 }
.u-signal .u-box { fill: #fff1f2; stroke: #be123c; stroke-width: 1 }
.u-signal text.u-name { fill: #9f1239 }
.u-launch { fill: #f8fafc; stroke: #cbd5e1; stroke-dasharray: 6 4 }
.u-launch-name { fill: #64748b; font-weight: bold }
.u-wire { fill: none; stroke: #64748b; stroke-width: 1.2 }
.u-post, .u-wait { stroke: #be123c; stroke-dasharray: 5 3 }
.u-remote { stroke-width: 2.4 }
.u-tip { fill: #64748b }
.u-tip-signal { fill: #be123c }
"""
