"""What was built, as plain values for `--json`, and the tables that people get of them."""

from __future__ import annotations

from dataclasses import fields
from enum import Enum
from typing import Any

from uniep_compiler.cli.output import diagnostics_json, print_table, print_text
from uniep_compiler.cli.request import Request
from uniep_compiler.compiler import Compiled
from uniep_compiler.ir.index import Expr
from uniep_compiler.ir.index_text import print_expr
from uniep_compiler.ir.schedule import Launch, families_of
from uniep_compiler.ir.tasks import Buffer, Family, GemmBody, Signal
from uniep_compiler.passes.linearise import default_lag
from uniep_compiler.passes.settings import Settings

Json = dict[str, Any]


def request_json(request: Request) -> Json:
    """What was asked for."""
    settings = request.settings
    return {
        "layer": request.ops.name,
        "file": request.program.source.name,
        "target": settings.target.name,
        "dtype": str(request.dtype),
        "dims": dict(settings.dims),
        "ranks": settings.ranks,
        "virtual": not settings.local,
        "placement": list(settings.placement),
        "options": options_json(settings),
        "warnings": diagnostics_json(request.warnings),
    }


def options_json(settings: Settings) -> Json:
    """Every schedule option, with what the compiler chose where nothing was said; None where it is left to the call."""
    values = {field.name: getattr(settings.options, field.name) for field in fields(settings.options)}
    values |= {name: getattr(settings, name) for name in ("relay", "send", "order", "lanes")}
    values["tiles"] = {name: list(shape) for name, shape in settings.options.tiles}
    return {key: str(value) if isinstance(value, Enum) else value for key, value in values.items()}


def compiled_json(compiled: Compiled) -> Json:
    """What was made: launches, families, buffers, signals."""
    graph = compiled.schedule.graph
    return {
        "launches": [
            _launch_json(view.name, launch, compiled)
            for view, launch in zip(compiled.kernels.view.launches, compiled.schedule.launches, strict=True)
        ],
        "families": [_family_json(family) for family in graph.families],
        "buffers": [_buffer_json(buffer) for buffer in graph.buffers],
        "signals": [_signal_json(signal) for signal in graph.signals],
        "tile_rows": graph.tile_rows,
        "block": graph.block,
    }


def _launch_json(kernel: str, launch: Launch, compiled: Compiled) -> Json:
    names = list(dict.fromkeys(name for segment in launch.segments for name in families_of(segment)))
    families = [compiled.schedule.graph.family(name) for name in names]
    return {
        "kernel": kernel,
        "families": names,
        "segments": len(launch.segments),
        "lag": _lag([family for family in families if family.domain[0].coord == "tile"], compiled.settings),
        "workers": compiled.settings.options.workers or (1 if compiled.settings.target.interpreted else None),
    }


def _lag(tiled: list[Family], settings: Settings) -> int | None:
    """Groups of tiles that a family of a pipeline stays behind the one before; None where there is no pipeline."""
    return (settings.options.lag or default_lag(tiled, settings)) if len(tiled) > 1 else None


def _family_json(family: Family) -> Json:
    body = family.body
    return {
        "name": family.name,
        "role": str(family.role),
        "value": family.value,
        "line": family.span.line or None,
        "domain": {part.coord: _text(part.extent) for part in family.domain},
        "tile": [body.tile.rows, body.tile.cols, body.tile.depth] if isinstance(body, GemmBody) else None,
        "waits": [wait.signal for wait in family.waits],
        "posts": [post.signal for post in family.posts],
    }


def _buffer_json(buffer: Buffer) -> Json:
    shape = [_text(buffer.rows), _text(buffer.cols)]
    return {
        "name": buffer.name,
        "kind": str(buffer.kind),
        "dtype": str(buffer.dtype),
        "shape": [str(buffer.experts), *shape] if buffer.experts else shape,
    }


def _signal_json(signal: Signal) -> Json:
    return {
        "name": signal.name,
        "counters": _text(signal.extent),
        "scope": str(signal.scope),
        "phase": signal.phase,
    }


def _text(expr: Expr) -> str:
    return print_expr(expr).replace("$", "")


# -- for people -------------------------------------------------------------------------------------------------------


def print_built(made: Json) -> None:
    """The tables of a compilation."""
    print_text(f"options: {_options_text(made['options'])}\n")
    print_table(
        _count(made["families"], "task family", "task families"),
        ("family", "role", "makes", "line", "tasks", "tile", "waits for", "posts"),
        map(_family_row, made["families"]),
    )
    print_table(
        _count(made["buffers"], "buffer", "buffers"),
        ("buffer", "kind", "dtype", "shape"),
        ((b["name"], b["kind"], b["dtype"], ", ".join(b["shape"])) for b in made["buffers"]),
    )
    if made["signals"]:
        print_table(
            _count(made["signals"], "signal", "signals"),
            ("signal", "counters", "scope", "phase"),
            ((s["name"], s["counters"], s["scope"], s["phase"] or "") for s in made["signals"]),
        )
    print_table(
        _count(made["launches"], "launch", "launches"),
        ("kernel", "families in order", "lag", "workers"),
        map(_launch_row, made["launches"]),
    )


def _launch_row(launch: Json) -> tuple[object, ...]:
    workers = launch["workers"] or "one per multiprocessor"
    return launch["kernel"], " ".join(launch["families"]), launch["lag"] or "", workers


def _options_text(options: Json) -> str:
    """As a schedule block would say it."""
    tiles = {f"tile({name})": f"({', '.join(map(str, shape))})" for name, shape in options["tiles"].items()}
    said = {key: value for key, value in options.items() if key != "tiles" and value is not None}
    return ", ".join(f"{key} = {value}" for key, value in {**said, **tiles}.items())


def _family_row(family: Json) -> tuple[object, ...]:
    return (
        family["name"],
        family["role"],
        family["value"],
        family["line"] or "",
        " * ".join(_factor(extent) for extent in family["domain"].values()),
        " x ".join(map(str, family["tile"] or ())),
        " ".join(family["waits"]),
        " ".join(family["posts"]),
    )


def _factor(extent: str) -> str:
    return f"({extent})" if " " in extent and not extent.endswith(")") else extent


def _count(things: list[Json], one: str, many: str) -> str:
    return f"{len(things)} {one if len(things) == 1 else many}"
