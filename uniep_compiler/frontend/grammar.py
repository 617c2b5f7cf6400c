"""Runs the grammar over tokens, going on after a mistake at the next statement or block."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

from lark import Lark, Token, Tree, UnexpectedToken
from lark.lark import PostLex
from lark.parsers.lalr_interactive_parser import InteractiveParser

from uniep_compiler.diagnostics import Diagnostic
from uniep_compiler.frontend.layout import MAX_ERRORS, Layout, lay_out

Describe = Callable[[Token, Token | None, InteractiveParser], Diagnostic]

# What the parser is fed to be where it can go on after a mistake: at the top of a file, or in the body of a block.
_TOP = (("UNIEP", "uniep"), ("INT", "1"))
_BODY = {
    "MOE": (
        *(*_TOP, ("MOE", "moe"), ("NAME", "_"), ("LPAR", "("), ("RPAR", ")")),
        *(("_ARROW", "->"), ("NAME", "_"), ("LSQB", "["), ("RSQB", "]"), ("LBRACE", "{")),
    ),
    "SCHEDULE": (*_TOP, ("SCHEDULE", "schedule"), ("NAME", "_"), ("LBRACE", "{")),
}
_BLOCKS = ("MOE", "SCHEDULE")


class _KeepUnknown(PostLex):
    """Makes Lark's lexer produce UNKNOWN, which no rule uses, instead of stopping at it."""

    always_accept = ("UNKNOWN",)

    def process(self, stream: Iterator[Token]) -> Iterator[Token]:
        return stream


@cache
def parser() -> Lark:
    """The LALR parser; made on first use, in some 40 ms."""
    text = (Path(__file__).parent / "grammar.lark").read_text(encoding="utf-8")
    return Lark(text, parser="lalr", lexer="basic", start="file", propagate_positions=True, postlex=_KeepUnknown())


def tokens_of(text: str) -> Layout:
    """The tokens of a program, laid out for the grammar."""
    return lay_out(list(parser().lex(text)))


class Run:
    """One run of the parser over a file. `errors` holds what was wrong; `tree` the parse tree, if nothing was."""

    def __init__(self, layout: Layout, describe: Describe) -> None:
        self.errors: list[Diagnostic] = []
        self.tree: Tree[Token] | None = None
        self._layout = layout
        self._describe = describe
        self._block: str | None = None  # the kind of block that the parser is in
        self._in_body = False
        self._continued = 0  # the line that a broken statement may go on in, which then gives no error of its own
        self._parser = parser().parse_interactive()
        self._run()

    def _run(self) -> None:
        tokens = self._layout.tokens
        index = 0
        while index < len(tokens) and len(self.errors) < MAX_ERRORS:
            found = self._layout.errors.get(index) or self._feed(tokens[index], tokens[index - 1] if index else None)
            if found is None:
                self._follow(tokens[index])
                index += 1
            else:
                self._report(found, tokens[index])
                index = self._skip(index)
                self._restart()
        if not self.errors:
            self._finish(tokens[-1] if tokens else None)

    def _report(self, error: Diagnostic, token: Token) -> None:
        if not self._in_body or token.line != self._continued:
            self.errors.append(error)
        if token.type == "_NEWLINE" and token.line is not None:
            self._continued = token.line + 1

    def _feed(self, token: Token, previous: Token | None) -> Diagnostic | None:
        try:
            self._parser.feed_token(token)
        except UnexpectedToken:
            return self._describe(token, previous, self._parser)
        return None

    def _finish(self, last: Token | None) -> None:
        end = Token("$END", "", 0, 1, 1, 1, 1, 0)
        if last is not None:
            end = Token("$END", "", 0, last.end_line, last.end_column, last.end_line, last.end_column, 0)
        try:
            tree = self._parser.feed_token(end)
        except UnexpectedToken:
            self.errors.append(self._describe(end, last, self._parser))
        else:
            assert isinstance(tree, Tree)
            self.tree = tree

    def _follow(self, token: Token) -> None:
        """Keeps account of where the parser is."""
        match token.type:
            case "MOE" | "SCHEDULE":
                self._block, self._in_body = token.type, False
            case "LBRACE":
                self._in_body = True
            case "RBRACE":
                self._block, self._in_body = None, False
            case _:
                pass

    def _skip(self, index: int) -> int:
        """Where to go on after the mistake at `index`."""
        tokens = self._layout.tokens
        ends: tuple[str, ...] = _BLOCKS
        if self._in_body:
            ends = ("_NEWLINE", "RBRACE", *_BLOCKS)
        elif self._block is not None:
            ends = ("LBRACE", "RBRACE", *_BLOCKS)
        while index < len(tokens) and tokens[index].type not in ends:
            index += 1
        if index == len(tokens) or tokens[index].type in _BLOCKS:
            self._block, self._in_body = None, False
            return index
        if tokens[index].type == "RBRACE" and self._in_body:
            return index
        self._follow(tokens[index])
        return index + 1

    def _restart(self) -> None:
        """A fresh parser for where we are now. No tree will be needed, so what was read before may be forgotten."""
        self._parser = parser().parse_interactive()
        prefix = _BODY[self._block] if self._block is not None and self._in_body else _TOP
        for type_, text in prefix:
            self._parser.feed_token(Token(type_, text, 0, 1, 1, 1, 1, 0))
