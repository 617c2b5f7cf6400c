"""Lowers an OpGraph to task families: who computes what from which rows. No signals yet, and no relays.

Before:  xs = dispatch(x, r); _1 = group_gemm(xs, w13); ...; y = ...; combine(y, weights)
After:   send_xs   comm     every route's row of x to row `row_of` of xs on its destination
         gemm_a    compute  tiles of a from xs and w13, with the epilogue
         gemm_y    compute  tiles of y from a and w2
         push_y    push     rows of y back to slot `route_at` of y_returned on the rank they came from
         reduce_out reduce  out from y_returned and the router weights
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from uniep_compiler.diagnostics import InternalError
from uniep_compiler.ir.index import Coord, Expr, Int, Lookup, Sym, cdiv, less, minimum
from uniep_compiler.ir.ops import Op, OpGraph
from uniep_compiler.ir.tasks import (
    Access,
    BiasLoad,
    Buffer,
    BufferKind,
    Companion,
    CopyBody,
    Family,
    GemmBody,
    MapBody,
    OuterBody,
    OuterTerm,
    Range,
    ReduceBody,
    Role,
    RoutesBody,
    RoutesPart,
    RowLoad,
    RowValue,
    Store,
    SumBody,
    TaskGraph,
    ZeroBody,
)
from uniep_compiler.ir.types import DType, RoutesType, RowsType, TensorType, Type
from uniep_compiler.options import Relay
from uniep_compiler.passes.accesses import (
    EXPERT,
    ROUTE_AT,
    ROWS_OF_TILE,
    SOURCE,
    TILES,
    factor_access,
    loaded_access,
    part_access,
    row_value_access,
    send_access,
    stored_access,
    tile_access,
)
from uniep_compiler.passes.check_support import check_support, outer_sum, returned_value
from uniep_compiler.passes.clusters import factored, summands, width_of
from uniep_compiler.passes.names import ROW_ROUTE, buffer_names, fresh, name_buffers
from uniep_compiler.passes.settings import Settings, tile_rows
from uniep_compiler.passes.stages import (
    MapStage,
    Stage,
    build_maps,
    build_stages,
    row_dtype,
    value_dtype,
)
from uniep_compiler.passes.tiles import SUM_DEPTH, SUM_WIDTH, Shape, outer_tile, stage_tile


def build_tasks(graph: OpGraph, settings: Settings) -> TaskGraph:
    """The task graph of `graph` for every rank of the group. Raises UEP0401 for what can't be lowered yet."""
    check_support(graph, settings)
    tiles = {buffer_names(graph).get(name, name): tile for name, tile in settings.options.tiles}
    return _Builder(name_buffers(graph), settings, tiles).build()


