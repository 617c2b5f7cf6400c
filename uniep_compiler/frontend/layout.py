"""Prepares the lexer's tokens for the grammar: newlines that end statements, matching brackets, limits of size.

After this a _NEWLINE token stands after each statement inside braces, and nowhere else. What is wrong is kept beside
the token at which the parser has to stop (`Layout.errors`), so that one mistake gives one error.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from lark import Token

from uniep_compiler.diagnostics import Diagnostic, Label
from uniep_compiler.ir.types import LARGEST_F32
from uniep_compiler.source import Span

MAX_ERRORS = 20
"""Syntax errors of one file that are shown at once."""

_MAX_NESTING = 32
_MAX_OPERATORS = 100
_MAX_DIGITS = 15
_CLOSES = {"(": ")", "[": "]", "{": "}"}
_OPERATORS = ("PLUS", "MINUS", "STAR", "SLASH", "FLOOR", "PERCENT")


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Tokens for the parser, and what is wrong at some of them, by index."""

    tokens: tuple[Token, ...]
    errors: dict[int, Diagnostic]


def span_of(token: Token) -> Span:
    """Where a token stands."""
    line, column = token.line or 1, token.column or 1
    return Span(
        line=line, column=column, end_line=token.end_line or line, end_column=token.end_column or column + len(token)
    )


def lay_out(raw: list[Token]) -> Layout:
    """The tokens of a file, laid out."""
    state = _State(raw=raw)
    while state.position < len(raw) and len(state.errors) < MAX_ERRORS:
        state.step(raw[state.position])
        state.position += 1
    if len(state.errors) < MAX_ERRORS:
        state.finish()
    return Layout(tokens=tuple(state.out), errors=state.errors)


