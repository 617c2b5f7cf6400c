"""Broken programs, each with what to say about it.

A mistake in a user's file is recognised by what the parser was in the middle of, and the kind of token that did not fit
(`frontend/describe.py`): the same as in one of these examples gives that message.
"""

from __future__ import annotations

from dataclasses import dataclass


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
        code="UEP0101",
        message="there is no `**`",
        label="expected an expression before this",
        help="a square is `square(v)` or `v * v`",
        examples=(_HEAD + "y = x * *",),
    ),
    Mistake(
        code="UEP0101",
        message="the dims of a type are not closed",
        label="expected `]` before this",
        help="dims stand in square brackets, like `x : bf16[T, H]`",
        examples=("uniep 1 moe m(x : f32[T, y :",),
    ),
    Mistake(
        code="UEP0101",
        message="results have types, and no names",
        label="expected `[` before this",
        help="write the types alone, like `-> bf16[T, H], i32[E]`",
        examples=("uniep 1 moe m() -> (out :",),
    ),
    Mistake(
        code="UEP0101",
        message="a condition is missing",
        label="expected a condition before this",
        help="a condition is like `H % 16 == 0` or `K <= E`",
        examples=(
            "uniep 1 moe m() -> f32[T] where {",
            "uniep 1 moe m() -> f32[T] where K <= E, {",
            "uniep 1 schedule s when {",
            "uniep 1 schedule s when K <= E, {",
        ),
    ),
    Mistake(
        code="UEP0101",
        message="`for` is missing between the layer and the target",
        label="expected `for` before this",
        help="for example `schedule my_layer for sm_90 {{`",
        examples=("uniep 1 schedule s sm_90",),
    ),
    Mistake(
        code="UEP0101",
        message="a schedule entry ends with its line",
        label="expected the end of the line",
        help="write one entry in a line; a tile stands in brackets, like `tile(h) = (128, 256, 64)`",
        examples=("uniep 1 schedule s { fuse = layer,", "uniep 1 schedule s { tile(h) = 128,"),
    ),
    Mistake(
        code="UEP0101",
        message="a name is missing",
        label="expected a name before this",
        help="a statement with several results is like `gate, up = split(h, halves)`",
        examples=(_HEAD + "x, =",),
    ),
    Mistake(
        code="UEP0101",
        message="a dtype is missing",
        label="expected a dtype before this",
        help="write `h = ...`, or declare what it is rounded to: `h : f32 = ...`",
        examples=(_HEAD + "x :=",),
    ),
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
        examples=(
            "uniep 1 moe m {",
            "uniep 1 moe m ->",
            "uniep 1 moe m x",
            "uniep 1 moe m [",
            "uniep 1 moe m :",
            "uniep 1 moe m =",
        ),
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
