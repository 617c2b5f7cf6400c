"""Programs of every form that the back end takes, and of every form that it refuses, each about one thing."""

from __future__ import annotations

import re

PARAMS = {
    "x": "bf16[T, H]",
    "experts": "i32[T, K]",
    "weights": "f32[T, K]",
    "gates": "f32[T, K]",
    "x2": "bf16[T, 2*H]",
    "w4": "bf16[E, 4*I, H]",
    "w13": "bf16[E, 2*I, H]",
    "w1": "bf16[E, I, H]",
    "w3": "bf16[E, I, H]",
    "w2": "bf16[E, H, I]",
    "wsquare": "bf16[E, H, H]",
    "w13kn": "bf16[E, H, 2*I]",
    "w2kn": "bf16[E, I, H]",
    "b13": "bf16[E, 2*I]",
    "b1": "bf16[E, I]",
    "b2": "bf16[E, H]",
    "b2wide": "f32[E, H]",
}


def program(body: str, results: str = "bf16[T, H]") -> str:
    """A layer `m` of statements separated by `;`, with those of PARAMS that they name."""
    used = [name for name in PARAMS if re.search(rf"\b{name}\b", body)]
    params = "".join(f"    {name} : {PARAMS[name]},\n" for name in used)
    lines = "".join(f"    {line.strip()}\n" for line in body.split(";"))
    return f"uniep 1\n\nmoe m(\n{params}) -> {results} {{\n{lines}}}\n"