@dataclass(slots=True, kw_only=True)
class _State:
    raw: list[Token]
    position: int = 0
    out: list[Token] = field(default_factory=list)
    errors: dict[int, Diagnostic] = field(default_factory=dict)
    brackets: list[tuple[int, int]] = field(default_factory=list)  # of each open ( or [: its index in raw and in out
    brace: Token | None = None
    num_operators: int = 0
    broken: bool = False  # what stands up to the end of this statement or header has its error already

    def step(self, token: Token) -> None:
        """Takes the next token."""
        match token.type:
            case "_NEWLINE":
                self.end_statement(token)
            case "LPAR" | "LSQB":
                self.open(token)
            case "RPAR" | "RSQB":
                self.close(token)
            case "LBRACE":
                self.open_brace(token)
            case "RBRACE":
                self.close_brace(token)
            case "MOE" | "SCHEDULE":
                if not self.rewind():
                    self.end_block(token)
                    self.emit(token)
            case "RETURN":
                if not (self.brace is not None and self.rewind()):
                    self.emit(token)
            case _:
                self.check_size(token)
                self.emit(token)

    def emit(self, token: Token) -> None:
        self.out.append(token)

    def fail(self, diagnostic: Diagnostic, index: int | None = None) -> None:
        """Makes the parser stop at token `index`, or at the next one."""
        if not self.broken:
            self.errors[len(self.out) if index is None else index] = diagnostic
        self.broken = True

    def end_statement(self, token: Token) -> None:
        if self.brace is None or self.brackets:
            return
        self.num_operators = 0
        self.broken = False
        if self.out[-1].type not in ("LBRACE", "_NEWLINE"):
            self.emit(token)

    def open(self, token: Token) -> None:
        if len(self.brackets) >= _MAX_NESTING:
            if self.brace is not None and self.raw[self.brackets[0][0]].line != token.line:
                self.rewind()
                return
            help_ = "give the inner part a name of its own"
            self.fail(_error("UEP0106", f"more than {_MAX_NESTING} nested brackets", token, "one too many", help_))
            self.brackets.clear()
        self.brackets.append((self.position, len(self.out)))
        self.emit(token)

    def close(self, token: Token) -> None:
        if not self.brackets:
            self.fail(_error("UEP0103", f"`{token}` closes nothing", token, "no bracket is open here", "remove it"))
        else:
            opening = self.raw[self.brackets.pop()[0]]
            if _CLOSES[opening] != token:
                self.fail(_mismatch(opening, token))
                self.brackets.clear()
        self.emit(token)

    def open_brace(self, token: Token) -> None:
        if self.rewind():
            return
        if self.brace is not None:
            help_ = "the only braces are those of a `moe` or `schedule` block"
            self.fail(_error("UEP0103", "a `{` inside a block", token, "not expected here", help_))
        self.brace = token
        self.num_operators = 0
        self.broken = False
        self.emit(token)

    def close_brace(self, token: Token) -> None:
        if self.rewind():
            return
        if self.brace is None:
            self.fail(_error("UEP0103", "`}` closes nothing", token, "no block is open here", "remove it"))
        else:
            self.end_statement(Token.new_borrow_pos("_NEWLINE", "\n", token))
        self.brace = None
        self.broken = False
        self.emit(token)

    def end_block(self, token: Token) -> None:
        """Closes a block whose `}` is missing, before `token`."""
        if self.brace is None:
            return
        self.fail(_unclosed(self.brace, token))
        for type_, text in (("_NEWLINE", "\n"), ("RBRACE", "}")):
            self.emit(Token.new_borrow_pos(type_, text, token))
        self.brace = None
        self.broken = False

    def rewind(self) -> bool:
        """Reports the outermost bracket as never closed, if one is open, and goes on behind its line.

        True where the position moved back, so that what stands between is read again.
        """
        if not self.brackets:
            return False
        raw_index, index = self.brackets[0]
        opening = self.raw[raw_index]
        self.brackets.clear()
        self.errors = {i: error for i, error in self.errors.items() if i < index}
        self.broken = False
        self.fail(_unclosed(opening, None), index)
        if self.brace is None:  # a header may go over lines: nothing tells where the bracket should have closed
            return False
        line_ends = (i for i in range(raw_index, self.position) if self.raw[i].type == "_NEWLINE")
        end = next(line_ends, None)
        if end is None:
            return False
        del self.out[index + 1 :]
        self.position = end - 1
        return True

    def finish(self) -> None:
        """Takes the end of the file."""
        last = self.raw[-1] if self.raw else Token("_NEWLINE", "\n", line=1, column=1, end_line=1, end_column=2)
        while self.rewind():
            self.position += 1
            while self.position < len(self.raw) and len(self.errors) < MAX_ERRORS:
                self.step(self.raw[self.position])
                self.position += 1
        self.end_block(last)

    def check_size(self, token: Token) -> None:
        if token.type == "COMMA" and self.brace is None and len(self.brackets) <= 1:
            self.num_operators = 0
        if token.type in _OPERATORS:
            self.num_operators += 1
            if self.num_operators == _MAX_OPERATORS + 1:
                help_ = "give parts of it names of their own"
                self.fail(
                    _error("UEP0106", f"more than {_MAX_OPERATORS} operators in one statement", token, "here", help_)
                )
        if token.type == "INT" and len(token) > _MAX_DIGITS:
            self.fail(
                _error(
                    "UEP0106",
                    "this integer is too large",
                    token,
                    f"at most {_MAX_DIGITS} digits",
                    "write a smaller one",
                )
            )
        if token.type == "FLOAT" and float(token) > LARGEST_F32:
            self.fail(
                _error("UEP0106", "this number is too large", token, "does not fit f32", "the largest f32 is 3.4e38")
            )


def _error(code: str, message: str, token: Token, text: str, help_: str) -> Diagnostic:
    return Diagnostic(code=code, message=message, labels=(Label(span=span_of(token), text=text),), help=help_)


def _mismatch(opening: Token, token: Token) -> Diagnostic:
    return Diagnostic(
        code="UEP0103",
        message=f"`{opening}` is closed by `{token}`",
        labels=(
            Label(span=span_of(opening), text="opened here", primary=False),
            Label(span=span_of(token), text=f"expected `{_CLOSES[opening]}`"),
        ),
        help=f"write `{_CLOSES[opening]}` here, or close what stands between first",
    )


def _unclosed(opening: Token, before: Token | None) -> Diagnostic:
    labels = [Label(span=span_of(opening), text=f"no `{_CLOSES[opening]}` for this one")]
    if before is not None and before.type in ("MOE", "SCHEDULE"):
        labels.append(Label(span=span_of(before), text="the next block starts here", primary=False))
    return Diagnostic(
        code="UEP0103",
        message=f"`{opening}` is never closed",
        labels=tuple(labels),
        help=f"add the missing `{_CLOSES[opening]}`",
    )
