"""Prints index expressions and epilogues as Triton source."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from types import MappingProxyType
from typing import assert_never

from uniep_compiler.ir.index import Binary, BinaryOp, Coord, Expr, Int, Lookup, Sym
from uniep_compiler.ir.ops import Op
from uniep_compiler.ir.tasks import BiasLoad, RowLoad
from uniep_compiler.ir.types import DType
from uniep_compiler.passes.names import is_named

TL_DTYPES: Mapping[DType, str] = {
    DType.BF16: "tl.bfloat16",
    DType.F16: "tl.float16",
    DType.F32: "tl.float32",
    DType.I32: "tl.int32",
    DType.I64: "tl.int64",
}

LONGEST_EXPRESSION = 80
"""Characters of an expression in an epilogue, so that with its name and indentation it fits on a line."""

SYMBOL_NAMES: Mapping[str, str] = {"num_rows": "total_rows"}
"""Symbols whose name in kernels differs: there, `num_rows` are those of a tile."""

NOTHING: Mapping[str, str] = MappingProxyType({})

ATOM = 4
"""A precedence above that of all operators."""

_CALLS = {BinaryOp.MIN: "minimum", BinaryOp.MAX: "maximum", BinaryOp.CEILDIV: "cdiv"}
_PRECEDENCE = {
    BinaryOp.EQ: 1,
    BinaryOp.LT: 1,
    BinaryOp.ADD: 2,
    BinaryOp.SUB: 2,
    BinaryOp.MUL: 3,
    BinaryOp.FLOORDIV: 3,
    BinaryOp.MOD: 3,
}


def expr_text(expr: Expr, lookups: Mapping[Expr, str], outer: int = 0) -> str:
    """The Triton text of `expr`; every look-up in it has a name in `lookups`. `outer` is the precedence around it."""
    if expr in lookups:
        return lookups[expr]
    match expr:
        case Int(value):
            return str(value)
        case Sym(name):
            return SYMBOL_NAMES.get(name, name)
        case Coord(name):
            return name
        case Lookup():
            raise KeyError(f"no name for the look-up {expr}")
        case Binary(op, lhs, rhs) if op in _CALLS:
            return f"{_CALLS[op]}({expr_text(lhs, lookups)}, {expr_text(rhs, lookups)})"
        case Binary(op, lhs, rhs):
            level = _PRECEDENCE[op]
            text = f"{expr_text(lhs, lookups, level)} {op.value} {expr_text(rhs, lookups, level + 1)}"
            return f"({text})" if level < outer else text
        case _:
            assert_never(expr)


def epilogue_lines(
    ops: tuple[Op, ...],
    names: Mapping[str, str],
    stored: Collection[str] = (),
    inside: Mapping[str, str] = NOTHING,
) -> list[str]:
    """Assignments for an epilogue's ops, in order. Unnamed values that are only read once stand inside their reader.

    `inside` says by value which of its columns count in a sum of a row; those of others all do.

    A text that grows too long for that gets its line after all, so that every line stays short.
    """
    reads = Counter(name for op in ops for name in op.operands)
    inline: dict[str, str] = {}
    lines: list[str] = []

    def write(name: str, text: str) -> None:
        lines.append(f"{names[name]} = {text}")

    for op in ops:
        result = op.results[0]
        counted = inside.get(op.operands[0], "") if op.kind == "row_sum" else ""
        text = _op_text(op, [inline.get(name, names[name]) for name in op.operands], counted)
        while len(text) > LONGEST_EXPRESSION and (long := _longest(op, inline)):
            write(long, inline.pop(long))
            text = _op_text(op, [inline.get(name, names[name]) for name in op.operands], counted)
        if op.kind == "split":
            lines.append(f"{', '.join(names[half] for half in op.results)} = {text}")
        elif op.kind == "const" or (not is_named(result) and reads[result] == 1 and result not in stored):
            inline[result] = text
        else:
            write(result, text)
    return lines


def shares_of(ops: tuple[Op, ...], loads: Iterable[RowLoad | BiasLoad]) -> dict[str, int]:
    """Columns of values, for two of most of them: 4 where there is a pair for each, 1 for one half of the pairs."""
    shares = {load.value: 4 if load.doubled else 2 for load in loads}
    for op in ops:
        share = max((shares.get(name, 2) for name in op.operands), default=2)
        share = {"split": share // 2, "join": share * 2}.get(op.kind, share)
        shares.update(dict.fromkeys(op.results, share))
    return shares


def _longest(op: Op, inline: Mapping[str, str]) -> str | None:
    """The operand that stands inside the op with the longest text, constants aside."""
    inside = [name for name in op.operands if name in inline and not _is_number(inline[name])]
    return max(inside, key=lambda name: len(inline[name]), default=None)


def _is_number(text: str) -> bool:
    return text.lstrip("-")[0].isdigit()


_FUNCTIONS = frozenset({"silu", "sigmoid", "gelu", "gelu_tanh", "relu", "square", "gelu_slope", "gelu_tanh_slope"})
_INFIX = {"add": "+", "sub": "-", "mul": "*"}


def _op_text(op: Op, operands: list[str], inside: str) -> str:
    match op.kind:
        case "row_sum":
            return f"sum_of({f'tl.where({inside}, {operands[0]}, 0.0)' if inside else operands[0]}, 1)"
        case "join":
            return f"in_turn({operands[0]}, {operands[1]})"
        case "step":
            return f"is_positive({operands[0]})"
        case "within":
            return _within_text(op, operands[0])
        case "const":
            return repr(float(str(op.attr("value"))))
        case "add" | "sub" | "mul":
            left, right = (_wrapped(text) for text in operands)
            return f"{left} {_INFIX[op.kind]} {right}"
        case "neg":
            return f"-{_wrapped(operands[0])}"
        case "clamp":
            return _clamp_text(op, operands[0])
        case "split":
            return f"even_and_odd({operands[0]})"
        case "round":
            dtype = DType(str(op.attr("dtype")))
            return operands[0] if dtype is DType.F32 else f"rounded({operands[0]}, {TL_DTYPES[dtype]})"
        case kind if kind in _FUNCTIONS:
            return f"{kind}({operands[0]})"
        case _:
            raise KeyError(f"no Triton text for op {op.kind}")


def _within_text(op: Op, operand: str) -> str:
    low, high = op.optional("min"), op.optional("max")
    tests = [f"is_at_least({operand}, {float(str(low))!r})"] if low is not None else []
    tests += [f"is_at_most({operand}, {float(str(high))!r})"] if high is not None else []
    return " * ".join(tests)


def _clamp_text(op: Op, operand: str) -> str:
    low, high = op.optional("min"), op.optional("max")
    text = operand if low is None else f"at_least({operand}, {float(str(low))!r})"
    return text if high is None else f"at_most({text}, {float(str(high))!r})"


def _wrapped(text: str) -> str:
    """Parentheses around a text with operators at its top level, so that evaluation order is the program's."""
    depth = 0
    for before, char in zip(" " + text, text, strict=False):
        depth += (char in "([") - (char in ")]")
        if depth == 0 and before == " " and char in "+-*":
            return f"({text})"
    return text