_ROWS = "r = route(experts); xs = dispatch(x, r); "
_DOWN = "; y = group_gemm(a, w2); return combine(y, weights)"
SUPPORTED = {
    "GEMMs of weights in two layouts": program(
        _ROWS + "a = gelu(group_gemm(xs, w1)) * group_gemm(xs, w2, layout=kn)" + _DOWN
    ),
    "counts": program(
        "r = route(experts); c = counts(r); return combine(group_gemm(dispatch(x, r), w1)), c, r, counts(r)",
        "bf16[T, I], i32[E], routes[T, K, E], i32[E]",
    ),
    "one GEMM": program(_ROWS + "return combine(group_gemm(xs, w1), weights)", "bf16[T, I]"),
    "no name": program("return combine(group_gemm(dispatch(x, experts), w1))", "f32[T, I]"),
    "three GEMMs": program(
        _ROWS + "h = relu2(group_gemm(xs, w1)); z = gelu(group_gemm(h, w2)); a = gelu_tanh(group_gemm(z, w1))" + _DOWN
    ),
    "biases": program(
        _ROWS
        + "h = group_gemm(xs, w13, bias=b13); a = swiglu(h); "
        + "y = group_gemm(a, w2, bias=b2); return combine(y, weights)"
    ),
    "a wide bias": program(
        _ROWS + "a = silu(group_gemm(xs, w1, bias=b1)); y = group_gemm(a, w2, bias=b2wide); return combine(y, weights)"
    ),
    "layout kn": program(
        _ROWS
        + "h = group_gemm(xs, w13kn, bias=b13, layout=kn); a = swiglu(h); "
        + "y = group_gemm(a, w2kn, bias=b2, layout=kn); return combine(y, weights)"
    ),
    "two GEMMs of the same rows": program(_ROWS + "a = silu(group_gemm(xs, w1)) * group_gemm(xs, w3, bias=b1)" + _DOWN),
    "two named GEMMs": program(
        _ROWS + "h = group_gemm(xs, w1); g = group_gemm(xs, w3); a = silu(h) * (g + 1.0)" + _DOWN
    ),
    "two GEMMs, then a split": program(
        _ROWS
        + "h = group_gemm(xs, w13); g = group_gemm(xs, w13, bias=b13); s = h + g; gate, up = split(s, halves); "
        + "a = silu(gate) * up"
        + _DOWN
    ),
    "two GEMMs that do not meet": program(
        _ROWS
        + "a = silu(group_gemm(xs, w1)); b = relu(group_gemm(xs, w3)); y = group_gemm(a, w2); z = group_gemm(b, w2); "
        + "return combine(y, weights), combine(z)",
        "bf16[T, H], bf16[T, H]",
    ),
    "one weight in two GEMMs": program(
        _ROWS + "a = silu(group_gemm(xs, w1)); y = group_gemm(a, w2); z = group_gemm(y, w1); q = group_gemm(z, w2); "
        "return combine(q, weights)"
    ),
    "a result used twice": program(
        _ROWS
        + "h = group_gemm(xs, w1); a = silu(h); b = h * h; y = group_gemm(a, w2); z = group_gemm(b, w2); "
        + "return combine(y, weights), combine(z, weights)",
        "bf16[T, H], bf16[T, H]",
    ),
    "rows combined twice": program(
        _ROWS + "a = silu(group_gemm(xs, w1)); y = group_gemm(a, w2); return combine(y, weights), combine(y, gates)",
        "bf16[T, H], bf16[T, H]",
    ),
    "rows returned and combined": program(
        _ROWS + "a = silu(group_gemm(xs, w1)); y = group_gemm(a, w2); return combine(y, weights), y, r",
        "bf16[T, H], bf16[rows(r), H], routes[T, K, E]",
    ),
    "rows returned before they are split": program(
        _ROWS + "h = group_gemm(xs, w13); a = swiglu(h); y = group_gemm(a, w2); return combine(y, weights), h",
        "bf16[T, H], bf16[rows(r), 2*I]",
    ),
    "dispatched rows returned": program(
        _ROWS + "a = silu(group_gemm(xs, w1)); y = group_gemm(a, w2); return combine(y, weights), xs",
        "bf16[T, H], bf16[rows(r), H]",
    ),
    "dispatched rows combined": program(
        _ROWS + "h = group_gemm(xs, w1); return combine(xs, weights), combine(h)", "bf16[T, H], bf16[T, I]"
    ),
    "one result returned twice": program(
        _ROWS + "o = combine(group_gemm(xs, w1), weights); return o, o", "bf16[T, I], bf16[T, I]"
    ),
    "split twice": program(
        _ROWS
        + "h = group_gemm(xs, w13); g, u = split(h, halves); g2, u2 = split(h, halves); "
        + "a = silu(g) * u2; b = g2 + u; y = group_gemm(a, w2); z = group_gemm(b, w2); "
        + "return combine(y, weights), combine(z, weights), u2",
        "bf16[T, H], bf16[T, H], bf16[rows(r), I]",
    ),
    "the whole beside its halves": program(
        _ROWS
        + "h = group_gemm(xs, w13); g, u = split(h, halves); f = relu(h) - 0.25; a = silu(g) * u; "
        + "y = group_gemm(a, w2); return combine(y, weights), f",
        "bf16[T, H], bf16[rows(r), 2*I]",
    ),
    "work before the split": program(
        _ROWS
        + "h : f32 = group_gemm(xs, w13); f = clamp(h, min=-0.5, max=0.75) * 2.0; g, u = split(f, halves); a = g * u"
        + _DOWN
    ),
    "a split without a name": program(
        _ROWS + "g, u = split(group_gemm(xs, w13), halves); a = silu(g) * sigmoid(u)" + _DOWN
    ),
    "half a split": program(_ROWS + "h = group_gemm(xs, w13); g, _ = split(h, halves); a = silu(g)" + _DOWN),
    "clamped swiglu": program(_ROWS + "h = group_gemm(xs, w13); a = swiglu_clamped(h, limit=0.5, how=halves)" + _DOWN),
    "an interleaved split": program(
        _ROWS + "h = group_gemm(xs, w13, bias=b13); g, u = split(h, interleaved); a = silu(g) * (u + 1.0)" + _DOWN
    ),
    "an interleaved split of what is returned": program(
        _ROWS
        + "h = group_gemm(xs, w13kn, layout=kn); f = h * 0.5; g, u = split(f, interleaved); a = silu(g) * u; "
        + "y = group_gemm(a, w2kn, layout=kn); return combine(y, weights), h, u",
        "bf16[T, H], bf16[rows(r), 2*I], bf16[rows(r), I]",
    ),
    "two GEMMs and an interleaved split": program(
        _ROWS
        + "s = group_gemm(xs, w13) + group_gemm(xs, w13, bias=b13); g, u = split(s, interleaved); a = g * u"
        + _DOWN
    ),
    "f32 rows and results": program(
        _ROWS + "a = silu(group_gemm(xs, w1)); y : f32 = group_gemm(a, w2); o : f32 = combine(y, weights); return o, y",
        "f32[T, H], f32[rows(r), H]",
    ),
    "a long expression": program(
        _ROWS
        + "h = group_gemm(xs, w1); g = group_gemm(xs, w3); "
        + "a = silu(h) * (g + 1.0) - (sigmoid(h * 1.5) * 2.5 + gelu(g)) * (-h - 0.25) + square(h + g) * 0.125 "
        + "- relu(h) * relu(-g) * 3.0 + clamp(h * g, min=-1.0) * clamp(g, max=0.5) - (h + g) * (h - g) * 0.5"
        + _DOWN
    ),
    "two dispatches on one rank": program(
        "r = route(experts); xs = dispatch(x, r); again = dispatch(x, r); "
        "a = silu(group_gemm(xs, w1)); b = silu(group_gemm(again, w3)); y = group_gemm(a, w2); z = group_gemm(b, w2); "
        "return combine(y, weights), combine(z)",
        "bf16[T, H], bf16[T, H]",
    ),
    "router weights on the activation": program(
        _ROWS
        + "h = group_gemm(xs, w13); g, u = split(h, halves); a = silu(g) * u * to_rows(weights, r); "
        + "y = group_gemm(a, w2); return combine(y)"
    ),
    "router weights on the input": program(
        "r = route(experts); xs = dispatch(x, r) * to_rows(weights, r); a = silu(group_gemm(xs, w1)) * "
        "group_gemm(xs, w3); y = group_gemm(a, w2); return combine(y)"
    ),
    "router weights in several places": program(
        "r = route(experts); s = to_rows(weights, r); t = to_rows(gates, r); d = dispatch(x, r); xs = d * s + d * t; "
        "h = group_gemm(xs, w13); g, u = split(h, interleaved); a = silu(g) * u * s; y = group_gemm(a, w2) * t; "
        "return combine(y, weights), xs",
        "bf16[T, H], bf16[rows(r), H]",
    ),
    "work on dispatched rows": program(
        _ROWS
        + "f = relu(xs) * 2.0 - 0.5; q : f32 = square(xs); a = silu(group_gemm(f, w1)); y = group_gemm(a, w2); "
        + "return combine(y, weights), combine(q, weights), combine(xs)",
        "bf16[T, H], bf16[T, H], bf16[T, H]",
    ),
    "work on dispatched rows around a GEMM": program(
        _ROWS
        + "f = relu(xs); h = group_gemm(f, w1); q = f - xs * 0.5; a = silu(group_gemm(q, w3)); "
        + "y = group_gemm(a, w2); return combine(y, weights), combine(h)",
        "bf16[T, H], bf16[T, I]",
    ),
    "dispatched rows cast": program(
        _ROWS + "return combine(cast(xs, f32), weights), combine(group_gemm(xs, w1))", "f32[T, H], bf16[T, I]"
    ),
    "dispatched rows split": program(
        "r = route(experts); g, u = split(dispatch(x2, r), halves); "
        "return combine(group_gemm(g, w1) * group_gemm(u, w1)), combine(group_gemm(g, w3))",
        "bf16[T, I], bf16[T, I]",
    ),
    "dispatched rows split in turn": program(
        "r = route(experts); g, u = split(relu(dispatch(x2, r)), interleaved); "
        "a = silu(g) * u; return combine(group_gemm(a, w1)), combine(g)",
        "bf16[T, I], bf16[T, H]",
    ),
    "dispatched rows and a GEMM": program(
        _ROWS + "a = silu(group_gemm(xs, w1)); y = group_gemm(a, w2) + xs; return combine(y)"
    ),
    "a sum of GEMMs of different rows": program(
        _ROWS + "a = silu(group_gemm(xs, w1)); b = relu(group_gemm(xs, w3)); y = group_gemm(a, w2) + group_gemm(b, w2) "
        "+ group_gemm(xs, wsquare); return combine(y, weights)"
    ),
    "a sum of GEMMs of different rows, split": program(
        _ROWS + "f = relu(xs); g, u = split(group_gemm(xs, w13) + group_gemm(f, w13), halves); a = silu(g) * u" + _DOWN
    ),
    "GEMMs of different rows": program(
        _ROWS + "h = group_gemm(xs, w1); a = group_gemm(h, w2); b = group_gemm(a, w1) + h; return combine(b)",
        "bf16[T, I]",
    ),
    "GEMMs of different rows with a bias": program(
        _ROWS + "h = relu(group_gemm(xs, w1)); f = relu(xs); b = group_gemm(f, w1, bias=b1) + group_gemm(xs, w3); "
        "return combine(b * h, weights)",
        "bf16[T, I]",
    ),
    "half of one GEMM and another": program(
        _ROWS + "g, u = split(group_gemm(xs, w13), halves); a = g * u * group_gemm(xs, w1)" + _DOWN
    ),
    "routing alone": """
uniep 1

moe m(experts : i32[T, K], _w : bf16[E, H, I]) -> routes[T, K, E] {
    r = route(experts)
    return r
}
""",
    "an unused parameter": """
uniep 1

moe m(x : bf16[T, H], experts : i32[T, K], _odd : f32[3, I, 2], w1 : bf16[E, I, H], _none : f32[T, K]) -> bf16[T, I] {
    return combine(group_gemm(dispatch(x, experts), w1))
}
""",
}
"""Programs with routing of their own, by what is special about them."""

