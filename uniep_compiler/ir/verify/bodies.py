"""Rules about bodies: they are what kernels are printed from, so what a family says that it touches is what they touch.

All other rules go by accesses. Here stands, for each kind of body, which accesses its kernel makes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import assert_never

from uniep_compiler.diagnostics import Diagnostic
from uniep_compiler.ir import op_rules
from uniep_compiler.ir.index import Coord, Expr, Int, Lookup, Sym, equal, less, minimum
from uniep_compiler.ir.op_table import OPS, SlotKind
from uniep_compiler.ir.ops import Op
from uniep_compiler.ir.tasks import (
    ROW_ROUTE,
    Access,
    Accumulator,
    BiasLoad,
    CopyBody,
    Family,
    GemmBody,
    MapBody,
    OuterBody,
    Proxy,
    Range,
    ReduceBody,
    Role,
    RoutesBody,
    RowLoad,
    RowValue,
    Store,
    SumBody,
    TaskGraph,
    ZeroBody,
)
from uniep_compiler.ir.types import DType
from uniep_compiler.ir.verify.model import Model
from uniep_compiler.ir.verify.report import about

_LAYOUTS = ("nk", "kn")
_RULES_OF_EPILOGUES = (
    op_rules.elementwise,
    op_rules.clamp,
    op_rules.round_,
    op_rules.const,
    op_rules.split,
    op_rules.join,
    op_rules.row_sum,
)
"""The type rules of the ops that an epilogue can hold: each makes rows, or a number per row, of as many rows."""
_TILE = Coord("tile")
_FIRST_ROW = Lookup("tile_row", (_TILE,))
_NUM_ROWS = Lookup("tile_rows", (_TILE,))
_EXPERT = Lookup("tile_expert", (_TILE,))
_ROW = _FIRST_ROW + Coord("i")
_ROUTE = Lookup("route_at", (_ROW,))
_ROWS_OF_TILE = (Range(coord="i", extent=_NUM_ROWS),)
_SENT = Lookup("send_item", (Coord("peer"), Coord("item")))


@dataclass(frozen=True, slots=True, kw_only=True)
class Touched:
    """What the kernel of a body reads and writes."""

    reads: tuple[Access, ...]
    writes: tuple[Access, ...]


def check_accesses_are_those_of_bodies(model: Model) -> Iterator[Diagnostic]:
    """A family reads and writes the boxes that the kernel of its body does, and no others."""
    for family in model.graph.families:
        touched = touched_by(family, model.graph)
        yield from _compare(family, "reads", family.reads, touched.reads)
        yield from _compare(family, "writes", family.writes, touched.writes)


def _compare(family: Family, verb: str, said: tuple[Access, ...], done: tuple[Access, ...]) -> Iterator[Diagnostic]:
    said_boxes, done_boxes = _boxes(said), _boxes(done)
    unsaid = sorted({box.buffer for box in done_boxes - said_boxes})
    undone = sorted({box.buffer for box in said_boxes - done_boxes} - {*unsaid})
    faults = [(name, "that none of its accesses names") for name in unsaid]
    faults += [(name, "only in its accesses, and not in its body") for name in undone]
    for name, how in faults:
        yield about(
            "UEP0328",
            f"`{family.name}` {verb} places of `{name}` {how}",
            family,
            note="kernels are printed from bodies, and proofs go by accesses: so both have to be about the same places",
            help="compare the buffers, rows and columns of the body with those of the accesses",
        )


def _boxes(accesses: Iterable[Access]) -> frozenset[Access]:
    return frozenset(replace(access, proxy=Proxy.GENERIC) for access in accesses)


# -- what each kind of body touches ---------------------------------------------------------------------------------


def touched_by(family: Family, graph: TaskGraph) -> Touched:
    """What the tasks of a family touch, by its body."""
    match family.body:
        case CopyBody() as body if family.role is Role.COMM:
            return _touched_by_send(family, body, graph)
        case CopyBody() as body if family.role is Role.PUSH:
            return _touched_by_push(body, graph)
        case CopyBody() as body:
            reads = (_gathered(family, body.source, body.cols), *_origin(graph))
            return Touched(reads=reads, writes=(_tile(body.target, body.cols),))
        case MapBody() as body:
            return _touched_by_map(family, body, graph)
        case GemmBody() as body:
            return _touched_by_gemm(family, body, graph)
        case ReduceBody() as body:
            return _touched_by_reduce(body)
        case OuterBody() as body:
            return _touched_by_outer(body)
        case SumBody() as body:
            return _touched_by_sum(body, graph)
        case RoutesBody() as body:
            return _touched_by_routes(body)
        case ZeroBody() as body:
            first = Sym("num_rows") + Coord("piece") * body.chunk
            count = minimum(Int(body.chunk), Sym("rows_bound") - first)
            zeros = Access(buffer=body.target, row=first, num_rows=count, num_cols=Int(body.cols))
            return Touched(reads=(), writes=(zeros,))
        case _:
            assert_never(family.body)


def _tile(buffer: str, cols: int) -> Access:
    """The rows of the task's M tile."""
    return Access(buffer=buffer, row=_FIRST_ROW, num_rows=_NUM_ROWS, num_cols=Int(cols))


