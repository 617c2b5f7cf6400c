"""Tokens of the IR's text forms, and a cursor over them. Line ends are blanks; `#` starts a comment."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NoReturn, TypeVar

from uniep_compiler.diagnostics import Diagnostic, Label, UniepError
from uniep_compiler.source import Source, Span

T = TypeVar("T")

_TOKEN = re.compile(
    r"""(?P<blank>\s+|\#[^\n]*)
      | (?P<name>[A-Za-z_][\w.]*)
      | (?P<float>[0-9]+(?:\.[0-9]+)?[eE][-+]?[0-9]+|[0-9]+\.[0-9]+)
      | (?P<int>[0-9]+)
      | (?P<string>"(?:[^"\\\x00-\x1f]|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*")
      | (?P<punctuation>//|==|>=|->|[-+*%<>=()\[\]{},:@$])""",
    re.VERBOSE,
)

_MOST_DIGITS = 18
_MOST_NESTED = 40
_MOST_SHOWN = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """A name, a number, a string or punctuation, with its offset. The last token of a text is the empty `end`."""

    kind: str
    text: str
    offset: int


class Reader:
    """A cursor over the tokens of one text. What does not fit raises UniepError (UEP0112) at the token's place."""

    def __init__(self, text: str, name: str = "<ir>") -> None:
        _check_text(text)
        self.source = Source(name=name, text=text)
        self._tokens = tuple(self._tokenize(text))
        self._next = 0
        self._depth = 0

    def _tokenize(self, text: str) -> Iterator[Token]:
        offset = 0
        while offset < len(text):
            match = _TOKEN.match(text, offset)
            if match is None:
                self.fail("a name, a number or an operator", Token(kind="other", text=text[offset], offset=offset))
            if match.lastgroup != "blank":
                yield Token(kind=str(match.lastgroup), text=match.group(), offset=offset)
            offset = match.end()
        yield Token(kind="end", text="", offset=offset)

    @property
    def token(self) -> Token:
        """The next token."""
        return self._tokens[self._next]

    def advance(self) -> Token:
        """Take the next token, whatever it is."""
        token = self.token
        self._next = min(self._next + 1, len(self._tokens) - 1)
        return token

    def at(self, *texts: str) -> bool:
        """Whether the next token is one of `texts`."""
        return self.token.text in texts and self.token.kind != "end"

    def accept(self, text: str) -> bool:
        """Take the next token if it is `text`."""
        if not self.at(text):
            return False
        self.advance()
        return True

    def expect(self, text: str) -> None:
        """Take `text`, which has to come next."""
        if not self.accept(text):
            self.fail(f"`{text}`")

    def name(self) -> str:
        """Take a name."""
        return self._take("name", "a name")

    def number(self, least: int | None = None) -> int:
        """Take an integer, with a sign if it is negative; one that is less than `least` is an error."""
        start, sign = self.token, -1 if self.accept("-") else 1
        expected = "an integer" if least is None else f"an integer that is at least {least}"
        digits = self._take("int", expected)
        if len(digits) > _MOST_DIGITS:
            self.fail(f"an integer of at most {_MOST_DIGITS} digits", start)
        value = sign * int(digits)
        if least is not None and value < least:
            self.fail(expected, start, found=str(value))
        return value

    @contextmanager
    def nested(self) -> Iterator[None]:
        """For what stands inside of something of its own kind: fails where that is too deep."""
        if self._depth == _MOST_NESTED:
            self.fail(f"an expression of at most {_MOST_NESTED} levels of brackets")
        self._depth += 1
        yield
        self._depth -= 1

    def end(self) -> None:
        """Nothing may be left."""
        if self.token.kind != "end":
            self.fail("the end of the text")

    def separated(self, item: Callable[[], T], close: str) -> tuple[T, ...]:
        """Items with commas between them, and perhaps one behind the last, up to and with `close`."""
        items: list[T] = []
        while not self.accept(close):
            items.append(item())
            if not self.at(close):
                self.expect(",")
        return tuple(items)

    def _take(self, kind: str, expected: str) -> str:
        if self.token.kind != kind:
            self.fail(expected)
        return self.advance().text

    def fail(self, expected: str, token: Token | None = None, found: str = "") -> NoReturn:
        """Raise the error that something else than `found` was expected at the next token (or at `token`)."""
        token = self.token if token is None else token
        before = self.source.text[: token.offset]
        line, column = before.count("\n") + 1, token.offset - (before.rfind("\n") + 1) + 1
        shown = found or token.text
        shown = shown if len(shown) <= _MOST_SHOWN else f"{shown[:_MOST_SHOWN]}..."
        span = Span(line=line, column=column, end_line=line, end_column=column + max(1, len(shown)))
        found = f"`{shown}`" if shown else "the end"
        label = Label(span=span, text=f"expected {expected}")
        message = f"expected {expected}, found {found}"
        help_ = "`uniepc show --stage tasks` and `uniepc show --stage schedule --full` print texts that can be read"
        raise UniepError([Diagnostic(code="UEP0112", message=message, labels=(label,), help=help_)], self.source)


def _check_text(text: object) -> None:
    if not isinstance(text, str):
        message = f"a task graph or a schedule is read from a text, not from {type(text).__name__}"
        raise UniepError([Diagnostic(code="UEP0112", message=message, help="a text is a str")])