ONE_RANK_ONLY = frozenset({"two dispatches on one rank"})
RELAYED_ONLY = frozenset({"dispatched rows returned"})
"""Those that a group does not take, and those that it does not take with `relay = off`."""

NASTY = """
uniep 1

# A program whose names mean something in kernels, in Python, or to the compiler. \u202e \x07 \x00 '''
moe tl(
    row_route   : bf16[tokens, rank],
    None        : i32[tokens, k],
    state       : f32[tokens, k],
    lambda      : bf16[tile, 2*H, rank],
    lambda_ptr  : bf16[tile, 2*H],
    board       : bf16[tile, rank, H],
) -> bf16[tokens, rank], bf16[rows(triton), rank], bf16[rows(triton), 2*H] {
    triton        = route(None)
    xs_arrived    = dispatch(row_route, triton)   # ''' \"\"\" \\\\
    depth         = group_gemm(xs_arrived, lambda, bias=lambda_ptr)
    live, range   = split(depth, halves)
    gate_acc      = live * 2.0
    live_acc_tile = silu(gate_acc) + range
    silu_         = live_acc_tile - range
    GEMM_out      = silu_ * live
    gemm_OUT      = live_acc_tile * GEMM_out + gate_acc
    count         = group_gemm(gemm_OUT, board)
    return combine(count, state), count, depth
}
"""

