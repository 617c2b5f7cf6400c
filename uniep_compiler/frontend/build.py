"""Makes the syntax tree (`frontend/syntax.py`) from Lark's parse tree."""

from __future__ import annotations

from lark import Token, Tree

from uniep_compiler.frontend import syntax
from uniep_compiler.frontend.layout import span_of
from uniep_compiler.source import Source, Span

_Node = Tree[Token]


def build_file(tree: _Node, source: Source) -> syntax.FileDecl:
    """The syntax tree of a whole file."""
    version, *blocks = tree.children
    assert isinstance(version, Token)
    return syntax.FileDecl(
        version=_ident(version),
        moes=tuple(_moe(block, source) for block in blocks if _is(block, "moe")),
        schedules=tuple(_schedule(block) for block in blocks if _is(block, "schedule")),
        source=source,
    )


def _moe(node: object, source: Source) -> syntax.MoeDecl:
    tree = _tree(node)
    name, params, results, where, block = tree.children
    return syntax.MoeDecl(
        name=_ident(name),
        params=tuple(_param(child) for child in _items(params)),
        results=tuple(_type(child) for child in _items(results)),
        constraints=tuple(_comparison(child) for child in _items(where)),
        body=tuple(_statement(child) for child in _items(block)),
        span=_span(tree),
        source=source,
    )


def _param(node: object) -> syntax.Param:
    name, type_ = _tree(node).children
    return syntax.Param(name=_ident(name), type=_type(type_), span=_span(node))


def _type(node: object) -> syntax.TypeExpr:
    name, dims = _tree(node).children
    return syntax.TypeExpr(name=_ident(name), dims=tuple(build_expr(child) for child in _items(dims)), span=_span(node))


def _comparison(node: object) -> syntax.Comparison:
    left, operator, right = _tree(node).children
    return syntax.Comparison(left=build_expr(left), operator=str(operator), right=build_expr(right), span=_span(node))


def _statement(node: object) -> syntax.Statement:
    tree = _tree(node)
    if tree.data == "return":
        values = tuple(map(build_expr, tree.children))
        if len(values) == 1 and isinstance(values[0], syntax.TupleExpr):  # several results may stand in brackets
            values = values[0].items
        return syntax.Return(values=values, span=_span(tree))
    targets, value = tree.children
    return syntax.Assign(targets=tuple(map(_target, _items(targets))), value=build_expr(value), span=_span(tree))


def _target(node: object) -> syntax.Target:
    name, dtype = _tree(node).children
    return syntax.Target(name=_ident(name), dtype=None if dtype is None else _ident(dtype), span=_span(node))


def _schedule(node: object) -> syntax.ScheduleDecl:
    tree = _tree(node)
    moe, for_, when, *entries = tree.children
    target = next(iter(_items(for_)), None)
    return syntax.ScheduleDecl(
        moe=_ident(moe),
        target=None if target is None else _ident(target),
        conditions=tuple(_comparison(child) for child in _items(when)),
        entries=tuple(_entry(child) for child in entries),
        span=_span(tree),
    )


def _entry(node: object) -> syntax.ScheduleEntry:
    key, value = _tree(node).children
    name, argument = _tree(key).children
    return syntax.ScheduleEntry(
        key=_ident(name),
        argument=None if argument is None else build_expr(argument),
        value=build_expr(value),
        span=_span(node),
    )


def build_expr(node: object) -> syntax.Expr:
    """The syntax tree of an expression."""
    tree = _tree(node)
    span = _span(tree)
    match str(tree.data), tree.children:
        case "name", [name]:
            return syntax.NameExpr(name=str(name), span=span)
        case (("integer" | "real"), [number]):
            return syntax.Number(text=str(number), span=span)
        case "call", [function, arguments]:
            items = tuple(_argument(child) for child in _items(arguments))
            return syntax.Call(function=_ident(function), arguments=items, span=span)
        case "negative", [_, operand]:
            return syntax.Negative(operand=build_expr(operand), span=span)
        case "binary", [left, operator, right]:
            return syntax.Binary(operator=_ident(operator), left=build_expr(left), right=build_expr(right), span=span)
        case "tuple", items:
            return syntax.TupleExpr(items=tuple(build_expr(item) for item in items if item is not None), span=span)
        case other, _:
            raise AssertionError(f"no such rule in the grammar: {other}")


def _argument(node: object) -> syntax.Argument:
    keyword, value = _tree(node).children
    return syntax.Argument(
        keyword=None if keyword is None else _ident(keyword), value=build_expr(value), span=_span(node)
    )


def _ident(node: object) -> syntax.Ident:
    assert isinstance(node, Token)
    return syntax.Ident(name=str(node), span=span_of(node))


def _items(node: object) -> list[object]:
    """What a rule that is a list holds."""
    return list(_tree(node).children)


def _tree(node: object) -> _Node:
    assert isinstance(node, Tree)
    return node


def _is(node: object, rule: str) -> bool:
    return isinstance(node, Tree) and node.data == rule


def _span(node: object) -> Span:
    meta = _tree(node).meta
    return Span(line=meta.line, column=meta.column, end_line=meta.end_line, end_column=meta.end_column)