def _gathered(family: Family, buffer: str, cols: int) -> Access:
    """A row for each row of the M tile; the kernel finds it as the family's own read says."""
    row = next((access.row for access in family.reads if access.buffer == buffer), _ROW)
    return Access(buffer=buffer, row=row, num_rows=Int(1), num_cols=Int(cols), over=_ROWS_OF_TILE)


def _origin(graph: TaskGraph) -> tuple[Access, ...]:
    """Where the tile's rows came from: under a group that stands in a buffer, on one local rank in the plan."""
    return () if _is_local(graph) else (_tile(ROW_ROUTE, 1),)


def _is_local(graph: TaskGraph) -> bool:
    return graph.ranks == 1 and ROW_ROUTE not in {buffer.name for buffer in graph.buffers}


def _touched_by_send(family: Family, body: CopyBody, graph: TaskGraph) -> Touched:
    """A lane goes through every send to every peer, and takes the chunks that are its own.

    Of a token, the row travels once, and the numbers of its routes to where each route's row is; of a route, all once.
    """
    lanes = family.domain[0].extent
    mine = equal(Coord("item") // body.chunk % _number(lanes), Coord("lane"))
    over = (
        Range(coord="peer", extent=Int(graph.ranks)),
        Range(coord="item", extent=Lookup("send_count", (Coord("peer"),))),
    )
    by_token = body.target != family.value
    token = _SENT if by_token else _SENT // graph.topk
    source = Access(buffer=body.source, row=token, num_rows=Int(1), num_cols=Int(body.cols), over=over, when=mine)
    row = Sym("rank") * Sym("tokens_bound") + _SENT if by_token else Lookup("row_of", (_SENT,))
    target = replace(source, buffer=body.target, row=row, rank=Coord("peer"))
    number = replace(target, num_cols=Int(1))
    if by_token:
        route = _SENT * graph.topk + Coord("k")
        number = replace(
            number,
            row=Lookup("row_of", (route,)),
            over=(*over, Range(coord="k", extent=Int(graph.topk))),
            when=mine * equal(Lookup("dest", (route,)), Coord("peer")),
        )
    beside = () if _is_local(graph) else (ROW_ROUTE,)
    return Touched(
        reads=(
            source,
            *(replace(source, buffer=found.source, num_cols=Int(graph.topk)) for found in body.companions),
        ),
        writes=(
            target,
            *(replace(number, buffer=name) for name in (*beside, *(found.target for found in body.companions))),
        ),
    )


def _number(extent: Expr) -> int:
    """The value of an extent that is a number; 1 for others, which no lanes have."""
    return extent.value if isinstance(extent, Int) else 1


def _touched_by_push(body: CopyBody, graph: TaskGraph) -> Touched:
    target = Access(
        buffer=body.target,
        rank=Lookup("source", (_ROW,)),
        row=_ROUTE,
        num_rows=Int(1),
        num_cols=Int(body.cols),
        over=_ROWS_OF_TILE,
    )
    return Touched(reads=(_tile(body.source, body.cols), *_origin(graph)), writes=(target,))


def _beside(body: GemmBody | MapBody, graph: TaskGraph) -> tuple[Access, ...]:
    """Where a body finds the origin of the rows that it computes from, and the numbers beside them."""
    values = tuple(_row_value(found, graph) for found in body.row_values)
    looks_up = body.gather or any(found.by_route for found in body.row_values)
    return (*(_origin(graph) if looks_up else ()), *values)


def _row_value(found: RowValue, graph: TaskGraph) -> Access:
    if not found.by_route:
        return _tile(found.buffer, 1)
    token, k = _ROUTE // graph.topk, _ROUTE % graph.topk
    return Access(buffer=found.buffer, row=token, num_rows=Int(1), col=k, num_cols=Int(1), over=_ROWS_OF_TILE)


def _touched_by_map(family: Family, body: MapBody, graph: TaskGraph) -> Touched:
    def box(part: RowLoad | BiasLoad | Store) -> Access:
        share = max(1, _share(part) // 2)
        return replace(_tile(part.buffer, body.cols * share), col=Int(part.first))

    loads = tuple(
        replace(_gathered(family, load.buffer, 0), col=box(load).col, num_cols=box(load).num_cols)
        if body.gather and load.buffer == body.source
        else box(load)
        for load in body.loads
    )
    biases = tuple(replace(box(bias), row=_EXPERT, num_rows=Int(1)) for bias in body.biases)
    return Touched(
        reads=(*loads, *biases, *_beside(body, graph)),
        writes=tuple(_tile(store.buffer, 1) if store.summed else box(store) for store in body.stores),
    )


def _touched_by_gemm(family: Family, body: GemmBody, graph: TaskGraph) -> Touched:
    width = body.tile.cols // max(1, len(body.accumulators))
    first = Coord("column") * width
    num_cols = minimum(Int(width), Int(body.num_cols) - first)
    source = _gathered(family, body.rows, body.depth) if body.gather else _tile(body.rows, body.depth)
    reads = [source, *_beside(body, graph)]
    reads += (_weight(body, acc, acc.weight, body.depth, graph) for acc in body.accumulators)
    for acc in body.accumulators:
        if acc.bias is not None:
            start = acc.first + first
            reads.append(Access(buffer=acc.bias, row=_EXPERT, num_rows=Int(1), col=start, num_cols=num_cols))
    for term in body.terms:
        reads.append(_tile(term.rows, term.depth))
        reads += (_weight(body, acc, term.weight, term.depth, graph) for acc in body.accumulators)
    reads += (_columns(load.buffer, load.first, _share(load), width, body.num_cols) for load in body.loads)
    return Touched(reads=tuple(reads), writes=tuple(_stored(store, width, body.num_cols) for store in body.stores))


def _weight(body: GemmBody, acc: Accumulator, weight: str, depth: int, graph: TaskGraph) -> Access:
    """The part of an expert's weight whose products an accumulator sums."""
    width = body.tile.cols // max(1, len(body.accumulators))
    first = Coord("column") * width
    start, num_cols = acc.first + first, minimum(Int(width), Int(body.num_cols) - first)
    rows = next((buffer.rows for buffer in graph.buffers if buffer.name == weight), Int(0))
    if body.layout == "nk":
        return Access(buffer=weight, row=_EXPERT * rows + start, num_rows=num_cols, num_cols=Int(depth))
    return Access(buffer=weight, row=_EXPERT * rows, num_rows=Int(depth), col=start, num_cols=num_cols)


def _share(part: Store | RowLoad | BiasLoad) -> int:
    """Columns of a part that is stored or loaded, for two of an accumulator; 0 for a number per row."""
    if isinstance(part, Store) and part.summed:
        return 0
    if isinstance(part, Store) and part.halved:
        return 1
    return 4 if part.doubled else 2


def _stored(store: Store, width: int, num_cols: int) -> Access:
    """The columns of a value that a tile stores; of a sum, those are the tasks."""
    if store.summed:
        return replace(_tile(store.buffer, 1), col=Coord("column"))
    return _columns(store.buffer, store.first, _share(store), width, num_cols)


def _columns(buffer: str, start: int, share: int, width: int, num_cols: int) -> Access:
    first = Coord("column") * (width * share // 2)
    count = minimum(Int(width * share // 2), Int(num_cols * share // 2) - first)
    return Access(buffer=buffer, row=_FIRST_ROW, num_rows=_NUM_ROWS, col=start + first, num_cols=count)


def _touched_by_reduce(body: ReduceBody) -> Touched:
    reads, target = _through_routes(body, body.rows, body.cols)
    if body.weights is not None:
        weights = replace(target, buffer=body.weights, num_cols=Int(body.topk))
        return Touched(reads=(reads, weights), writes=(target,))
    return Touched(reads=(reads,), writes=(target,))


def _touched_by_routes(body: RoutesBody) -> Touched:
    by_part = [_through_routes(body, part.rows, part.cols) for part in body.parts]
    target = replace(by_part[0][1], num_cols=Int(body.topk)) if by_part else None
    return Touched(reads=tuple(reads for reads, _ in by_part), writes=() if target is None else (target,))


def _through_routes(body: ReduceBody | RoutesBody, rows: str, cols: int) -> tuple[Access, Access]:
    """The rows of the routes of a block of tokens, and as many columns of the target's rows of these tokens."""
    first = Coord("block") * body.block
    num_tokens = minimum(Int(body.block), Sym("tokens") - first)
    route = (first + Coord("i")) * body.topk + Coord("k")
    row = route if body.by_route else Lookup("row_of", (route,))
    over = (Range(coord="i", extent=num_tokens), Range(coord="k", extent=Int(body.topk)))
    valid = less(Int(-1), Lookup("dest", (route,)))
    return (
        Access(buffer=rows, row=row, num_rows=Int(1), num_cols=Int(cols), over=over, when=valid),
        Access(buffer=body.target, row=first, num_rows=num_tokens, num_cols=Int(cols)),
    )


def _touched_by_outer(body: OuterBody) -> Touched:
    across = -(-body.num_cols // body.tile.cols)
    expert, place = Coord("expert"), Coord("place")
    first_row = place // across * body.tile.rows if body.num_rows > body.tile.rows else Int(0)
    first_col = place % across * body.tile.cols
    height = minimum(Int(body.tile.rows), Int(body.num_rows) - first_row)
    width = minimum(Int(body.tile.cols), Int(body.num_cols) - first_col)
    row, count = Lookup("expert_row", (expert,)), Lookup("expert_rows", (expert,))
    target_row = expert * body.num_rows + first_row
    pairs = ((body.left, body.right), *((term.left, term.right) for term in body.terms))
    lefts = (Access(buffer=left, row=row, num_rows=count, col=first_row, num_cols=height) for left, _ in pairs)
    rights = (Access(buffer=right, row=row, num_rows=count, col=first_col, num_cols=width) for _, right in pairs)
    return Touched(
        reads=(*lefts, *rights),
        writes=(Access(buffer=body.target, row=target_row, num_rows=height, col=first_col, num_cols=width),),
    )


def _touched_by_sum(body: SumBody, graph: TaskGraph) -> Touched:
    expert, first = Coord("expert"), Coord("place") * body.width
    width = minimum(Int(body.width), Int(body.num_cols) - first)
    row, count = Lookup("expert_row", (expert,)), Lookup("expert_rows", (expert,))
    rows = Access(buffer=body.rows, row=row, num_rows=count, col=first, num_cols=width)
    return Touched(
        reads=(rows, *(() if body.factor is None else (_factor(body.factor, rows, graph),))),
        writes=(Access(buffer=body.target, row=expert, num_rows=Int(1), col=first, num_cols=width),),
    )


def _factor(found: RowValue, rows: Access, graph: TaskGraph) -> Access:
    """The numbers of an expert's rows."""
    if not found.by_route:
        return replace(rows, buffer=found.buffer, col=Int(0), num_cols=Int(1))
    route, over = Lookup("route_at", (rows.row + Coord("i"),)), (Range(coord="i", extent=rows.num_rows),)
    token, k = route // graph.topk, route % graph.topk
    return Access(buffer=found.buffer, row=token, num_rows=Int(1), col=k, num_cols=Int(1), over=over)


# -- what bodies are made of ----------------------------------------------------------------------------------------


def check_bodies_fit_their_graph(model: Model) -> Iterator[Diagnostic]:
    """Numbers that stand in a body and in the graph are equal, and element types are those that the kernel moves."""
    dtypes = {buffer.name: buffer.dtype for buffer in model.graph.buffers}
    for family in model.graph.families:
        for fault in _faults(family, model.graph, dtypes):
            yield about(
                "UEP0329",
                f"the body of `{family.name}` does not fit its graph",
                family,
                note=fault,
                help="compare the body with the buffers and with the numbers at the top of the graph",
            )


def _faults(family: Family, graph: TaskGraph, dtypes: Mapping[str, DType]) -> Iterator[str]:
    is_send = family.role is Role.COMM
    if family.stepwise != is_send:
        yield "lanes post step by step, and all others at the end of a task"
    if is_send and not isinstance(family.domain[0].extent, Int):
        yield "the number of lanes is no number"
    if dtypes.get(ROW_ROUTE, DType.I32) is not DType.I32:
        yield f"`{ROW_ROUTE}` holds {dtypes[ROW_ROUTE]}, and not {DType.I32}"
    match family.body:
        case CopyBody() as body:
            pairs = ((body.source, body.target), *((found.source, found.target) for found in body.companions))
            for source, target in pairs:
                yield from _different(dtypes, source, target)
            if body.companions and not is_send:
                yield "only lanes take numbers along beside rows"
        case MapBody() as body:
            yield from _epilogue_faults(body, {}, dtypes)
            if any(store.halved for store in body.stores):
                yield "it stores halves of pairs, and maps leave whole ones"
            if body.gather and body.source not in {load.buffer for load in body.loads}:
                yield f"it gathers rows of `{body.source}`, and loads none of them"
        case GemmBody() as body:
            yield from _gemm_faults(body, graph, dtypes)
        case ReduceBody() as body:
            yield from _route_faults(body, graph)
            if dtypes.get(body.target, body.dtype) is not body.dtype:
                yield f"it rounds to {body.dtype}, and `{body.target}` holds {dtypes[body.target]}"
        case OuterBody() as body:
            yield from _different(dtypes, body.left, body.right)
            for pair in body.terms:
                yield from _different(dtypes, body.left, pair.left)
                yield from _different(dtypes, body.left, pair.right)
            yield from _experts_fault(graph, body.target)
            if not dtypes.get(body.target, DType.F32).is_float:
                yield f"it rounds to {dtypes[body.target]}, which is no type of floating point numbers"
        case SumBody() as body:
            if not dtypes.get(body.target, DType.F32).is_float:
                yield f"it rounds to {dtypes[body.target]}, which is no type of floating point numbers"
        case RoutesBody() as body:
            yield from _route_faults(body, graph)
            if not body.parts:
                yield "it sums nothing"
            for name in (*(part.rows for part in body.parts), body.target):
                if dtypes.get(name, DType.F32) is not DType.F32:
                    yield f"its sums are {DType.F32}, and `{name}` holds {dtypes[name]}"
        case ZeroBody():
            pass
        case _:
            assert_never(family.body)


def _different(dtypes: Mapping[str, DType], one: str, other: str) -> Iterator[str]:
    if one in dtypes and other in dtypes and dtypes[one] is not dtypes[other]:
        yield f"`{one}` holds {dtypes[one]}, and `{other}` holds {dtypes[other]}"


def _route_faults(body: ReduceBody | RoutesBody, graph: TaskGraph) -> Iterator[str]:
    if body.topk != graph.topk or body.block != graph.block:
        yield f"it sums {body.topk} routes of {body.block} tokens; the graph has {graph.topk} and {graph.block}"


def _experts_fault(graph: TaskGraph, name: str) -> Iterator[str]:
    if any(buffer.name == name and not buffer.experts for buffer in graph.buffers):
        yield f"`{name}` has no part for each expert"


def _gemm_faults(body: GemmBody, graph: TaskGraph, dtypes: Mapping[str, DType]) -> Iterator[str]:
    if body.layout not in _LAYOUTS:
        yield f"the layout of weights is {' or '.join(_LAYOUTS)}, and not {body.layout}"
    if body.tile.rows < graph.tile_rows:
        yield f"its tile has {body.tile.rows} rows; M tiles of the graph have up to {graph.tile_rows}"
    if not body.accumulators or body.tile.cols % len(body.accumulators):
        yield f"{len(body.accumulators)} accumulators don't share {body.tile.cols} columns evenly"
    for acc in body.accumulators:
        yield from _different(dtypes, body.rows, acc.weight)
        yield from _experts_fault(graph, acc.weight)
    for term in body.terms:
        yield from _different(dtypes, term.rows, term.weight)
        yield from _experts_fault(graph, term.weight)
    values = {acc.value: _Value(dtype=DType.F32, share=_WHOLE) for acc in body.accumulators}
    yield from _epilogue_faults(body, values, dtypes)


# -- epilogues ------------------------------------------------------------------------------------------------------

_WHOLE = 2
"""Columns of a value that is as wide as an accumulator, for two of that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Value:
    """A value in an epilogue: its dtype, and its columns for two of an accumulator; 0 for a number per row.

    A constant is as wide as it has to be: its share is None.
    """

    dtype: DType
    share: int | None


def _epilogue_faults(body: GemmBody | MapBody, values: dict[str, _Value], dtypes: Mapping[str, DType]) -> Iterator[str]:
    """What is wrong with an epilogue over `values`: each op reads what is there, and stores hold what is rounded so."""
    biases = body.biases if isinstance(body, MapBody) else ()
    loads: tuple[RowLoad | BiasLoad, ...] = (*body.loads, *biases)
    values |= {load.value: _Value(dtype=dtypes.get(load.buffer, DType.F32), share=_share(load)) for load in loads}
    values |= {found.value: _Value(dtype=dtypes.get(found.buffer, DType.F32), share=0) for found in body.row_values}
    for op in body.epilogue:
        yield from _op_faults(op, values)
        values |= dict.fromkeys(op.results, _result(op, values))
    for store in body.stores:
        if store.value not in values:
            yield f"it stores `{store.value}`, which its epilogue does not make"
            continue
        value = values[store.value]
        if dtypes.get(store.buffer, value.dtype) is not value.dtype:
            held = dtypes[store.buffer]
            yield f"it stores `{store.value}`, which is {value.dtype}, to `{store.buffer}`, which holds {held}"
        if value.share not in (None, _share(store)):
            yield f"it stores {_width(_share(store))} of `{store.value}`, which has {_width(value.share)}"


def _width(share: int | None) -> str:
    """The words for a share of columns."""
    return f"{share} columns for two of an accumulator" if share else "one number per row"


def _op_faults(op: Op, values: Mapping[str, _Value]) -> Iterator[str]:
    made = ", ".join(f"`{name}`" for name in op.results)
    info = OPS.get(op.kind)
    if info is None or info.rule not in _RULES_OF_EPILOGUES:
        yield f"{made} is made by `{op.kind}`, which is no op on a row"
        return
    num_operands = sum(slot.kind is SlotKind.VALUE for slot in info.slots)
    if (len(op.operands), len(op.results)) != (num_operands, info.num_results):
        yield f"{made} is made by `{op.kind}`, which takes {num_operands} values and makes {info.num_results}"
    for name in op.operands:
        if name not in values:
            yield f"{made} is made of `{name}`, which nothing before it makes"
    dtype = op.optional("dtype")
    if op.kind == "round" and not (isinstance(dtype, DType) and dtype.is_float):
        yield f"{made} is rounded to {dtype}, which is no type of floating point numbers"
    if op.kind in ("split", "join") and op.optional("how") != "interleaved":
        yield f"{made} is made of halves, which stand in two accumulators, and not in one"
    shares = {share for name in op.operands if name in values and (share := values[name].share)}
    if len(shares) > 1:
        yield f"{made} is made of values with different numbers of columns"
    if op.kind in ("split", "join", "row_sum") and not shares:
        yield f"{made} is made by `{op.kind}` of what has no columns"
    if op.kind == "split" and 1 in shares:
        yield f"{made} is made by `{op.kind}` of what was split before"


def _result(op: Op, values: Mapping[str, _Value]) -> _Value:
    """What an op makes. Only rounding leaves f32; what only moves numbers leaves them as they are."""
    read = [values[name] for name in op.operands if name in values]
    share = max((value.share for value in read if value.share is not None), default=None)
    if share is not None:
        share = {"split": share // 2, "join": share * 2, "row_sum": 0}.get(op.kind, share)
    dtype = op.optional("dtype") if op.kind == "round" else None
    if not isinstance(dtype, DType):
        dtype = read[0].dtype if read and op.kind in OPS and OPS[op.kind].moves else DType.F32
    return _Value(dtype=dtype, share=share)
