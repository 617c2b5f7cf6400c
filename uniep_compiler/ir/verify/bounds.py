"""Rules about room: accesses lie inside buffers that the rank can reach, posts and waits inside their signals."""

from __future__ import annotations

from collections.abc import Iterator

from uniep_compiler.diagnostics import Diagnostic
from uniep_compiler.ir.index import Expr
from uniep_compiler.ir.schedule import SignalPlace
from uniep_compiler.ir.tasks import BufferKind, Family, Post, Wait
from uniep_compiler.ir.verify.context import Context, Frame
from uniep_compiler.ir.verify.linear import ZERO, Linear
from uniep_compiler.ir.verify.model import Model, Use
from uniep_compiler.ir.verify.report import about


def check_accesses_lie_inside_their_buffers(model: Model) -> Iterator[Diagnostic]:
    """Rows, columns and ranks of every access are there."""
    for use in model.uses:
        if not _lies_inside(model, use):
            verb = "writes" if use.is_write else "reads"
            yield about(
                "UEP0321",
                f"`{use.family.name}` {verb} places that `{use.access.buffer}` may not have",
                use.family,
                note="could not prove that the rows, the columns and the rank of the access are inside the buffer",
                help="compare the access with the extents of the buffer, and what its conditions leave out",
            )


def _lies_inside(model: Model, use: Use) -> bool:
    buffer = model.graph.buffer(use.access.buffer)
    shared, element = model.element(use.family, use.access)
    context = shared.copy()
    frame = Frame(rank=element.owner, coords={})
    rows = context.term(buffer.rows, frame).times(max(1, buffer.experts))
    cols = context.term(buffer.cols, frame)
    context.saturate()
    return _is_between(context, element.owner, Linear.number(model.graph.ranks)) and (
        _is_between(context, element.row, rows) and _is_between(context, element.column, cols)
    )


def _is_between(context: Context, value: Linear, high: Linear) -> bool:
    return context.proves(value, high.minus(value).shifted(-1))


def check_other_ranks_touch_symmetric_memory_only(model: Model) -> Iterator[Diagnostic]:
    """What is accessed on another rank is in symmetric memory."""
    for use in model.uses:
        if model.is_remote(use.access) and model.graph.buffer(use.access.buffer).kind is not BufferKind.SYMMETRIC:
            yield about(
                "UEP0323",
                f"`{use.family.name}` reaches for `{use.access.buffer}` of other ranks, which is not symmetric memory",
                use.family,
                help="rows that are a result of the layer can't be written by other ranks: use `relay = copy`",
            )


def check_posts_and_waits_lie_inside_their_signals(model: Model) -> Iterator[Diagnostic]:
    """Every counter that is posted or waited for is there."""
    for family in model.graph.families:
        counters: list[Post | Wait] = [*family.posts, *family.waits]
        for touched in counters:
            if not _is_counter(model, family, touched):
                verb = "posts" if isinstance(touched, Post) else "waits for"
                yield about(
                    "UEP0321",
                    f"`{family.name}` {verb} counters that `{touched.signal}` may not have",
                    family,
                    note="could not prove that the index is at least 0 and less than the signal's extent",
                    help="compare the index with the extent of the signal",
                )


def _is_counter(model: Model, family: Family, touched: Post | Wait) -> bool:
    shared, element = model.element(family, touched)
    context = shared.copy()
    extent = context.term(model.graph.signal(touched.signal).extent, Frame(rank=element.owner, coords={}))
    context.saturate()
    is_rank = _is_between(context, element.owner, Linear.number(model.graph.ranks))
    return is_rank and _is_between(context, element.row, extent)


def check_signals_have_places_of_their_own(model: Model) -> Iterator[Diagnostic]:
    """In the scoreboard, every signal has room for all its counters, and shares none."""
    size = model.schedule.scoreboard_size
    if size is None:
        return
    places = {place.signal: place for place in model.schedule.scoreboard}
    context, frame = _any_rank(model)
    for signal in model.graph.signals:
        place = places.get(signal.name)
        if place is None or not context.proves(
            context.term(place.extent, frame).minus(context.term(signal.extent, frame))
        ):
            yield _crowded(f"the scoreboard has no room for all counters of `{signal.name}`")
    end: Expr | None = None
    for place in model.schedule.scoreboard:
        if not _starts_after(context, frame, place, end):
            yield _crowded(f"`{place.signal}` shares counters of the scoreboard with the signal before it")
        end = place.offset + place.extent
    if end is not None and not context.proves(context.term(size, frame).minus(context.term(end, frame))):
        yield _crowded("the scoreboard is smaller than its signals")


def _any_rank(model: Model) -> tuple[Context, Frame]:
    context = Context(facts=model.facts)
    frame = Frame(rank=context.fresh(), coords={})
    context.saturate()
    return context, frame


def _starts_after(context: Context, frame: Frame, place: SignalPlace, end: Expr | None) -> bool:
    before = ZERO if end is None else context.term(end, frame)
    return context.proves(context.term(place.offset, frame).minus(before))


def _crowded(message: str) -> Diagnostic:
    return Diagnostic(
        code="UEP0322", message=message, help="give each signal its own stretch, as long as the signal's extent"
    )
