"""Leaves out of a module's prelude what the module does not use."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable
from dataclasses import dataclass

_WORD = re.compile(r"(?<![.\w])[A-Za-z_]\w*")
_PROSE = re.compile(r"#[^\n]*|\"\"\".*?\"\"\"", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """A statement of a prelude with the comment above it: its text, what it defines, and the words in it."""

    text: str
    defines: frozenset[str]
    words: frozenset[str]
    is_import: bool


def statements(text: str) -> tuple[Statement, ...]:
    """The statements at the top of a piece of source."""
    lines = text.split("\n")
    found: list[Statement] = []
    end = 0
    for node in ast.parse(text).body:
        first = min([node.lineno, *(decorator.lineno for decorator in getattr(node, "decorator_list", ()))]) - 1
        while first > end and lines[first - 1].startswith("#"):
            first -= 1
        end = node.end_lineno or node.lineno
        found.append(_statement(node, "\n".join(lines[first:end])))
    return tuple(found)


def _statement(node: ast.stmt, text: str) -> Statement:
    match node:
        case ast.FunctionDef(name=name):
            defines = {name}
        case ast.Assign(targets=targets):
            defines = {target.id for target in targets if isinstance(target, ast.Name)}
        case ast.Import(names=names) | ast.ImportFrom(names=names):
            defines = {alias.asname or alias.name for alias in names}
        case _:
            raise TypeError(f"a prelude has no such statement: {text}")
    return Statement(
        text=text,
        defines=frozenset(defines),
        words=words(text),
        is_import=isinstance(node, ast.Import | ast.ImportFrom),
    )


def words(text: str) -> frozenset[str]:
    """The names in a piece of source, comments, docstrings and attributes aside."""
    return frozenset(_WORD.findall(_PROSE.sub(" ", text)))


def needed(prelude: Iterable[Statement], used: Iterable[str]) -> tuple[Statement, ...]:
    """The statements that define something that is used, by `used` or by each other, in their own order."""
    prelude = tuple(prelude)
    wanted, seen = set(used), set[str]()
    while wanted - seen:
        new = wanted - seen
        seen |= new
        for statement in prelude:
            if statement.defines & new:
                wanted |= statement.words
    return tuple(statement for statement in prelude if statement.defines & wanted)
