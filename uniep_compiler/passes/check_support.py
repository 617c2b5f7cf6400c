"""Rules for what this compiler can lower. What the language has beyond that is refused (UEP0401), with a way out.

Behind these rules, every program is lowered to kernels that do what it says.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from uniep_compiler.diagnostics import Diagnostic, Label, UniepError
from uniep_compiler.ir.op_rules import Site
from uniep_compiler.ir.ops import Op, OpGraph
from uniep_compiler.ir.types import RoutesType, TensorType
from uniep_compiler.options import Relay
from uniep_compiler.passes.clusters import ELEMENTWISE, members_of_stages, stages_of_values
from uniep_compiler.passes.settings import Settings
from uniep_compiler.passes.stages import build_stages
from uniep_compiler.source import NO_SPAN, Span

MOST_ACCUMULATORS = 8
"""Accumulators of a tile: with more, each would get fewer columns than matrix instructions take."""


def check_support(ops: OpGraph, settings: Settings) -> None:
    """Raise UniepError with everything in a program that cannot be lowered."""
    found = [diagnostic for rule in RULES for diagnostic in rule(ops, settings)]
    if found:
        raise UniepError(found, settings.source)


def numbers_per_row_are_read_by_elementwise_ops(ops: OpGraph, settings: Settings) -> Iterable[Diagnostic]:
    """A number per row meets rows in an elementwise op, and is nothing by itself."""
    sends = any(op.kind == "dispatch" for op in ops.ops)
    for op in ops.ops:
        if op.kind == "to_rows" and op.results[0] in ops.results:
            yield _unsupported("returning what `to_rows` gives", op.span, "index with `routes.row_of` in Python")
        elif op.kind == "to_rows" and not sends and not settings.local:
            yield _unsupported(
                "`to_rows` without `dispatch` under a group", op.span, "multiply in the layer that dispatches"
            )


def there_is_one_routing(ops: OpGraph, _: Settings) -> Iterable[Diagnostic]:
    """A layer has one plan."""
    routes = [value for value in (*ops.params, *ops.values) if isinstance(value.type, RoutesType)]
    for value in routes[1:]:
        yield _unsupported("a second routing", value.span, "route once, and dispatch by that; or write two layers")


def tokens_are_taken_as_they_are(ops: OpGraph, _: Settings) -> Iterable[Diagnostic]:
    """What is kept by token or by route is not computed with."""
    for op in ops.ops:
        kinds = [ops.types[name] for name in op.operands]
        on_tokens = op.kind in (*ELEMENTWISE, "split") and all(isinstance(kind, TensorType) for kind in kinds)
        if on_tokens and not any(_is_sum(ops, name) for name in op.operands):
            help_ = "compute it in PyTorch, before or after the layer"
            yield _unsupported(f"{_shown(op)} on what is not rows", op.span, help_)


LEAVE_ROWS = ("combine", "to_routes", "group_outer", "group_sum")
"""Ops that make something of rows that is not rows."""


def sums_are_returned(ops: OpGraph, _: Settings) -> Iterable[Diagnostic]:
    """What is no longer rows is rounded at most once, and returned."""
    for op in ops.ops:
        if op.kind in LEAVE_ROWS and returned_value(ops, op) is None:
            what = "work on tokens after `combine`" if op.kind == "combine" else f"work after `{op.kind}`"
            yield _unsupported(what, op.span, f"return what `{op.kind}` gives, as it is")


def returned_value(ops: OpGraph, op: Op) -> str | None:
    """The result of the program that one of `LEAVE_ROWS` makes; None if it does not just return what that gives.

    That is its own result, or that rounded. Outer products may be added up before.
    """
    value = op.results[0]
    while readers := ops.consumers(value):
        is_end = readers[0].kind == "round"
        if len(readers) > 1 or value in ops.results or not (is_end or _adds_outers(ops, readers[0])):
            return None
        value = readers[0].results[0]
        if is_end:
            break
    return value if value in ops.results and not ops.consumers(value) else None


def outer_sum(ops: OpGraph, value: str) -> tuple[Op, ...]:
    """The `group_outer` ops that a value is the sum of, rounded or not; empty if it is something else."""
    maker = ops.producer(value)
    if maker is None or maker.kind not in ("group_outer", "round", "add"):
        return ()
    if maker.kind == "group_outer":
        return (maker,)
    parts = [outer_sum(ops, name) for name in maker.operands]
    return tuple(op for part in parts for op in part) if all(parts) else ()


def _adds_outers(ops: OpGraph, op: Op) -> bool:
    return op.kind == "add" and bool(outer_sum(ops, op.results[0]))


def _is_sum(ops: OpGraph, value: str) -> bool:
    """Whether a value was made of rows. What becomes of those is a rule of its own."""
    maker = ops.producer(value)
    return maker is not None and (maker.kind in LEAVE_ROWS or any(_is_sum(ops, name) for name in maker.operands))


def results_are_computed(ops: OpGraph, _: Settings) -> Iterable[Diagnostic]:
    """A layer returns its routes, and what its kernels write."""
    for param in ops.params:
        if param.name in ops.results and not isinstance(param.type, RoutesType):
            yield _unsupported(
                f"returning `{param.name}` as it came", param.span, "the caller has it: do not return it"
            )


def one_tensor_is_dispatched_in_a_group(ops: OpGraph, settings: Settings) -> Iterable[Diagnostic]:
    """Under a group, the rows of one tensor are sent."""
    dispatches = [op for op in ops.ops if op.kind == "dispatch"]
    for op in () if settings.local else dispatches[1:]:
        yield _unsupported("a second `dispatch` under a group", op.span, "dispatch one tensor; or write two layers")


def sent_rows_have_routes_of_their_own(ops: OpGraph, settings: Settings) -> Iterable[Diagnostic]:
    """What sends go by, ids and who is sent what, is made where the layer routes. Routes that come in lack it."""
    sends = not settings.local or settings.relay is Relay.OFF
    for op in ops.ops if sends else ():
        if op.kind == "dispatch" and ops.producer(op.operands[1]) is None:
            help_ = f"take the experts' ids, and dispatch by `route(ids)`; return `{op.operands[1]}` to layers behind"
            help_ += "" if not settings.local else "; or leave `relay = off` out"
            yield _unsupported("sending rows by routes that come in as a parameter", op.span, help_)


def returned_rows_are_relayed_in_a_group(ops: OpGraph, settings: Settings) -> Iterable[Diagnostic]:
    """Under a group, other ranks write symmetric memory only, and results are not."""
    in_place = settings.relay is Relay.OFF and not settings.local
    for op in ops.ops if in_place else ():
        if op.kind == "dispatch" and op.results[0] in ops.results:
            help_ = "set `relay = copy`, or do not return what `dispatch` gives"
            yield _unsupported("returning rows that were sent with `relay = off`", op.span, help_)


def elementwise_ops_have_a_stage(ops: OpGraph, _: Settings) -> Iterable[Diagnostic]:
    """Elementwise ops are part of one stage: of the epilogue of GEMMs of the same rows, or of a map of rows."""
    for found in stages_of_values(ops)[1]:
        help_ = "apply it to rows as wide as group_gemms make them, or to halves of those"
        yield _unsupported(f"{_shown(found.op)} on {found.why}", found.op.span, help_)


def splits_that_meet_are_alike(ops: OpGraph, _: Settings) -> Iterable[Diagnostic]:
    """A stage is split in halves, or into even and odd columns."""
    for members in members_of_stages(ops, stages_of_values(ops)[0]).values():
        parted = [op for op in members.ops if op.kind in ("split", "join")]
        other = next((op for op in parted if op.attr("how") != parted[0].attr("how")), None)
        if other is not None:
            yield _unsupported("splits of both kinds on what is one GEMM", other.span, "split in one way")


def tiles_hold_their_accumulators(ops: OpGraph, settings: Settings) -> Iterable[Diagnostic]:
    """The GEMMs of a stage share a tile."""
    if any(True for _ in elementwise_ops_have_a_stage(ops, settings)):
        return
    for stage in build_stages(ops, settings.dims):
        if len(stage.accumulators) > MOST_ACCUMULATORS:
            what = f"an expression over {len(stage.accumulators)} accumulators of GEMMs"
            yield _unsupported(what, stage.span, f"let at most {MOST_ACCUMULATORS} meet; a split makes two of one")


RULES: tuple[Callable[[OpGraph, Settings], Iterable[Diagnostic]], ...] = (
    numbers_per_row_are_read_by_elementwise_ops,
    there_is_one_routing,
    tokens_are_taken_as_they_are,
    sums_are_returned,
    results_are_computed,
    one_tensor_is_dispatched_in_a_group,
    sent_rows_have_routes_of_their_own,
    returned_rows_are_relayed_in_a_group,
    elementwise_ops_have_a_stage,
    splits_that_meet_are_alike,
    tiles_hold_their_accumulators,
)


def _shown(op: Op) -> str:
    """The op as programs write it, in backquotes."""
    return f"`{Site(kind=op.kind, operands=(), attrs={}, types={}).shown}`"


def _unsupported(what: str, span: Span, help_text: str) -> Diagnostic:
    labels = () if span == NO_SPAN else (Label(span=span, text="here"),)
    return Diagnostic(code="UEP0401", message=f"{what} is not supported yet", labels=labels, help=help_text)
