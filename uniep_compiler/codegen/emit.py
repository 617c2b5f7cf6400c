"""Renders a view into the source of a generated module."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace

from uniep_compiler.codegen.as_int import without_as_int
from uniep_compiler.codegen.kernel_view import kernel_view
from uniep_compiler.codegen.layout import fit_lines
from uniep_compiler.codegen.loader import environment
from uniep_compiler.codegen.names import MADE
from uniep_compiler.codegen.prelude import needed, statements, words
from uniep_compiler.codegen.view import ConstantGroup, FamilyView, KernelView, LaunchView
from uniep_compiler.ir.ops import OpGraph
from uniep_compiler.ir.schedule import Schedule
from uniep_compiler.passes.settings import Settings

PRELUDE = (
    "prelude/arith_{}",
    "prelude/place_{}",
    "prelude/numeric_{}",
    "prelude/activations",
    "prelude/sync_{}",
    "prelude/index",
    "triton/leave",
)
"""Parts of a module's prelude; `{}` stands for `interpreted` or `compiled`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Emitted:
    """A generated module's source, and the view that the host needs to call its kernels."""

    source: str
    view: KernelView


@dataclass(frozen=True, slots=True, kw_only=True)
class FamilyText:
    """A family's function: its name, the arguments after `index`, and its text."""

    name: str
    const: str
    params: tuple[str, ...]
    text: str


def emit(schedule: Schedule, settings: Settings, ops: OpGraph, direction: str = "forward") -> Emitted:
    """The source of the kernels of a schedule, which was made of `ops`: deterministic, formatted, without dates."""
    return render(kernel_view(schedule, settings, ops, direction))


def render(view: KernelView) -> Emitted:
    """The text of a module. Arguments, constants and functions that nothing uses are left out, also of the view."""
    families = {family.name: _family_text(family, view) for family in view.families}
    launches = [_launch_fields(launch, families, view) for launch in view.launches]
    used = words(_kernels(launches, view, arguments=()))
    view = replace(
        view,
        arguments=tuple(name for name in view.arguments if name in used),
        run_time_counts=tuple(name for name in view.run_time_counts if name in used),
    )
    kernels = _kernels(launches, view, arguments=view.arguments)
    used = words("\n".join((kernels, *(family.text for family in families.values()))))
    prelude = needed(statements(_prelude(view)), used)
    used = used.union(*(statement.words for statement in prelude))
    text = _render(
        "triton/module.py.jinja",
        k=view,
        imports="\n".join(statement.text for statement in prelude if statement.is_import),
        constants=_constants(view, used),
        prelude="\n\n\n".join(statement.text for statement in prelude if not statement.is_import),
        families=list(families.values()),
        kernels=kernels,
    )
    return Emitted(source=fit_lines(text).rstrip("\n") + "\n", view=view)


def _prelude(view: KernelView) -> str:
    mode = "interpreted" if view.interpreted else "compiled"
    fields = {"uses_tma": view.uses_tma, "dot_precision": view.dot_precision}
    return "\n\n".join(_render_code(f"{part.format(mode)}.py.jinja", view, **fields) for part in PRELUDE)


def _kernels(launches: list[dict[str, object]], view: KernelView, arguments: tuple[str, ...]) -> str:
    """The entry functions, and what finds their tasks."""
    # Interpreted, a scalar argument comes as a block of one.
    counts = [name for name in view.run_time_counts if name in arguments] if view.interpreted else []
    context = {"k": view, "launches": launches, "arguments": arguments, "counts": counts}
    return _render_code("triton/kernel.py.jinja", view, **context).strip("\n")


def _constants(view: KernelView, used: Collection[str]) -> list[ConstantGroup]:
    """The groups of constants without those that nothing uses."""
    groups = [
        replace(group, constants=tuple(constant for constant in group.constants if constant.name in used))
        for group in view.constants
    ]
    return [group for group in groups if group.constants]


def _render(template: str, **context: object) -> str:
    return environment().get_template(template).render(**context)


def _render_code(template: str, view: KernelView, **context: object) -> str:
    """The text of a template of functions, without `as_int` where they are compiled."""
    text = _render(template, **context)
    return text if view.interpreted else without_as_int(text)


def _family_text(family: FamilyView, view: KernelView) -> FamilyText:
    fields = {**{name: getattr(family, name) for name in family.__slots__}, **family.body}
    draft = _render_code("triton/family.py.jinja", view, f={**fields, "params": ()})
    params = _used(draft, (*MADE, *view.arguments), family.decode)
    text = _render_code("triton/family.py.jinja", view, f={**fields, "params": params})
    return FamilyText(name=family.name, const=family.const, params=params, text=text.strip("\n"))


def _used(text: str, available: Iterable[str], decode: Iterable[str] = ()) -> tuple[str, ...]:
    """The available names in a text, in their own order, without those that the text itself assigns."""
    found = words(text)
    assigned = {name.strip() for line in decode for name in line.split(" = ")[0].split(",")}
    return tuple(dict.fromkeys(name for name in available if name in found and name not in assigned))


def _launch_fields(launch: LaunchView, families: dict[str, FamilyText], view: KernelView) -> dict[str, object]:
    """What the kernel's template sees of a launch: with the arguments of its families, and the counts that it needs."""
    mine = [families[name] for name in launch.families]
    stages = [
        stage
        if view.local
        else replace(stage, lines=(*_counts(words("\n".join(stage.lines)), "candidate"), *stage.lines))
        for stage in launch.stages
    ]
    lines = [line for stage in stages for line in stage.lines]
    params = _used("\n".join(lines), (*(MADE if view.local else ()), *view.arguments), lines)
    counted = words(" ".join(launch.num_tasks))
    if view.local:
        counted = counted.union(params, *(family.params for family in mine))
    return {
        **{name: getattr(launch, name) for name in launch.__slots__},
        "stages": stages,
        "locate_params": params,
        "families": mine,
        "uses_board": any("board" in family.params for family in mine),
        "made_lines": _counts(counted, "0" if view.local else "rank", local=view.local),
    }


def _counts(used: Collection[str], rank: str, local: bool = False) -> tuple[str, ...]:
    """Lines that read those of a rank's counts that are used. On one local rank the tokens are an argument."""
    texts = {
        "num_tiles": f"num_tiles_of(totals, {rank})",
        "total_rows": f"num_rows_of(totals, {rank})",
        "tokens": f"num_tokens_of(token_start, {rank})",
    }
    return tuple(
        f"{name} = {text}" for name, text in texts.items() if name in used and not (local and name == "tokens")
    )
