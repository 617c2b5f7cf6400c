"""Renders a view into the source of a generated module."""

from __future__ import annotations

import re
from dataclasses import dataclass

from uniep_compiler.codegen.kernel_view import kernel_view
from uniep_compiler.codegen.loader import environment
from uniep_compiler.codegen.view import FamilyView, KernelView, LaunchView
from uniep_compiler.ir.schedule import Schedule
from uniep_compiler.passes.settings import Settings

PRELUDE = ("arith_{}", "place_{}", "numeric_{}", "sync_{}", "activations", "index")
"""Parts of a module's prelude; `{}` stands for `interpreted` or `compiled`."""

_NAME = re.compile(r"[A-Za-z_][A-Za-z_0-9]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Emitted:
    """A generated module's source, and the view that the host needs to call its kernels."""

    source: str
    view: KernelView


def emit(schedule: Schedule, settings: Settings) -> Emitted:
    """The source of the kernels of a schedule: deterministic, formatted, free of paths and dates."""
    view = kernel_view(schedule, settings)
    return Emitted(source=render(view), view=view)


def render(view: KernelView) -> str:
    """The text of a module."""
    mode = "interpreted" if view.interpreted else "compiled"
    prelude = [_render(f"prelude/{part.format(mode)}.py.jinja", **_shared(view)) for part in PRELUDE]
    prelude.append(_render("triton/leave.py.jinja", k=view, **_shared(view)))
    families = {family.name: _family_text(family, view) for family in view.families}
    launches = [_launch_context(launch, families, view) for launch in view.launches]
    text = _render(
        "triton/kernel.py.jinja",
        k=view,
        imports=prelude[0].strip("\n"),
        prelude=[part.strip("\n") for part in prelude[1:]],
        families=list(families.values()),
        launches=launches,
        **_shared(view),
    )
    return text.rstrip("\n") + "\n"


def _render(template: str, **context: object) -> str:
    return environment().get_template(template).render(**context)


def _shared(view: KernelView) -> dict[str, object]:
    return {"uses_tma": view.uses_tma, "dot_precision": view.dot_precision}


@dataclass(frozen=True, slots=True, kw_only=True)
class _FamilyText:
    """A family's function: its name, the arguments after `index`, and its text."""

    name: str
    const: str
    params: tuple[str, ...]
    text: str


def _family_text(family: FamilyView, view: KernelView) -> _FamilyText:
    fields = {**{name: getattr(family, name) for name in family.__slots__}, **family.body}
    draft = _render("triton/family.py.jinja", f={**fields, "params": ()}, **_shared(view))
    params = _used(draft, _available(view), family.decode)
    text = _render("triton/family.py.jinja", f={**fields, "params": params}, **_shared(view))
    return _FamilyText(name=family.name, const=family.const, params=params, text=text.strip("\n"))


def _available(view: KernelView) -> tuple[str, ...]:
    """Names that the entry function can hand down: its arguments, and what it makes of them."""
    made = ("board", "num_tiles", "total_rows") if view.local else ("board", "rank")
    return (*made, *view.arguments)


def _used(text: str, available: tuple[str, ...], decode: tuple[str, ...] = ()) -> tuple[str, ...]:
    """The available names in a text, in their own order, without those that the text itself assigns."""
    names = set(_NAME.findall(re.sub(r"#.*|\"\"\".*?\"\"\"", "", text)))
    assigned = {line.split(" = ")[0] for line in decode}
    return tuple(name for name in available if name in names and name not in assigned)


def _launch_context(launch: LaunchView, families: dict[str, _FamilyText], view: KernelView) -> dict[str, object]:
    lines = "\n".join(line for stage in launch.stages for line in stage.lines)
    if view.local:
        params = _used(lines, ("num_tiles", "total_rows", *view.arguments))
    else:
        params = tuple(dict.fromkeys(("totals", "token_start", *_used(lines, view.arguments))))
    fields = {name: getattr(launch, name) for name in launch.__slots__}
    return {**fields, "locate_params": params, "families": [families[name] for name in launch.families]}
