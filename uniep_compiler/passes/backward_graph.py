"""The graph of a backward pass in the making: what gradient rules write into."""

from __future__ import annotations

from dataclasses import replace

from uniep_compiler.diagnostics import InternalError
from uniep_compiler.ir.op_rules import Problem
from uniep_compiler.ir.op_table import infer
from uniep_compiler.ir.ops import Attr, Op, OpGraph, Value
from uniep_compiler.ir.types import DType, RoutesType, RowsType, Type
from uniep_compiler.passes.names import fresh
from uniep_compiler.source import NO_SPAN, Span


class BackwardGraph:
    """Ops of the backward pass of `program`. An op that is there already is not written again.

    `active` are the values of the program that depend on a parameter whose gradient is asked for. `kept` collects the
    values that the forward pass has to keep. Values of the program have the same names here.
    """

    def __init__(self, program: OpGraph, active: frozenset[str]) -> None:
        self.program = program
        self.span: Span = NO_SPAN
        self.kept: dict[str, Value] = {}
        self._active = active
        self._types: dict[str, Type] = {}
        self._ops: list[Op] = []
        self._known: dict[tuple[object, ...], tuple[str, ...]] = {}
        self._taken = set(program.types)
        self._forward_types = program.types
        self._forward_values = {value.name: value for value in (*program.params, *program.values)}

    # -- what rules ask -----------------------------------------------------------------------------------------------

    def wants(self, name: str) -> bool:
        """Whether the gradient of a value of the program is asked for."""
        return name in self._active

    def dtype_of(self, name: str) -> DType:
        """The element type of a value of the program, or of this graph."""
        kind = self._types[name] if name in self._types else self._forward_types[name]
        if isinstance(kind, RoutesType):
            raise TypeError(f"{name} is routes")
        return kind.dtype

    def routes_of(self, rows: str) -> str:
        """The routes behind a rows value of the program, as a value of this graph."""
        kind = self._forward_types[rows]
        if not isinstance(kind, RowsType):
            raise TypeError(f"{rows} is not rows")
        return self.forward(kind.routes)

    def is_number_per_row(self, name: str) -> bool:
        """Whether a value of this graph is one number per row."""
        kind = self._types[name]
        return isinstance(kind, RowsType) and not kind.shape

    def are_alike(self, one: str, other: str) -> bool:
        """Whether two values of this graph are rows of one routing and of one width."""
        first, second = self._types[one], self._types[other]
        return (
            isinstance(first, RowsType)
            and isinstance(second, RowsType)
            and (first.routes, first.shape) == (second.routes, second.shape)
        )

    def producer(self, name: str) -> Op | None:
        """The op of this graph that makes a value."""
        return next((op for op in self._ops if name in op.results), None)

    # -- what rules write ---------------------------------------------------------------------------------------------

    def param(self, name: str, kind: Type) -> str:
        """A parameter of the backward pass, under a name that nothing has yet."""
        if isinstance(kind, RowsType):
            self.forward(kind.routes)
        name = fresh(name, self._taken)
        self._taken.add(name)
        self._types[name] = kind
        return name

    def forward(self, name: str) -> str:
        """A value of the program: kept by the forward pass, if it takes a GEMM to make it, else made again."""
        if name in self._types:
            return name
        op = self.program.producer(name)
        if op is None or self._is_kept(op):
            self._keep(name)
            return name
        for operand in op.operands:
            self.forward(operand)
        for result in op.results:
            self._types[result] = self._forward_types[result]
        self._ops.append(op)
        self._known[op.kind, op.operands, op.attrs] = op.results
        return name

    def _is_kept(self, op: Op) -> bool:
        """Whether the results of an op of the program are kept. What a GEMM makes is, after it was rounded."""
        if op.kind == "round":
            maker = self.program.producer(op.operands[0])
            return maker is not None and self._is_kept(maker)
        return op.kind in ("route", "group_gemm", "combine")

    def _keep(self, name: str) -> None:
        value = self._forward_values[name]
        if isinstance(value.type, RowsType):
            self.forward(value.type.routes)
        self._types[name] = value.type
        self.kept[name] = value

    def constant(self, value: float) -> str:
        """A number."""
        return self.emit("const", value=value)

    def rounded(self, name: str, dtype: DType, label: str = "") -> str:
        """A value in `dtype`. `label` is what the program calls the value whose gradient it is."""
        if self.dtype_of(name) is dtype:
            return name
        found = self.emit("round", name, dtype=dtype)
        return self.rename(found, f"grad_{label}") if label else found

    def unrounded(self, name: str) -> str:
        """What a value is before it is rounded, where this graph rounds it."""
        maker = self.producer(name)
        return name if maker is None or maker.kind != "round" else maker.operands[0]

    def emit(self, kind: str, *operands: str, **attrs: Attr) -> str:
        """The one result of an op."""
        (result,) = self.emit_all(kind, *operands, **attrs)
        return result

    def emit_all(self, kind: str, *operands: str, **attrs: Attr) -> tuple[str, ...]:
        """The results of an op."""
        key = kind, operands, tuple(attrs.items())
        if key not in self._known:
            values = tuple(Value(name=name, type=self._types[name]) for name in operands)
            types = infer(kind, values, attrs, self._types)
            if isinstance(types, Problem):
                raise InternalError(f"a gradient rule wrote {kind}({', '.join(operands)}): {types.message}")
            results = tuple(self._new_name() for _ in types)
            self._types.update(zip(results, types, strict=True))
            self._ops.append(
                Op(kind=kind, operands=operands, results=results, attrs=tuple(attrs.items()), span=self.span)
            )
            self._known[key] = results
        return self._known[key]

    def _new_name(self) -> str:
        number = 1
        while (name := f"_{number}") in self._taken:
            number += 1
        self._taken.add(name)
        return name

    def rename(self, name: str, wish: str) -> str:
        """Gives a value without a name one, `wish` or the like, and returns it."""
        if not name.startswith("_"):
            return name
        new = fresh(wish, self._taken)
        self._taken.add(new)
        self._types[new] = self._types.pop(name)
        swap = {name: new}
        self._ops = [
            replace(
                op,
                operands=tuple(swap.get(n, n) for n in op.operands),
                results=tuple(swap.get(n, n) for n in op.results),
            )
            for op in self._ops
        ]
        self._known = {(op.kind, op.operands, op.attrs): op.results for op in self._ops}
        return new

    # -- the finished graph -------------------------------------------------------------------------------------------

    def finish(self, grads: tuple[str, ...], results: tuple[str, ...]) -> OpGraph:
        """The graph of what `results` need: a function of what is kept, and of the gradients `grads`."""
        wanted, ops = set(results), []
        for op in reversed(self._ops):
            if wanted.intersection(op.results):
                wanted.update(op.operands)
                ops.append(op)
        params = [value for name, value in self.kept.items() if name in wanted or self._is_routes_of(name, wanted)]
        given = [Value(name=name, type=self._types[name]) for name in grads]
        made = [name for op in ops[::-1] for name in op.results]
        return OpGraph(
            name=f"{self.program.name}_backward",
            params=(*params, *given),
            values=tuple(Value(name=n, type=self._types[n], span=self._span_of(n)) for n in made),
            ops=tuple(ops[::-1]),
            results=results,
            constraints=self.program.constraints,
            span=self.program.span,
        )

    def _is_routes_of(self, name: str, wanted: set[str]) -> bool:
        return any(isinstance(kind := self._types[n], RowsType) and kind.routes == name for n in wanted)

    def _span_of(self, name: str) -> Span:
        maker = self.producer(name)
        return NO_SPAN if maker is None else maker.span
