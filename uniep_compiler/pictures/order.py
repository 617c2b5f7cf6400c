"""The linear order as a strip: a box for each segment, striped like its interleaving, launch by launch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import assert_never

from uniep_compiler.ir.schedule import Interleave, Schedule, Segment, Slice
from uniep_compiler.ir.tasks import Role, TaskGraph
from uniep_compiler.pictures.diagram import plain
from uniep_compiler.pictures.style import style_sheet
from uniep_compiler.pictures.svg import document, element, text, title

_WIDTH, _HEIGHT = 68.0, 34.0
_GAP, _STAGE_GAP = 6.0, 22.0
_MOST = 14  # segments in a line
_LEFT = 96.0
_LINE_GAP = 34.0
_STEPS = 2  # of an interleaving, as it is drawn
_LEAST = 0.08  # of a step, for a family with few tasks in it


_Look = tuple[Role, float | None]
"""Of a family: its role, and how opaque its filling is, where it is not wholly."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """A segment with its number over all launches, from 1. `opens` says that a stage starts with it."""

    number: int
    launch: str
    opens: bool
    segment: Segment

    @property
    def steps(self) -> str:
        """How many times its families take turns; empty where there is one family."""
        return plain(self.segment.steps) if isinstance(self.segment, Interleave) else ""

    @property
    def members(self) -> tuple[tuple[str, str], ...]:
        """Its families with what they run: a number per step, or of tasks."""
        match self.segment:
            case Slice(family=family, count=count):
                return ((family, plain(count)),)
            case Interleave(members=members):
                return tuple((member.family, str(member.per_step)) for member in members)
            case _:
                assert_never(self.segment)


def pieces(schedule: Schedule) -> tuple[Piece, ...]:
    """The segments of a schedule in order."""
    found: list[Piece] = []
    for launch in schedule.launches:
        for stage in launch.stages:
            for place, segment in enumerate(stage.segments):
                found.append(Piece(number=len(found) + 1, launch=launch.name, opens=place == 0, segment=segment))
    return tuple(found)


def order_svg(schedule: Schedule) -> str:
    """The strip as SVG: a line per launch (more, where it is long), and a gap where a stage ends."""
    looks = _looks(schedule.graph)
    body: list[str] = []
    width, y = 0.0, 8.0
    for launch in schedule.launches:
        mine = [piece for piece in pieces(schedule) if piece.launch == launch.name]
        body.append(text(launch.name, 4, y + _HEIGHT / 2 + 4, class_="u-launch-name"))
        for start in range(0, len(mine), _MOST):
            x = _LEFT
            for place, piece in enumerate(mine[start : start + _MOST]):
                x += _STAGE_GAP - _GAP if piece.opens and place else 0.0
                body += _drawn(piece, looks, x, y)
                x += _WIDTH + _GAP
            width = max(width, x)
            y += _HEIGHT + _LINE_GAP
    return document(width + 8, max(y - 8, 1.0), "the linear order", style_sheet(), body)


def _looks(graph: TaskGraph) -> dict[str, _Look]:
    """Families of one role are filled more and less, in turn."""
    seen: Counter[Role] = Counter()
    looks: dict[str, _Look] = {}
    for family in graph.families:
        looks[family.name] = (family.role, None if seen[family.role] % 2 == 0 else 0.35)
        seen[family.role] += 1
    return looks


def _drawn(piece: Piece, looks: Mapping[str, _Look], x: float, y: float) -> Iterator[str]:
    families = "\n".join(f"{name}: {count}{' per step' if piece.steps else ' tasks'}" for name, count in piece.members)
    whole = f"segment {piece.number}" + (f", {piece.steps} steps" if piece.steps else "")
    yield element("g", title(f"{whole}\n{families}"), *_stripes(piece, looks, x, y))
    yield text(str(piece.number), x + _WIDTH / 2, y + _HEIGHT + 14, class_="u-small", text_anchor="middle")


def _stripes(piece: Piece, looks: Mapping[str, _Look], x: float, y: float) -> Iterator[str]:
    """Stripes as wide as a family's part of a step, but never too thin to see."""
    if isinstance(piece.segment, Slice):
        parts, steps = {piece.segment.family: 1.0}, 1
    else:
        total = sum(member.per_step for member in piece.segment.members)
        parts = {m.family: max(m.per_step / total, _LEAST) for m in piece.segment.members}
        steps = _STEPS if len(parts) > 1 else 1
    scale = _WIDTH / steps / sum(parts.values())
    for _ in range(steps):
        for family, part in parts.items():
            role, opacity = looks[family]
            box = element("rect", class_="u-box", x=x, y=y, width=part * scale, height=_HEIGHT, fill_opacity=opacity)
            yield element("g", box, class_=f"u-{role}")
            x += part * scale