class _Builder:
    """Collects families and buffers while it walks the ops in program order."""

    def __init__(self, graph: OpGraph, settings: Settings, tiles: Mapping[str, Shape]) -> None:
        self.graph = graph
        self.settings = settings
        self.tiles = tiles
        self.stages = {stage.gemm.results[0]: stage for stage in build_stages(graph, settings.dims)}
        self.maps = {stage.first: stage for stage in build_maps(graph, settings.dims)}
        self.buffers: list[Buffer] = []
        self.returned: dict[str, str] = {}
        self.families: list[Family] = []
        routes = next(t for t in graph.types.values() if isinstance(t, RoutesType))
        self.topk = routes.topk.value(settings.dims)
        self.experts = routes.experts.value(settings.dims)
        self.dtype = row_dtype(graph)
        in_place = settings.relay is Relay.OFF and not settings.local
        self.arrives_in_place = {op.results[0] for op in graph.ops if op.kind == "dispatch" and in_place}

    def build(self) -> TaskGraph:
        read = {name for op in self.graph.ops for name in op.operands}
        for param in self.graph.params:
            if param.name in read:
                self._add_param(param.name, param.type)
        for op in self.graph.ops:
            self._lower(op)
        for op in self.graph.ops:
            if op.kind == "to_routes":  # of sums that any stage may make
                self._lower_to_routes(op)
        return TaskGraph(
            name=self.graph.name,
            ranks=self.settings.ranks,
            experts=self.experts,
            topk=self.topk,
            tile_rows=tile_rows(self.settings.target, self.dtype),
            block=self.settings.options.block,
            buffers=tuple(self.buffers),
            signals=(),
            families=_in_data_flow_order(self.families),
            send=self.settings.send,
        )

    def _lower(self, op: Op) -> None:
        match op.kind:
            case "dispatch":
                self._lower_dispatch(op)
            case "group_gemm" if op.results[0] in self.stages:
                self._lower_stage(self.stages[op.results[0]])
            case "combine":
                self._lower_combine(op)
            case "group_outer":
                target = returned_value(self.graph, op)
                if target is None:
                    raise InternalError(f"check_support let the result of {op.kind} pass")
                if outer_sum(self.graph, target)[0] == op:
                    self._lower_outer(target)
            case "group_sum":
                self._lower_sum(op)
            case _ if op.results[0] in self.maps:
                self._lower_map(self.maps[op.results[0]])
            case _:
                pass  # routes and their counts are the plan's; elementwise ops and further GEMMs live in their stage

    # -- parameters and results -------------------------------------------------------------------------------------

    def _add_param(self, name: str, kind: Type) -> None:
        """Parameters that kernels read become input buffers; routes and ids belong to the plan."""
        if isinstance(kind, RowsType):
            rows, cols = Sym("rows_bound"), self._cols(kind)
            self.buffers.append(Buffer(name=name, dtype=kind.dtype, rows=rows, cols=cols, kind=BufferKind.INPUT))
        elif isinstance(kind, TensorType) and kind.dtype.is_float:
            self.buffers.append(self._tensor_buffer(name, kind))

    def _tensor_buffer(self, name: str, kind: TensorType) -> Buffer:
        if name in {op.operands[1] for op in self.graph.ops if op.kind == "group_gemm"}:
            rows, cols = (Int(dim.value(self.settings.dims)) for dim in kind.shape[1:])
            return Buffer(
                name=name, dtype=kind.dtype, rows=rows, cols=cols, kind=BufferKind.INPUT, experts=self.experts
            )
        if name in _biases_of(self.graph):
            cols = Int(kind.shape[1].value(self.settings.dims))
            return Buffer(name=name, dtype=kind.dtype, rows=Int(self.experts), cols=cols, kind=BufferKind.INPUT)
        cols = Int(kind.shape[1].value(self.settings.dims))
        return Buffer(name=name, dtype=kind.dtype, rows=Sym("tokens"), cols=cols, kind=BufferKind.INPUT)

    def _width(self, rows: str) -> int:
        return width_of(self.graph, rows).value(self.settings.dims)

    def _cols(self, kind: RowsType) -> Expr:
        return Int(kind.shape[0].value(self.settings.dims) if kind.shape else 1)

    def _row_buffer(self, name: str) -> Buffer:
        """The buffer of a rows value that leaves its stage; a result is an output, zero after its rows."""
        kind = self.graph.types[name]
        if not isinstance(kind, RowsType):
            raise TypeError(f"{name} is not rows")
        is_result = name in self.graph.results
        where = BufferKind.OUTPUT if is_result else BufferKind.WORKSPACE
        if name in self.arrives_in_place and not is_result:
            where = BufferKind.SYMMETRIC
        return Buffer(name=name, dtype=kind.dtype, rows=Sym("rows_bound"), cols=self._cols(kind), kind=where)

    def _add_rows(self, name: str) -> Buffer:
        buffer = self._row_buffer(name)
        self.buffers.append(buffer)
        return buffer

    # -- families ---------------------------------------------------------------------------------------------------

    def _lower_dispatch(self, op: Op) -> None:
        source, target = op.operands[0], op.results[0]
        cols = self._add_rows(target).cols
        item = Lookup("send_item", (Coord("peer"), Coord("item")))
        row, settings = Lookup("row_of", (item,)), self.settings
        writes = [send_access(settings, target, row, cols, to_peer=True)]
        reads = [send_access(settings, source, item // self.topk, cols)]
        companions = () if settings.local else self._companions()
        if not settings.local:
            self.buffers.append(_by_row(ROW_ROUTE, DType.I32, BufferKind.SYMMETRIC))
            writes.append(send_access(settings, ROW_ROUTE, row, Int(1), to_peer=True))
        for companion in companions:
            self.buffers.append(_by_row(companion.target, DType.F32, BufferKind.SYMMETRIC))
            reads.append(send_access(settings, companion.source, item // self.topk, Int(self.topk)))
            writes.append(send_access(settings, companion.target, row, Int(1), to_peer=True))
        self.families.append(
            Family(
                name=f"send_{target}",
                role=Role.COMM,
                value=target,
                domain=(Range(coord="lane", extent=Int(settings.lanes)),),
                body=CopyBody(
                    source=source,
                    target=target,
                    cols=_int(cols),
                    chunk=settings.options.chunk,
                    companions=companions,
                ),
                reads=tuple(reads),
                writes=tuple(writes),
                stepwise=True,
                span=op.span,
            )
        )
        self._pad_if_result(target)

    def _companions(self) -> tuple[Companion, ...]:
        """Numbers per route that travel beside the rows: what `to_rows` takes, under the name of what it gives."""
        moved = [op for op in self.graph.ops if op.kind == "to_rows"]
        return tuple(Companion(source=op.operands[0], target=op.results[0]) for op in moved)

    def _row_values(self, names: tuple[str, ...]) -> tuple[RowValue, ...]:
        """Where an epilogue reads its numbers per row. One rank looks them up where they are, by route."""
        makers = {op.results[0]: op.operands[0] for op in self.graph.ops if op.kind == "to_rows"}
        return tuple(
            RowValue(value=name, buffer=makers[name], by_route=True)
            if self.settings.local and name in makers
            else RowValue(value=name, buffer=name)
            for name in names
        )

    def _lower_map(self, stage: MapStage) -> None:
        """Work on rows that no GEMM has just made: a family of its own."""
        sums, buffers = self._add_stored(stage.stores, 1)
        row_values = self._row_values(stage.row_numbers)
        name = (*sums, *buffers)[-1]
        read: tuple[RowLoad | BiasLoad, ...] = (*stage.loads, *stage.biases)
        self.families.append(
            Family(
                name=f"map_{name}",
                role=Role.RELAY,
                value=name,
                domain=(TILES,),
                body=MapBody(
                    source=stage.rows,
                    cols=stage.num_cols,
                    chunk=self.settings.options.chunk,
                    loads=stage.loads,
                    epilogue=stage.epilogue,
                    stores=stage.stores,
                    row_values=row_values,
                    biases=stage.biases,
                ),
                reads=(
                    *(part_access(part, stage.num_cols) for part in read),
                    *(row_value_access(found, self.topk) for found in row_values),
                ),
                writes=tuple(part_access(store, stage.num_cols) for store in stage.stores),
                span=stage.span,
            )
        )
        for name in buffers:
            self._pad_if_result(name)

    def _add_stored(self, stores: tuple[Store, ...], parts: int) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The buffers that a stage leaves: those of sums of rows, each in so many parts, and those of rows."""
        sums = tuple(store.buffer for store in stores if store.summed)
        self.buffers += [_by_row(name, DType.F32, BufferKind.WORKSPACE, parts) for name in sums]
        buffers = tuple(dict.fromkeys(store.buffer for store in stores if not store.summed))
        for name in buffers:
            self._add_rows(name)
        return sums, buffers

    def _lower_stage(self, stage: Stage) -> None:
        tile = stage_tile(stage, self.tiles, self.settings.target, self.dtype)
        per_accumulator = tile.cols // len(stage.accumulators)
        column = Coord("column")
        first_col = column * per_accumulator
        num_cols = minimum(Int(per_accumulator), Int(stage.num_cols) - first_col)
        num_columns = -(-stage.num_cols // per_accumulator)
        sums, buffers = self._add_stored(stage.stores, num_columns)
        name, row_values = (*sums, *buffers)[-1], self._row_values(stage.row_numbers)
        self.families.append(
            Family(
                name=f"gemm_{name}",
                role=Role.COMPUTE,
                value=name,
                domain=(TILES, Range(coord="column", extent=Int(num_columns))),
                body=GemmBody(
                    rows=stage.rows,
                    depth=stage.depth,
                    num_cols=stage.num_cols,
                    layout=stage.layout,
                    accumulators=stage.accumulators,
                    epilogue=stage.epilogue,
                    stores=stage.stores,
                    tile=tile,
                    row_values=row_values,
                    loads=stage.loads,
                    terms=stage.terms,
                ),
                reads=(
                    tile_access(stage.rows, Int(stage.depth)),
                    *(
                        self._weight_access(stage.layout, acc.weight, stage.depth, acc.first + first_col, num_cols)
                        for acc in stage.accumulators
                    ),
                    *(tile_access(term.rows, Int(term.depth)) for term in stage.terms),
                    *(
                        self._weight_access(stage.layout, term.weight, term.depth, acc.first + first_col, num_cols)
                        for term in stage.terms
                        for acc in stage.accumulators
                    ),
                    *(
                        Access(
                            buffer=acc.bias, row=EXPERT, num_rows=Int(1), col=acc.first + first_col, num_cols=num_cols
                        )
                        for acc in stage.accumulators
                        if acc.bias is not None
                    ),
                    *(row_value_access(found, self.topk) for found in row_values),
                    *(loaded_access(load, per_accumulator, stage.num_cols) for load in stage.loads),
                ),
                writes=tuple(stored_access(store, per_accumulator, stage.num_cols) for store in stage.stores),
                group=self.settings.options.group,
                span=stage.span,
            )
        )
        for name in buffers:
            self._pad_if_result(name)

    def _weight_access(self, layout: str, weight: str, depth: int, first: Expr, count: Expr) -> Access:
        """The part of one expert's weight that a tile reads. Row numbers run over all experts."""
        rows = self._buffer(weight).rows
        if layout == "nk":
            return Access(buffer=weight, row=EXPERT * rows + first, num_rows=count, num_cols=Int(depth))
        return Access(buffer=weight, row=EXPERT * rows, num_rows=Int(depth), col=first, num_cols=count)

    def _lower_combine(self, op: Op) -> None:
        rows = op.operands[0]
        weights = op.operands[1] if len(op.operands) > 1 else None
        target = returned_value(self.graph, op)
        if target is None:
            raise InternalError(f"check_support let the result of combine of `{rows}` pass")
        cols, dtype = self._buffer(rows).cols, value_dtype(self.graph, target)
        if rows not in self.returned:
            self._push(op, rows, cols)
        self.buffers.append(Buffer(name=target, dtype=dtype, rows=Sym("tokens"), cols=cols, kind=BufferKind.OUTPUT))
        self.families.append(self._reduce(op, self.returned[rows], weights, target, cols, dtype))

    def _lower_to_routes(self, op: Op) -> None:
        """The parts of a sum per row go back to its route, and are added up there."""
        sums = tuple(dict.fromkeys(summands(self.graph, op.operands[0])))
        target = op.results[0]
        for name in sums:
            if name not in self.returned:
                self._push(op, name, self._buffer(name).cols)
        parts = tuple(
            RoutesPart(rows=self.returned[name], cols=_int(self._buffer(name).cols))
            for name in summands(self.graph, op.operands[0])
        )
        self.buffers.append(
            Buffer(name=target, dtype=DType.F32, rows=Sym("tokens"), cols=Int(self.topk), kind=BufferKind.OUTPUT)
        )
        by_part = [self._reduce(op, part.rows, None, target, Int(part.cols), DType.F32) for part in parts]
        block = self.settings.options.block
        self.families.append(
            replace(
                by_part[0],
                body=RoutesBody(parts=parts, target=target, topk=self.topk, block=block, by_route=True),
                reads=tuple(access for reduce in by_part for access in reduce.reads),
                writes=tuple(replace(access, num_cols=Int(self.topk)) for access in by_part[0].writes),
            )
        )

    def _lower_outer(self, target: str) -> None:
        """Sums of outer products of each expert's rows: a family of tiles of each expert's result."""
        op, *others = outer_sum(self.graph, target)
        left, right = op.operands
        num_rows, num_cols = self._width(left), self._width(right)
        tile = outer_tile(self.settings.target, value_dtype(self.graph, left), num_rows, num_cols)
        across = -(-num_cols // tile.cols)
        expert, place = Coord("expert"), Coord("place")
        first_row = place // across * tile.rows if num_rows > tile.rows else Int(0)
        first_col = place % across * tile.cols
        height = minimum(Int(tile.rows), Int(num_rows) - first_row)
        width = minimum(Int(tile.cols), Int(num_cols) - first_col)
        row, num = Lookup("expert_row", (expert,)), Lookup("expert_rows", (expert,))
        self.buffers.append(
            Buffer(
                name=target,
                dtype=value_dtype(self.graph, target),
                rows=Int(num_rows),
                cols=Int(num_cols),
                kind=BufferKind.OUTPUT,
                experts=self.experts,
            )
        )
        self.families.append(
            Family(
                name=f"outer_{target}",
                role=Role.COMPUTE,
                value=target,
                domain=(
                    Range(coord="expert", extent=Int(self.experts)),
                    Range(coord="place", extent=Int(-(-num_rows // tile.rows) * across)),
                ),
                body=OuterBody(
                    left=left,
                    right=right,
                    target=target,
                    num_rows=num_rows,
                    num_cols=num_cols,
                    tile=tile,
                    terms=tuple(OuterTerm(left=other.operands[0], right=other.operands[1]) for other in others),
                ),
                reads=tuple(
                    Access(buffer=buffer, row=row, num_rows=num, col=col, num_cols=count)
                    for product in (op, *others)
                    for buffer, col, count in zip(
                        product.operands, (first_row, first_col), (height, width), strict=True
                    )
                ),
                writes=(
                    Access(
                        buffer=target,
                        row=expert * num_rows + first_row,
                        num_rows=height,
                        col=first_col,
                        num_cols=width,
                    ),
                ),
                span=op.span,
            )
        )

    def _lower_sum(self, op: Op) -> None:
        """The sums of each expert's rows: a family of pieces of each expert's result."""
        target = returned_value(self.graph, op)
        if target is None:
            raise InternalError(f"check_support let the result of {op.kind} pass")
        rows, number = factored(self.graph).get(op.operands[0], (op.operands[0], ""))
        num_cols, num_experts = self._width(rows), Int(self.experts)
        expert, place = Coord("expert"), Coord("place")
        first = place * SUM_WIDTH
        width = minimum(Int(SUM_WIDTH), Int(num_cols) - first)
        row, num = Lookup("expert_row", (expert,)), Lookup("expert_rows", (expert,))
        dtype = value_dtype(self.graph, target)
        factors = self._row_values((number,) if number else ())
        self.buffers.append(
            Buffer(name=target, dtype=dtype, rows=num_experts, cols=Int(num_cols), kind=BufferKind.OUTPUT)
        )
        self.families.append(
            Family(
                name=f"sum_{target}",
                role=Role.COMPUTE,
                value=target,
                domain=(
                    Range(coord="expert", extent=num_experts),
                    Range(coord="place", extent=Int(-(-num_cols // SUM_WIDTH))),
                ),
                body=SumBody(
                    rows=rows,
                    target=target,
                    num_cols=num_cols,
                    width=SUM_WIDTH,
                    depth=SUM_DEPTH,
                    factor=factors[0] if factors else None,
                ),
                reads=(
                    Access(buffer=rows, row=row, num_rows=num, col=first, num_cols=width),
                    *(factor_access(found, self.topk) for found in factors),
                ),
                writes=(Access(buffer=target, row=expert, num_rows=Int(1), col=first, num_cols=width),),
                span=op.span,
            )
        )

    def _push(self, op: Op, rows: str, cols: Expr) -> None:
        """The family that returns `rows`, and the buffer with one row per route that they return to."""
        returned = Buffer(
            name=fresh(f"{rows}_returned", (*self.graph.types, *(buffer.name for buffer in self.buffers))),
            dtype=self._buffer(rows).dtype,
            rows=Sym("tokens_bound") * self.topk,
            cols=cols,
            kind=BufferKind.SYMMETRIC,
        )
        self.buffers.append(returned)
        self.returned[rows] = returned.name
        if not self.settings.local and ROW_ROUTE not in {buffer.name for buffer in self.buffers}:
            self.buffers.append(_by_row(ROW_ROUTE, DType.I32, BufferKind.INPUT))  # rows that came in with their routes
        self.families.append(_push(op, rows, returned.name, cols, self.settings.options.chunk))

    def _buffer(self, name: str) -> Buffer:
        return next(buffer for buffer in self.buffers if buffer.name == name)

    def _reduce(self, op: Op, rows: str, weights: str | None, target: str, cols: Expr, dtype: DType) -> Family:
        block = self.settings.options.block
        first = Coord("block") * block
        num_tokens = minimum(Int(block), Sym("tokens") - first)
        route = (first + Coord("i")) * self.topk + Coord("k")
        over = (Range(coord="i", extent=num_tokens), Range(coord="k", extent=Int(self.topk)))
        valid = less(Int(-1), Lookup("dest", (route,)))
        reads = [Access(buffer=rows, row=route, num_rows=Int(1), num_cols=cols, over=over, when=valid)]
        if weights is not None:
            reads.append(Access(buffer=weights, row=first, num_rows=num_tokens, num_cols=Int(self.topk)))
        return Family(
            name=f"reduce_{target}",
            role=Role.REDUCE,
            value=target,
            domain=(Range(coord="block", extent=cdiv(Sym("tokens"), Int(block))),),
            body=ReduceBody(
                rows=rows,
                weights=weights,
                target=target,
                cols=_int(cols),
                topk=self.topk,
                block=block,
                dtype=dtype,
                by_route=True,
            ),
            reads=tuple(reads),
            writes=(Access(buffer=target, row=first, num_rows=num_tokens, num_cols=cols),),
            span=op.span,
        )

    def _pad_if_result(self, name: str) -> None:
        """A rows result is zero after its last valid row, whatever its memory held before."""
        if name not in self.graph.results:
            return
        buffer, span = self._buffer(name), next(value.span for value in self.graph.values if value.name == name)
        chunk = self.settings.options.chunk
        first = Sym("num_rows") + Coord("piece") * chunk
        count = minimum(Int(chunk), Sym("rows_bound") - first)
        self.families.append(
            Family(
                name=f"pad_{name}",
                role=Role.COMPUTE,
                value=name,
                domain=(Range(coord="piece", extent=cdiv(Sym("rows_bound") - Sym("num_rows"), Int(chunk))),),
                body=ZeroBody(target=name, cols=_int(buffer.cols), chunk=chunk),
                reads=(),
                writes=(Access(buffer=name, row=first, num_rows=count, num_cols=buffer.cols),),
                span=span,
            )
        )


def _in_data_flow_order(families: Iterable[Family]) -> tuple[Family, ...]:
    """The families, each after those that write what it reads, and else in their order."""
    waiting, done = list(families), []
    while waiting:
        unwritten = {access.buffer for family in waiting for access in family.writes}
        ready = (f for f in waiting if not unwritten.intersection(access.buffer for access in f.reads))
        family = next(ready, None)
        if family is None:
            raise InternalError(f"families wait for each other: {', '.join(family.name for family in waiting)}")
        waiting.remove(family)
        done.append(family)
    return tuple(done)


def _by_row(name: str, dtype: DType, kind: BufferKind, cols: int = 1) -> Buffer:
    """A buffer with one number per row, or a few."""
    return Buffer(name=name, dtype=dtype, rows=Sym("rows_bound"), cols=Int(cols), kind=kind)


def _biases_of(graph: OpGraph) -> frozenset[str]:
    """The tensors that hold one row of numbers per expert."""
    read = {op.operands[2] for op in graph.ops if op.kind == "group_gemm" and len(op.operands) > 2}
    return frozenset(read | {op.operands[0] for op in graph.ops if op.kind == "bias_rows"})


def _int(expr: Expr) -> int:
    """The value of an expression that is a constant by construction."""
    if isinstance(expr, Int):
        return expr.value
    raise TypeError(f"not a constant: {expr}")


def _push(op: Op, rows: str, returned: str, cols: Expr, chunk: int) -> Family:
    return Family(
        name=f"push_{rows}",
        role=Role.PUSH,
        value=rows,
        domain=(TILES,),
        body=CopyBody(source=rows, target=returned, cols=_int(cols), chunk=chunk),
        reads=(
            tile_access(rows, cols),
            tile_access(ROW_ROUTE, Int(1)),
        ),
        writes=(
            Access(buffer=returned, rank=SOURCE, row=ROUTE_AT, num_rows=Int(1), num_cols=cols, over=(ROWS_OF_TILE,)),
        ),
        span=op.span,
    )
