"""The text form of an OpGraph: `print_ops` writes it, and `read_ops` reads the same graph back.

graph m {
    param x : bf16[T, H]
    where H % 16 == 0
    xs : bf16[rows(r), H] = dispatch(x, r)
    gate : bf16[rows(r), I], up : bf16[rows(r), I] = split(h) {how = "halves"}
    return out
}
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NoReturn

from uniep_compiler.diagnostics import Diagnostic, Label, UniepError
from uniep_compiler.ir.ops import Attr, Op, OpGraph, Value
from uniep_compiler.ir.ops_check import Name, OpLine, OpsCheck
from uniep_compiler.ir.types import Dim, DType, RoutesType, RowsType, TensorType, Type
from uniep_compiler.source import Source, Span

_NAME = r"[A-Za-z_][A-Za-z0-9_.]*"
_TYPE = r"\w+\[[^\]]*\]"
_GRAPH = re.compile(rf"graph ({_NAME}) {{")
_PARAM = re.compile(rf"param ({_NAME}) : ({_TYPE})")
_WHERE = re.compile(r"where (.+)")
_RETURN = re.compile(r"return(?: (.+))?")
_OP = re.compile(rf"(?:(.+?) = )?({_NAME})\(([^)]*)\)(?: (\{{.*\}}))?")
_RESULT = re.compile(rf"({_NAME}) : ({_TYPE})")
_ROWS = re.compile(rf"rows\(({_NAME})\)")
_NUMBER = re.compile(r"-?[0-9]+(\.[0-9]+)?(e[-+]?[0-9]+)?")
_VALUE = re.compile(_NAME)
_ATTR = re.compile(r'(\w+) = ("(?:[^"\\]|\\.)*"|[^,"]+)')


def print_ops(graph: OpGraph) -> str:
    """The graph as text, one line per parameter, constraint and op."""
    types = graph.types
    lines = [
        *(f"param {value.name} : {value.type}" for value in graph.params),
        *(f"where {constraint}" for constraint in graph.constraints),
        *(_op_text(op, {name: types[name] for name in op.results}) for op in graph.ops),
        f"return {', '.join(graph.results)}".rstrip(),
    ]
    return "\n".join([f"graph {graph.name} {{", *(f"    {line}" for line in lines), "}", ""])


def _op_text(op: Op, results: dict[str, Type]) -> str:
    left = ", ".join(f"{name} : {type_}" for name, type_ in results.items())
    attrs = ", ".join(f"{name} = {_attr_text(value)}" for name, value in op.attrs)
    call = f"{op.kind}({', '.join(op.operands)})" + (f" {{{attrs}}}" if attrs else "")
    return f"{left} = {call}" if left else call


def _attr_text(value: Attr) -> str:
    match value:
        case DType():
            return str(value)
        case str():
            return json.dumps(value)
        case bool():
            return "true" if value else "false"
        case int() | float():
            return repr(value)


def read_ops(text: str, name: str = "<ops>") -> OpGraph:
    """The graph of a text that `print_ops` wrote. Its spans are those of this text.

    Raises UniepError with the place in any other text: UEP0111 where a line is of no form that there is, or else all
    that is wrong with names, ops and types, with the codes that programs have for it.
    """
    _check_text(text)
    return _Reader(Source(name=name, text=text)).read()


def _check_text(text: object) -> None:
    if not isinstance(text, str):
        message = f"an OpGraph is read from a text, not from {type(text).__name__}"
        raise UniepError([Diagnostic(code="UEP0111", message=message, help="a text is a str")])


@dataclass(frozen=True, slots=True, kw_only=True)
class _Line:
    """One line without the blanks around it, and where it starts."""

    text: str
    number: int
    column: int

    @property
    def span(self) -> Span:
        return self.part(0, len(self.text))

    def part(self, start: int, end: int) -> Span:
        """The place of `text[start:end]`."""
        return Span(line=self.number, column=self.column + start, end_line=self.number, end_column=self.column + end)

    def name(self, found: re.Match[str], group: int = 1) -> Name:
        """A group of what was found in this line, with its place."""
        return Name(text=found[group], span=self.part(*found.span(group)))


class _Reader:
    def __init__(self, source: Source) -> None:
        self._source = source
        self._check = OpsCheck()
        self._name: str | None = None
        self._params: list[Value] = []
        self._values: list[Value] = []
        self._ops: list[Op] = []
        self._constraints: list[str] = []
        self._results: tuple[str, ...] | None = None

    def read(self) -> OpGraph:
        closed = False
        line = _Line(text="", number=1, column=1)
        for line in self._lines():
            if closed:
                self._wrong(line.span, "nothing more behind `}`")
            closed = line.text == "}" and self._results is not None
            if not closed:
                self._read_line(line)
        if not closed or self._name is None or self._results is None:
            self._wrong(line.span, "`graph name {`, lines, `return ...` and `}`")
        self._check.check_params(self._params)
        self._check.bag.raise_if_errors(self._source)
        return OpGraph(
            name=self._name,
            params=tuple(self._params),
            values=tuple(self._values),
            ops=tuple(self._ops),
            results=self._results,
            constraints=tuple(self._constraints),
            span=_Line(text=self._source.line(1), number=1, column=1).span,
        )

    def _lines(self) -> Iterator[_Line]:
        for number, line in enumerate(self._source.lines, 1):
            if text := line.strip():
                yield _Line(text=text, number=number, column=len(line) - len(line.lstrip()) + 1)

    def _read_line(self, line: _Line) -> None:
        if self._name is None:
            self._name = self._match(_GRAPH, line, "`graph name {`")[1]
        elif self._results is not None:
            self._wrong(line.span, "`}` behind `return`")
        elif found := _PARAM.fullmatch(line.text):
            if self._constraints or self._ops:
                self._wrong(line.span, "parameters first, before conditions and ops")
            self._params.append(self._value(found, line))
            self._check.define(self._params[-1])
        elif found := _WHERE.fullmatch(line.text):
            if self._ops:
                self._wrong(line.span, "conditions before ops")
            self._check.check_condition(found[1], line.part(*found.span(1)))
            self._constraints.append(found[1])
        elif found := _RETURN.fullmatch(line.text):
            names = self._names(found, 1, line)
            self._check.check_results(names)
            self._results = tuple(name.text for name in names)
        else:
            self._read_op(line)

    def _read_op(self, line: _Line) -> None:
        found = self._match(_OP, line, "`name : type = op(operands) {attributes}`")
        op_line = OpLine(
            kind=line.name(found, 2),
            operands=self._names(found, 3, line),
            results=self._op_results(found, line),
            attrs=self._attrs(found, line),
            span=line.span,
        )
        self._check.check_op(op_line)
        self._values += op_line.results
        self._ops.append(op_line.op)

    def _op_results(self, found: re.Match[str], line: _Line) -> tuple[Value, ...]:
        left = found[1] or ""
        results = tuple(self._value(result, line) for result in _RESULT.finditer(left))
        if left != ", ".join(f"{value.name} : {value.type}" for value in results):
            self._wrong(line.part(*found.span(1)), "results like `name : type`, with commas between")
        return results

    def _value(self, found: re.Match[str], line: _Line) -> Value:
        name = line.name(found)
        return Value(name=name.text, type=self._type(found[2], line.part(*found.span(2))), span=name.span)

    def _names(self, found: re.Match[str], group: int, line: _Line) -> tuple[Name, ...]:
        text, start = found[group] or "", found.start(group)
        names = tuple(
            Name(text=name[0], span=line.part(start + name.start(), start + name.end()))
            for name in _VALUE.finditer(text)
        )
        if text != ", ".join(name.text for name in names):
            self._wrong(line.part(*found.span(group)), "names, with commas between")
        return names

    def _attrs(self, found: re.Match[str], line: _Line) -> tuple[tuple[Name, Attr], ...]:
        if found[4] is None:
            return ()
        text, start = found[4][1:-1], found.start(4) + 1
        attrs = list(_ATTR.finditer(text))
        if not attrs or text != ", ".join(attr[0] for attr in attrs):
            self._wrong(line.part(*found.span(4)), "attributes like `{name = value}`")
        shifted = _Line(text=text, number=line.number, column=line.column + start)
        return tuple((shifted.name(attr), self._attr(shifted.name(attr, 2))) for attr in attrs)

    def _attr(self, value: Name) -> Attr:
        text = value.text
        if text in set(DType):
            return DType(text)
        if text in ("true", "false"):
            return text == "true"
        try:
            if number := _NUMBER.fullmatch(text):
                return float(text) if number[1] or number[2] else int(text)
            return str(json.loads(text if text.startswith('"') else ""))
        except ValueError:
            self._wrong(value.span, "a value of an attribute")

    def _type(self, text: str, span: Span) -> Type:
        name, _, rest = text[:-1].partition("[")
        first, *more = rest.split(", ") if rest else [""]
        try:
            if name == "routes":
                tokens, topk, experts = map(Dim.parse, (first, *more))
                return RoutesType(tokens=tokens, topk=topk, experts=experts)
            if rows := _ROWS.fullmatch(first):
                return RowsType(dtype=DType(name), routes=rows[1], shape=tuple(map(Dim.parse, more)))
            return TensorType(dtype=DType(name), shape=tuple(map(Dim.parse, (first, *more))) if rest else ())
        except ValueError:
            self._wrong(span, f"a type, not `{text}`")

    def _match(self, pattern: re.Pattern[str], line: _Line, expected: str) -> re.Match[str]:
        found = pattern.fullmatch(line.text)
        if found is None:
            self._wrong(line.span, expected)
        return found

    def _wrong(self, span: Span, expected: str) -> NoReturn:
        message = "this is not the text of an OpGraph"
        label = Label(span=span, text=f"expected {expected}")
        help_ = "`uniepc show --stage ops` prints texts that can be read"
        raise UniepError([Diagnostic(code="UEP0111", message=message, labels=(label,), help=help_)], self._source)
