"""Positions in a program's text. Imports nothing from the rest of the package."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """One program text and the name it is reported under."""

    name: str
    text: str

    @property
    def lines(self) -> tuple[str, ...]:
        """The lines of the text without their ends. Only a newline ends a line: that is how positions are counted."""
        return tuple(line.removesuffix("\r") for line in self.text.split("\n"))

    def line(self, number: int) -> str:
        """The text of line `number` (from 1), without its line end; empty past the last line."""
        lines = self.lines
        return lines[number - 1] if 1 <= number <= len(lines) else ""


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Span:
    """A stretch of text: lines and columns count from 1, and `end_column` is exclusive."""

    line: int
    column: int
    end_line: int
    end_column: int

    def to(self, other: Span) -> Span:
        """The span from where this one starts to where `other` ends."""
        return Span(line=self.line, column=self.column, end_line=other.end_line, end_column=other.end_column)

    def __str__(self) -> str:
        return f"{self.line}:{self.column}"


NO_SPAN = Span(line=0, column=0, end_line=0, end_column=0)
"""The span of what no text stands for."""
