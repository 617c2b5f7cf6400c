"""Says what is wrong with a text that does not fit the grammar, by the table of `frontend/mistakes.py`.

What no example covers gets a message made from the tokens that would have been right there.
"""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from functools import cache

from lark import Token
from lark.parsers.lalr_analysis import Shift
from lark.parsers.lalr_interactive_parser import InteractiveParser

from uniep_compiler.diagnostics import Diagnostic, Label
from uniep_compiler.frontend.grammar import Run, tokens_of
from uniep_compiler.frontend.layout import span_of
from uniep_compiler.frontend.mistakes import MISTAKES, Mistake

_NAMES: Mapping[str, str] = {
    "_NEWLINE": "the end of the line",
    "$END": "the end of the file",
    "NAME": "a name",
    "INT": "a number",
    "FLOAT": "a number",
    "COMPARE": "a comparison",
    **dict.fromkeys(("PLUS", "MINUS", "STAR", "SLASH", "FLOOR", "PERCENT"), "an operator"),
    "LPAR": "`(`",
    "RPAR": "`)`",
    "LSQB": "`[`",
    "RSQB": "`]`",
    "LBRACE": "`{`",
    "RBRACE": "`}`",
    "COMMA": "`,`",
    "COLON": "`:`",
    "EQUAL": "`=`",
    "_ARROW": "`->`",
}
_RESERVED = ("UNIEP", "MOE", "SCHEDULE", "WHERE", "WHEN", "FOR", "RETURN")
_CONTROL = ("if", "elif", "else", "while")
_GRAMMAR = "the grammar is uniep_compiler/frontend/grammar.lark, and `uniepc explain UEP0101` has examples"
_UNKNOWN_HELP = (
    ("'", "there are no strings; words stand without quotes"),
    ('"', "there are no strings; words stand without quotes"),
    (".", "ops are called like functions: `silu(v)`"),
    ("@", "a product of rows and expert weights is `group_gemm(rows, weights)`"),
    (";", "statements end with their line"),
    ("!", "the comparison is `!=`"),
    ("&", "write several conditions with commas between"),
    ("|", "write several conditions with commas between"),
)


def describe(token: Token, previous: Token | None, parser: InteractiveParser) -> Diagnostic:
    """The diagnostic for `token`, which `parser` cannot take behind `previous`."""
    if token.type == "UNKNOWN":
        return _unknown_character(token)
    control = next((word for word in (previous, token) if word is not None and word in _CONTROL), None)
    if control is not None:
        return _control_flow(control)
    mistake = mistakes().get((_settled(parser), token.type))
    misspelt = _misspelt(token, previous, parser, mistake)
    if misspelt is not None:
        return misspelt
    if token.type in _RESERVED and "NAME" in parser.choices():
        return _reserved(token)
    if mistake is None:
        message = f"{_found(token)} was not expected here"
        return _diagnostic("UEP0101", message, token, _expected(parser), _GRAMMAR)
    words = {"found": _found(token), "before": str(previous or "")}
    message, label, help_ = (text.format(**words) for text in (mistake.message, mistake.label, mistake.help))
    return _diagnostic(mistake.code, message, token, label, help_)


@cache
def mistakes() -> Mapping[tuple[object, str], Mistake]:
    """The mistakes by parser state and type of token."""
    table: dict[tuple[object, str], Mistake] = {}
    for mistake in MISTAKES:
        for example in mistake.examples:
            table.setdefault(key_of(example), mistake)
    return table


def key_of(example: str) -> tuple[object, str]:
    """The state and type of token at which the parser stops in a broken program."""
    found: list[tuple[object, str]] = []

    def note(token: Token, previous: Token | None, parser: InteractiveParser) -> Diagnostic:
        found.append((_settled(parser), token.type))
        return _diagnostic("UEP0101", "", token, "", "")

    layout = tokens_of(example)
    layout.errors.clear()  # examples end where they break, with brackets still open
    Run(layout, note)
    return found[0]


def _settled(parser: InteractiveParser) -> object:
    """What the parser was in the middle of: its state, once all that may be complete is taken as complete."""
    table = parser.parser_state.parse_conf.states
    stack = list(parser.parser_state.state_stack)
    while True:
        rules = {id(rule): rule for action, rule in table[stack[-1]].values() if action is not Shift}
        if len(rules) != 1:
            return stack[-1]
        (rule,) = rules.values()
        del stack[len(stack) - len(rule.expansion) :]
        stack.append(table[stack[-1]][rule.origin.name][1])


def _diagnostic(code: str, message: str, token: Token, label: str, help_: str) -> Diagnostic:
    return Diagnostic(code=code, message=message, labels=(Label(span=span_of(token), text=label),), help=help_)


def _found(token: Token) -> str:
    return _NAMES[token.type] if token.type in ("_NEWLINE", "$END") else f"`{token}`"


def _expected(parser: InteractiveParser) -> str:
    names = sorted({_NAMES.get(type_, f"`{type_.lower()}`") for type_ in parser.accepts()})
    *most, last = names
    return f"expected {', '.join(most)} or {last}" if most else f"expected {last}"


def _control_flow(word: Token) -> Diagnostic:
    help_ = "every statement runs once, in order; `relu` and `clamp` choose number by number"
    return _diagnostic("UEP0109", "there is no control flow in a layer", word, f"`{word}` is not part of it", help_)


def _misspelt(
    token: Token, previous: Token | None, parser: InteractiveParser, mistake: Mistake | None
) -> Diagnostic | None:
    """A misspelt word of the language: `return` at the start of a statement, or another one where it fits."""
    starts = mistake is not None and mistake.code == "UEP0109" and previous is not None and previous.type == "NAME"
    word = previous if starts and previous is not None else token
    fitting = ["return"] if starts else [w.lower() for w in _RESERVED if w in parser.choices()]
    near = get_close_matches(word.lower(), fitting, n=1, cutoff=0.6) if word.type == "NAME" else []
    if not near:
        return None
    code = mistake.code if mistake is not None else "UEP0101"
    message = f"`{word}` is not a word of the language"
    return _diagnostic(code, message, word, "not known here", f"did you mean `{near[0]}`?")


def _reserved(token: Token) -> Diagnostic:
    help_ = f"choose another name, such as `{token}_`" + ("; there are no loops" if token.type == "FOR" else "")
    return _diagnostic("UEP0224", f"`{token}` is a word of the language", token, "expected a name", help_)


def _unknown_character(token: Token) -> Diagnostic:
    help_ = next((text for start, text in _UNKNOWN_HELP if token.startswith(start)), "remove it")
    if not token.isascii() and token[0] not in "'\"":
        help_ = "names are made of the letters a-z and A-Z, digits and `_`; comments may hold anything"
    what = "characters" if len(token) > 1 else "character"
    shown = str(token) if token.isprintable() else ascii(str(token))[1:-1]
    return _diagnostic("UEP0102", f"{what} `{shown}` in a program", token, "not part of the language", help_)
