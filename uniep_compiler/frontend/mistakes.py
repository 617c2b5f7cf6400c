"""What to say about a text that does not fit the grammar.

`MISTAKES` is a table of broken programs, each with its message. A mistake in a user's file is recognised by the state
of the parser where it happened: the same state and kind of token as in one of the examples gives that message. What
no example covers gets a message made from the tokens that would have been right there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from lark import Token
from lark.parsers.lalr_analysis import Shift
from lark.parsers.lalr_interactive_parser import InteractiveParser

from uniep_compiler.diagnostics import Diagnostic, Label
from uniep_compiler.frontend.grammar import Run, tokens_of
from uniep_compiler.frontend.layout import span_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Mistake:
    """A kind of broken program. `{found}` and `{before}` stand for the token that broke it and the one before."""

    code: str
    message: str
    label: str
    help: str
    examples: tuple[str, ...]


_HEAD = "uniep 1\nmoe m(x : bf16[T, H]) -> bf16[T, H] {\n"

MISTAKES: tuple[Mistake, ...] = (
    Mistake(
        code="UEP0104",
        message="the version line is missing",
        label="expected `uniep 1` before this",
        help="start the file with the line `uniep 1`",
        examples=("moe m() -> f32[T] {}", "schedule s {}", "x = y", "1", "uniep moe", "uniep x", "uniep 1.0"),
    ),
    Mistake(
        code="UEP0101",
        message="{found} stands outside of a block",
        label="expected `moe` or `schedule`",
        help="statements belong between the `{{` and `}}` of a `moe` block",
        examples=("uniep 1 x", "uniep 1 return", "uniep 1 (", "uniep 1 uniep 1", "uniep 1 1"),
    ),
    Mistake(
        code="UEP0101",
        message="expected a name, found {found}",
        label="expected the block's name",
        help="a block starts like `moe my_layer(...)` or `schedule my_layer {{`",
        examples=("uniep 1 moe (", "uniep 1 moe {", "uniep 1 schedule {", "uniep 1 moe 1", "uniep 1 schedule for"),
    ),
    Mistake(
        code="UEP0108",
        message="the layer's parameters are missing",
        label="expected `(` before this",
        help="a layer's header is like `moe my_layer(x : bf16[T, H], ...) -> bf16[T, H] {{`",
        examples=("uniep 1 moe m {", "uniep 1 moe m ->", "uniep 1 moe m x"),
    ),
    Mistake(
        code="UEP0108",
        message="parameter `{before}` has no type",
        label="expected `: dtype[dims]` before this",
        help="write the type behind the name, like `{before} : bf16[T, H]`",
        examples=(
            "uniep 1 moe m(x)",
            "uniep 1 moe m(x,",
            "uniep 1 moe m(x bf16",
            "uniep 1 moe m(x [",
            "uniep 1 moe m(x =",
        ),
    ),
    Mistake(
        code="UEP0108",
        message="type `{before}` has no dims",
        label="expected `[` before this",
        help="write the dims behind the dtype, like `{before}[T, H]`",
        examples=(
            "uniep 1 moe m(x : f32)",
            "uniep 1 moe m(x : f32,",
            "uniep 1 moe m() -> f32 {",
            "uniep 1 moe m(x : f32 (",
        ),
    ),
    Mistake(
        code="UEP0108",
        message="the layer's result type is missing",
        label="expected `-> dtype[dims]` before this",
        help="say what the layer returns, like `moe m(...) -> bf16[T, H] {{`",
        examples=(
            "uniep 1 moe m() {",
            "uniep 1 moe m() where",
            "uniep 1 moe m() : f32",
            "uniep 1 moe m(x : f32[T]) {",
            "uniep 1 moe m(x : f32[T]) where",
            "uniep 1 moe m(x : f32[T]) return",
            "uniep 1 moe m() = f32",
        ),
    ),
    Mistake(
        code="UEP0108",
        message="the body of the layer is missing",
        label="expected `{{` before this",
        help="open the body with `{{` at the end of the header",
        examples=(
            "uniep 1 moe m() -> f32[T] r = x",
            "uniep 1 moe m() -> f32[T] return",
            "uniep 1 moe m() -> f32[T]",
            "uniep 1 moe m() -> f32[T] }",
            "uniep 1 moe m() -> f32[T] where K <= E x",
            "uniep 1 moe m() -> f32[T] moe",
            "uniep 1 moe m() -> f32[T] where K <= E",
            "uniep 1 moe m() -> f32[T] where K <= E return",
        ),
    ),
    Mistake(
        code="UEP0101",
        message="a condition compares two dims",
        label="expected a comparison such as `== 0` before this",
        help="a condition is like `H % 16 == 0` or `K <= E`; a comma stands between two of them",
        examples=(
            "uniep 1 moe m() -> f32[T] where K {",
            "uniep 1 moe m() -> f32[T] where K, ",
            "uniep 1 schedule s when T {",
        ),
    ),
    Mistake(
        code="UEP0101",
        message="two comparisons in one condition",
        label="expected a comma or the end of the conditions",
        help="write them as two conditions with a comma between",
        examples=("uniep 1 moe m() -> f32[T] where 0 < K < ", "uniep 1 schedule s when 0 < T <"),
    ),
    Mistake(
        code="UEP0110",
        message="a comma is missing between two parameters",
        label="expected `,` before this",
        help="separate parameters by commas",
        examples=("uniep 1 moe m(x : f32[T] y",),
    ),
    Mistake(
        code="UEP0110",
        message="`{before}` and {found} have nothing between them",
        label="expected `*`, another operator or a comma before this",
        help="a product is written with `*`, like `2*I`",
        examples=(
            "uniep 1 moe m(x : f32[2 I",
            "uniep 1 moe m(x : f32[T H",
            _HEAD + "y = 2 x",
            _HEAD + "y = x 2",
            _HEAD + "y = x z",
            _HEAD + "y = f(x z",
            _HEAD + "y = f(x 2",
            _HEAD + "y = f(2 x",
            _HEAD + "y = f(x) z",
            _HEAD + "y = (x z",
            _HEAD + "y = f(x) (",
            _HEAD + "y = (x) (",
            _HEAD + "return x z",
            _HEAD + "y = f(a=x z",
            _HEAD + "y = 2.5 x",
            _HEAD + "y = f(f(x) z",
        ),
    ),
    Mistake(
        code="UEP0109",
        message="a value is computed and not named",
        label="expected `=` before this",
        help="give it a name, like `y = ...`, or return it",
        examples=(_HEAD + "f(", _HEAD + "x\n", _HEAD + "x + ", _HEAD + "x *", _HEAD + "x -"),
    ),
    Mistake(
        code="UEP0109",
        message="a statement is like `name = value`",
        label="expected `=` before this",
        help="for example `{before} = silu(h)`",
        examples=(_HEAD + "x y", _HEAD + "x : f32 y", _HEAD + "x, z y", _HEAD + "x 1"),
    ),
    Mistake(
        code="UEP0109",
        message="a statement starts with a name or with `return`, not with {found}",
        label="expected `name = ...` or `return ...`",
        help="for example `a = silu(gate) * up`",
        examples=(
            _HEAD + "2",
            _HEAD + "(",
            _HEAD + "-",
            _HEAD + "=",
            _HEAD + "[",
            _HEAD + "for",
            _HEAD + "where",
            _HEAD + "when",
        ),
    ),
    Mistake(
        code="UEP0101",
        message="an expression is missing",
        label="expected an expression before this",
        help="a statement ends with its line; to go over several lines, put the expression in brackets",
        examples=(
            _HEAD + "y =\n",
            _HEAD + "y = x +\n",
            _HEAD + "y = x *\n",
            _HEAD + "y = -\n",
            _HEAD + "return\n",
            _HEAD + "return x,\n",
            _HEAD + "y = f(,",
            _HEAD + "y = f(x +)",
            _HEAD + "y = f(x *)",
            _HEAD + "y = f(a=)",
            _HEAD + "y = ()",
            _HEAD + "y = = x",
            _HEAD + "y = f(x, ,",
            _HEAD + "y = x * *",
            _HEAD + "y = x + +",
            _HEAD + "y = x = z",
            _HEAD + "y = f(x +,",
            _HEAD + "y = f(x *,",
        ),
    ),
    Mistake(
        code="UEP0101",
        message="values are not indexed",
        label="`[` has no meaning here",
        help="ops work on whole values; `split` takes a value apart",
        examples=(_HEAD + "y = x[", _HEAD + "y = f(x[", _HEAD + "y = f(x)[", _HEAD + "x[", _HEAD + "return x["),
    ),
    Mistake(
        code="UEP0101",
        message="a dim is missing",
        label="expected a dim such as `T` or `2*I` before this",
        help="dims are separated by single commas",
        examples=(
            "uniep 1 moe m(x : f32[,",
            "uniep 1 moe m(x : f32[T, ,",
            "uniep 1 moe m(x : f32[2*]",
            "uniep 1 moe m(x : f32[T +]",
        ),
    ),
    Mistake(
        code="UEP0101",
        message="a parameter list holds names with types, not {found}",
        label="expected `name : dtype[dims]`",
        help="for example `x : bf16[T, H]`",
        examples=("uniep 1 moe m(1", "uniep 1 moe m(x : f32[T], 1", "uniep 1 moe m(,", "uniep 1 moe m(x : f32[T], ,"),
    ),
    Mistake(
        code="UEP0101",
        message="a comparison inside an expression",
        label="conditions stand behind `where` in the header only",
        help="to bound a value, use `clamp(v, min=..., max=...)`",
        examples=(
            _HEAD + "y = x <",
            _HEAD + "y = (x <",
            _HEAD + "y = f(x) <",
            _HEAD + "y = f(x <",
            _HEAD + "y = 2 <",
            _HEAD + "return x <",
        ),
    ),
    Mistake(
        code="UEP0101",
        message="a schedule entry is like `key = value`",
        label="expected `=` before this",
        help="for example `fuse = layer`, or `tile(h) = (128, 256, 64)`",
        examples=(
            "uniep 1 schedule s { fuse\n",
            "uniep 1 schedule s { fuse layer",
            "uniep 1 schedule s { fuse :",
            "uniep 1 schedule s { tile(h)\n",
            "uniep 1 schedule s { tile(h) (",
        ),
    ),
    Mistake(
        code="UEP0101",
        message="a schedule entry has no value",
        label="expected a value before this",
        help="for example `fuse = layer`, or `tile(h) = (128, 256, 64)`",
        examples=(
            "uniep 1 schedule s { fuse =\n",
            "uniep 1 schedule s { fuse = =",
        ),
    ),
    Mistake(
        code="UEP0101",
        message="a schedule entry starts with a key, not with {found}",
        label="expected a key such as `fuse` or `tile(h)`",
        help="for example `fuse = layer`",
        examples=(
            "uniep 1 schedule s { 1",
            "uniep 1 schedule s { (",
            "uniep 1 schedule s { =",
            "uniep 1 schedule s { return",
        ),
    ),
)

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
_UNKNOWN_HELP = (
    ("'", "there are no strings; words stand without quotes"),
    ('"', "there are no strings; words stand without quotes"),
    ("@", "a product of rows and expert weights is `group_gemm(rows, weights)`"),
    (";", "statements end with their line"),
    ("!", "the comparison is `!=`"),
    ("&", "write several conditions with commas between"),
    ("|", "write several conditions with commas between"),
    ("/", "a comment starts with `#`"),
)


def describe(token: Token, previous: Token | None, parser: InteractiveParser) -> Diagnostic:
    """The diagnostic for `token`, which `parser` cannot take behind `previous`."""
    if token.type == "UNKNOWN":
        return _unknown_character(token)
    if token.type.isupper() and token.isalpha() and token.type == token.upper() and "NAME" in parser.choices():
        return _reserved(token)
    mistake = _table().get((_settled(parser), token.type))
    if mistake is None:
        message = f"{_found(token)} was not expected here"
        return _diagnostic("UEP0101", message, token, _expected(parser), "docs/language.md has the grammar")
    words = {"found": _found(token), "before": str(previous or "")}
    message, label, help_ = (text.format(**words) for text in (mistake.message, mistake.label, mistake.help))
    return _diagnostic(mistake.code, message, token, label, help_)


@cache
def _table() -> Mapping[tuple[object, str], Mistake]:
    """The mistakes by parser state and type of token."""
    table: dict[tuple[object, str], Mistake] = {}
    for mistake in MISTAKES:
        for example in mistake.examples:
            table.setdefault(_key(example), mistake)
    return table


def _key(example: str) -> tuple[object, str]:
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


def _reserved(token: Token) -> Diagnostic:
    help_ = f"choose another name, such as `{token}_`"
    return _diagnostic("UEP0224", f"`{token}` is a word of the language", token, "expected a name", help_)


def _unknown_character(token: Token) -> Diagnostic:
    help_ = next((text for start, text in _UNKNOWN_HELP if token.startswith(start)), "remove it")
    if not token.isascii() and token[0] not in "'\"":
        help_ = "names are made of the letters a-z and A-Z, digits and `_`; comments may hold anything"
    what = "characters" if len(token) > 1 else "character"
    shown = str(token) if token.isprintable() else ascii(str(token))[1:-1]
    return _diagnostic("UEP0102", f"{what} `{shown}` in a program", token, "not part of the language", help_)
