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

from uniep_compiler.diagnostics import Diagnostic, Label, UniepError
from uniep_compiler.ir.ops import Attr, Op, OpGraph, Value
from uniep_compiler.ir.types import Dim, DType, RoutesType, RowsType, TensorType, Type
from uniep_compiler.source import Source, Span

_NAME = r"[A-Za-z_][\w.]*"
_TYPE = r"\w+\[[^\]]*\]"
_GRAPH = re.compile(rf"graph ({_NAME}) {{")
_PARAM = re.compile(rf"param ({_NAME}) : ({_TYPE})")
_WHERE = re.compile(r"where (.+)")
_RETURN = re.compile(r"return(?: (.+))?")
_OP = re.compile(rf"(?:(.+?) = )?({_NAME})\(([^)]*)\)(?: (\{{.*\}}))?")
_RESULT = re.compile(rf"({_NAME}) : ({_TYPE})")
_ROWS = re.compile(rf"rows\(({_NAME})\)")
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
    """The graph of a text that `print_ops` wrote; UniepError (UEP0111) with the line for any other text.

    Its spans are those of this text. Types are taken as they stand: the verifier checks them.
    """
    return _Reader(Source(name=name, text=text)).read()


class _Reader:
    def __init__(self, source: Source) -> None:
        self._source = source
        self._name: str | None = None
        self._params: list[Value] = []
        self._values: list[Value] = []
        self._ops: list[Op] = []
        self._constraints: list[str] = []
        self._results: tuple[str, ...] | None = None

    def read(self) -> OpGraph:
        closed = False
        span = _line_span(1, "")
        for number, line in self._lines():
            span = _line_span(number, line)
            if closed:
                raise self._wrong(span, "nothing more behind `}`")
            closed = line.strip() == "}" and self._results is not None
            if not closed:
                self._read_line(line.strip(), span)
        if not closed or self._name is None or self._results is None:
            raise self._wrong(span, "`graph name {`, lines, `return ...` and `}`")
        return OpGraph(
            name=self._name,
            params=tuple(self._params),
            values=tuple(self._values),
            ops=tuple(self._ops),
            results=self._results,
            constraints=tuple(self._constraints),
            span=_line_span(1, self._source.line(1)),
        )

    def _lines(self) -> Iterator[tuple[int, str]]:
        return ((number, line) for number, line in enumerate(self._source.lines, 1) if line.strip())

    def _read_line(self, line: str, span: Span) -> None:
        if self._name is None:
            self._name = self._match(_GRAPH, line, span, "`graph name {`")[1]
        elif self._results is not None:
            raise self._wrong(span, "`}` behind `return`")
        elif found := _PARAM.fullmatch(line):
            self._params.append(Value(name=found[1], type=self._type(found[2], span), span=span))
        elif found := _WHERE.fullmatch(line):
            self._constraints.append(found[1])
        elif found := _RETURN.fullmatch(line):
            self._results = _names(found[1])
        else:
            self._read_op(line, span)

    def _read_op(self, line: str, span: Span) -> None:
        found = self._match(_OP, line, span, "`name : type = op(operands) {attributes}`")
        results = [Value(name=r[1], type=self._type(r[2], span), span=span) for r in _RESULT.finditer(found[1] or "")]
        left = ", ".join(f"{value.name} : {value.type}" for value in results)
        if left != (found[1] or ""):
            raise self._wrong(span, "results like `name : type`, with commas between")
        self._values += results
        self._ops.append(
            Op(
                kind=found[2],
                operands=_names(found[3]),
                results=tuple(value.name for value in results),
                attrs=self._attrs(found[4] or "{}", span),
                span=span,
            )
        )

    def _attrs(self, text: str, span: Span) -> tuple[tuple[str, Attr], ...]:
        found = [(match[1], match[2]) for match in _ATTR.finditer(text[1:-1])]
        if ", ".join(f"{name} = {value}" for name, value in found) != text[1:-1]:
            raise self._wrong(span, "attributes like `{name = value}`")
        return tuple((name, self._attr(value, span)) for name, value in found)

    def _attr(self, text: str, span: Span) -> Attr:
        if text in set(DType):
            return DType(text)
        if text in ("true", "false"):
            return text == "true"
        try:
            if text.startswith('"'):
                return str(json.loads(text))
            return int(text) if re.fullmatch(r"-?\d+", text) else float(text)
        except ValueError:
            raise self._wrong(span, f"a value of an attribute, not {text}") from None

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
            raise self._wrong(span, f"a type, not `{text}`") from None

    def _match(self, pattern: re.Pattern[str], line: str, span: Span, expected: str) -> re.Match[str]:
        found = pattern.fullmatch(line)
        if found is None:
            raise self._wrong(span, expected)
        return found

    def _wrong(self, span: Span, expected: str) -> UniepError:
        message = "this is not the text of an OpGraph"
        label = Label(span=span, text=f"expected {expected}")
        return UniepError([Diagnostic(code="UEP0111", message=message, labels=(label,))], self._source)


def _names(text: str | None) -> tuple[str, ...]:
    return tuple(text.split(", ")) if text else ()


def _line_span(number: int, line: str) -> Span:
    column = len(line) - len(line.lstrip()) + 1
    return Span(line=number, column=column, end_line=number, end_column=len(line.rstrip()) + 1)
