"""From times of single calls to the numbers that are reported.

The median over a turn's calls, then the median over rounds. Ratios are taken within each round first: a card's clock
moves with its temperature and with what ran before, and within a round all systems see nearly the same clock.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median

from benchmarks.jobs import Variant
from benchmarks.shapes import Shape

BASELINES = ("dense", "torch_grouped")
"""Systems that every other is compared with, where they ran."""

MAX_TEXT = 160
"""Characters of a failure in a table; the result file has more."""

MAX_RELATIVE_ERROR = 1e-2
"""What a bf16 result may differ from float64 by. A result beyond it is wrong, however fast."""


@dataclass(slots=True)
class Measured:
    """Everything that was seen of one system on one shape. `rounds_ms` has the median of each round's calls."""

    variant: Variant
    prepared: dict[str, object] = field(default_factory=dict)
    rounds_ms: list[float] = field(default_factory=list)
    errors: list[float] = field(default_factory=list)
    same_bits: bool = True
    failure: str = ""

    @property
    def status(self) -> str:
        """`ok`, `wrong` (it ran, and computed something else) or `failed`."""
        if self.failure:
            return "failed"
        within = all(math.isfinite(error) and error <= MAX_RELATIVE_ERROR for error in self.errors)
        return "ok" if within else "wrong"


COLUMNS = {
    "ms": 9,
    "TFLOP/s": 8,
    "spread": 7,
    "/dense": 7,
    "/torch": 7,
    "error": 8,
    "bits": 5,
    "GiB": 6,
    "first s": 8,
}
"""Titles and widths of the text table. /dense and /torch are ratios of rates, GiB is memory beside the inputs."""


def teraflops(flops: int, milliseconds: float) -> float:
    """10¹² operations per second."""
    return flops / milliseconds / 1e9


def spread(values: Sequence[float]) -> float:
    """How far the rounds lie apart, relative to their median."""
    return (max(values) - min(values)) / median(values)


def ratio_to(measured: Measured, baseline: Measured | None) -> float | None:
    """The median over rounds of the ratio of rates. None where a round of either is missing."""
    if baseline is None or not baseline.rounds_ms or len(baseline.rounds_ms) != len(measured.rounds_ms):
        return None
    flops, base_flops = _flops(measured), _flops(baseline)
    pairs = zip(measured.rounds_ms, baseline.rounds_ms, strict=True)
    return median(teraflops(flops, mine) / teraflops(base_flops, base) for mine, base in pairs)


def system_record(measured: Measured, baselines: dict[str, Measured]) -> dict[str, object]:
    """One system on one shape, as the result file has it."""
    record: dict[str, object] = {
        "name": measured.variant.name,
        "system": measured.variant.system,
        "schedule": dict(measured.variant.schedule),
        "status": measured.status,
        **measured.prepared,
    }
    if measured.failure:
        record["failure"] = measured.failure
    if measured.errors:
        worst = max(measured.errors, key=lambda error: error if math.isfinite(error) else math.inf)
        record |= {"relative_error": _finite(worst), "same_bits": measured.same_bits}
    if measured.rounds_ms:
        milliseconds = median(measured.rounds_ms)
        record |= {
            "ms": milliseconds,
            "tflops": teraflops(_flops(measured), milliseconds),
            "spread": spread(measured.rounds_ms),
            "rounds_ms": measured.rounds_ms,
            **{f"to_{name}": ratio_to(measured, baselines.get(name)) for name in BASELINES},
        }
    return record


def shape_record(shape: Shape, systems: Sequence[Measured]) -> dict[str, object]:
    """One shape, as the result file has it."""
    baselines = {measured.variant.system: measured for measured in systems if measured.variant.system in BASELINES}
    return {
        "name": shape.name,
        **shape.sizes,
        "flops": shape.flops,
        "systems": [system_record(measured, baselines) for measured in systems],
    }


def text_table(shape: dict[str, object]) -> str:
    """A shape's record as a short table for a terminal."""
    systems: list[dict[str, object]] = shape["systems"]  # type: ignore[assignment]
    width = max([len(str(system["name"])) for system in systems], default=0)
    sizes = ", ".join(f"{name} {shape[name]}" for name in ("T", "E", "K", "H", "I"))
    head = " ".join([" " * width, *(f"{title:>{column}}" for title, column in COLUMNS.items())])
    return "\n".join([f"{shape['name']} ({sizes})", head, *(_text_row(system, width) for system in systems)])


def _text_row(system: dict[str, object], width: int) -> str:
    cells = _cells(system) if "ms" in system else []
    state = [] if system["status"] == "ok" else [f"{system['status']}: {_one_line(str(system.get('failure', '')))}"]
    columns = zip(cells, COLUMNS.values(), strict=False)
    return " ".join([f"{system['name']!s:{width}}", *(f"{cell:>{column}}" for cell, column in columns), *state])


def _cells(system: dict[str, object]) -> list[str]:
    return [
        _cell(system["ms"], ".3f"),
        _cell(system["tflops"], ".1f"),
        _cell(system["spread"], ".1%"),
        _cell(system["to_dense"], ".3f"),
        _cell(system["to_torch_grouped"], ".3f"),
        _cell(system["relative_error"], ".1e"),
        "same" if system["same_bits"] else "vary",
        _cell(system.get("peak_bytes"), ".2f", 2**-30),
        _cell(system.get("first_call_s"), ".1f"),
    ]


def _cell(value: object, form: str, scale: float = 1.0) -> str:
    return "-" if value is None else format(scale * float(value), form)  # type: ignore[arg-type]


def _one_line(text: str) -> str:
    return " ".join(text.split())[:MAX_TEXT]


def _flops(measured: Measured) -> int:
    return int(str(measured.prepared["flops"]))


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