UNSUPPORTED = {
    "router weights returned as rows": (
        program(_ROWS + "return combine(group_gemm(xs, w1)), to_rows(weights, r)", "bf16[T, I], f32[rows(r)]"),
        "returning what `to_rows` gives is not supported yet",
    ),
    "router weights per row computed": (
        program(_ROWS + "s = sigmoid(to_rows(weights, r)); return combine(group_gemm(xs, w1) * s)", "bf16[T, I]"),
        "`sigmoid` on numbers per row alone is not supported yet",
    ),
    "two ways to split": (
        program(
            _ROWS + "h = group_gemm(xs, w13); g, _ = split(h, halves); e, _ = split(h, interleaved); a = g * e" + _DOWN
        ),
        "splits of both kinds on what is one GEMM is not supported yet",
    ),
    "a half split again": (
        program(
            _ROWS + "g, u = split(group_gemm(xs, w4), halves); a, b = split(g * u, halves); return combine(a * b)",
            "bf16[T, I]",
        ),
        "`split` on a half of a split is not supported yet",
    ),
    "work on tokens before dispatch": (
        program("xs = dispatch(relu(x), experts); return combine(group_gemm(xs, w1))", "bf16[T, I]"),
        "`relu` on what is not rows is not supported yet",
    ),
    "tokens cast before dispatch": (
        program(
            "xs = dispatch(cast(x, f32), experts); return combine(cast(xs, bf16)), combine(group_gemm("
            "dispatch(x, experts), w1))",
            "bf16[T, H], bf16[T, I]",
        ),
        "`cast` on what is not rows is not supported yet",
    ),
    "router weights computed": (
        program(_ROWS + "return combine(group_gemm(xs, w1), weights * 2.0)", "bf16[T, I]"),
        "`*` on what is not rows is not supported yet",
    ),
    "work after combine": (
        program(_ROWS + "return relu(combine(group_gemm(xs, w1)))", "bf16[T, I]"),
        "work on tokens after `combine` is not supported yet",
    ),
    "a residual": (
        program(_ROWS + "a = silu(group_gemm(xs, w1)); return combine(group_gemm(a, w2)) + x"),
        "work on tokens after `combine` is not supported yet",
    ),
    "a sum returned in two dtypes": (
        program(_ROWS + "o : f32 = combine(group_gemm(xs, w1)); return o, cast(o, bf16)", "f32[T, I], bf16[T, I]"),
        "work on tokens after `combine` is not supported yet",
    ),
    "a sum dispatched again": (
        program(_ROWS + "o = combine(group_gemm(xs, w1)); return combine(group_gemm(dispatch(o, r), w2))"),
        "work on tokens after `combine` is not supported yet",
    ),
    "a parameter returned": (
        program(_ROWS + "return combine(group_gemm(xs, w1)), x", "bf16[T, I], bf16[T, H]"),
        "returning `x` as it came is not supported yet",
    ),
    "two routings": (
        """
uniep 1

moe m(x : bf16[T, H], one : i32[T, K], two : i32[T, K], w : bf16[E, H, H]) -> bf16[T, H], bf16[T, H] {
    return combine(group_gemm(dispatch(x, one), w)), combine(group_gemm(dispatch(x, two), w))
}
""",
        "a second routing is not supported yet",
    ),
    "very many accumulators": (
        program(_ROWS + "a = " + " + ".join(["silu(group_gemm(xs, w1))"] * 9) + _DOWN),
        "an expression over 9 accumulators of GEMMs is not supported yet",
    ),
}
"""Programs that are right, and that no kernel is made of yet, with what the error says."""
