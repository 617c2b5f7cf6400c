"""Conditions between dims, as text: `H % 16 == 0`, `K <= E`.

Their grammar is a subset of Python's, and they mean what they mean there.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from types import MappingProxyType

_ARITHMETIC: Mapping[type[ast.operator], Callable[[int, int], int]] = MappingProxyType(
    {
        ast.Add: operator.add,
        ast.Sub: operator.sub,
        ast.Mult: operator.mul,
        ast.Mod: operator.mod,
        ast.FloorDiv: operator.floordiv,
    }
)
_COMPARISONS: Mapping[type[ast.cmpop], tuple[str, Callable[[int, int], bool]]] = MappingProxyType(
    {
        ast.Eq: ("==", operator.eq),
        ast.NotEq: ("!=", operator.ne),
        ast.Lt: ("<", operator.lt),
        ast.LtE: ("<=", operator.le),
        ast.Gt: (">", operator.gt),
        ast.GtE: (">=", operator.ge),
    }
)


def holds(text: str, dims: Mapping[str, int]) -> bool:
    """Whether the condition is true. KeyError if a dim is missing, ZeroDivisionError, ValueError for other text."""
    return _COMPARISONS[type(_parsed(text).ops[0])][1](*sides(text, dims))


def sides(text: str, dims: Mapping[str, int]) -> tuple[int, int]:
    """The numbers on its two sides."""
    parsed = _parsed(text)
    return _number(parsed.left, dims), _number(parsed.comparators[0], dims)


def comparison(text: str) -> str:
    """The operator between its two sides."""
    return _COMPARISONS[type(_parsed(text).ops[0])][0]


def names(text: str) -> tuple[str, ...]:
    """The dims that it names, sorted."""
    return tuple(sorted({node.id for node in ast.walk(_parsed(text)) if isinstance(node, ast.Name)}))


def _parsed(text: str) -> ast.Compare:
    try:
        body = ast.parse(text, mode="eval").body
    except SyntaxError:
        body = None
    if not isinstance(body, ast.Compare) or len(body.ops) != 1 or type(body.ops[0]) not in _COMPARISONS:
        raise ValueError(f"not a condition: {text}")
    return body


def _number(node: ast.expr, dims: Mapping[str, int]) -> int:
    match node:
        case ast.Constant(value=int(value)) if not isinstance(value, bool):
            return value
        case ast.Name(id=name):
            return dims[name]
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_number(operand, dims)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _ARITHMETIC:
            return _ARITHMETIC[type(op)](_number(left, dims), _number(right, dims))
        case _:
            raise ValueError(f"not a number of dims: {ast.unparse(node)}")
