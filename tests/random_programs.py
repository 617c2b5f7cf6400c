"""Random layers by seed: dispatches, GEMMs of both layouts, splits, elementwise work anywhere, several results."""

from __future__ import annotations

import random
import re

from tests.programs import PARAMS

GEMMS = {
    "H": [("w1", "I", "b1", ""), ("w3", "I", "b1", ""), ("w13", "2*I", "b13", ""), ("w13kn", "2*I", "b13", "kn")],
    "I": [("w2", "H", "b2", ""), ("w2kn", "H", "b2", "kn")],
}
"""By the width of rows: weights that multiply them, with the width of the result, a bias, and the layout."""
UNARY = ("silu", "relu", "sigmoid", "square", "gelu", "gelu_tanh")


class _Layer:
    """A layer in the making: its statements, and the values so far with their widths."""

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.lines = ["r = route(experts)"]
        self.widths = {}
        self.numbers = []

    def define(self, width, text, declared=""):
        name = f"{self.random.choice(('v', 'Q', 'tile', 'acc', 'y_acc', 'out'))}{len(self.widths)}"
        self.lines.append(f"{name}{declared} = {text}")
        self.widths[name] = width

    def value(self, width):
        return self.random.choice([name for name, other in self.widths.items() if other == width])

    def expression(self, width, depth=0):
        kind = self.random.random()
        if depth > 2 or kind < 0.3:
            return self.value(width)
        inner = self.expression(width, depth + 1)
        if kind < 0.5:
            return f"{self.random.choice(UNARY)}({inner})"
        if kind < 0.6 and self.numbers:
            return f"{inner} * {self.random.choice(self.numbers)}"
        if kind < 0.7:
            return f"({inner} {self.random.choice('+-*')} {self.random.choice(('0.5', '1.25', '2.0'))})"
        if kind < 0.8:
            return self.random.choice((f"clamp({inner}, min=-2.0, max=3.0)", f"(-{inner})"))
        return f"({inner} {self.random.choice('+-*')} {self.expression(width, depth + 1)})"

    def add_statement(self):
        kind, widths = self.random.random(), sorted(set(self.widths.values()))
        if kind < 0.5:
            width = self.random.choice([width for width in widths if width in GEMMS])
            weight, result, bias, layout = self.random.choice(GEMMS[width])
            options = [f"bias={bias}"] * (self.random.random() < 0.2) + [f"layout={layout}"] * bool(layout)
            text = f"group_gemm({', '.join((self.value(width), weight, *options))})"
            self.define(result, f"silu({text})" if self.random.random() < 0.3 else text)
        elif kind < 0.65 and "2*I" in widths:
            how = self.random.choice(("halves", "interleaved"))
            names = [f"{half}{len(self.widths)}" for half in ("even", "odd")]
            self.lines.append(f"{', '.join(names)} = split({self.value('2*I')}, {how})")
            self.widths |= dict.fromkeys(names, "I")
        else:
            width = self.random.choice(widths)
            self.define(width, self.expression(width))

    def result(self):
        name = self.random.choice(list(self.widths))
        width = self.widths[name]
        if self.random.random() < 0.3:
            return name, f"bf16[rows(r), {width}]"
        return f"combine({name}{self.random.choice(('', ', weights', ', gates'))})", f"bf16[T, {width}]"


def random_program(seed):
    """The text of a layer `m`. It is right, but the back end may refuse it."""
    layer = _Layer(seed)
    layer.define("H", "dispatch(x, r)")
    for name, source in (("s", "weights"), ("t", "gates")):
        if layer.random.random() < 0.3:
            layer.lines.append(f"{name} = to_rows({source}, r)")
            layer.numbers.append(name)
    for _ in range(layer.random.randint(1, 7)):
        layer.add_statement()
    results = [layer.result() for _ in range(layer.random.randint(1, 3))]
    values, types = zip(*results, ("r", "routes[T, K, E]"), strict=True)
    body = "".join(f"    {line}\n" for line in (*layer.lines, f"return {', '.join(values)}"))
    used = [name for name in PARAMS if re.search(rf"\b{name}\b", body)]
    unused = [] if any(PARAMS[name].startswith("bf16[E") for name in used) else [f"    _w1 : {PARAMS['w1']},\n"]
    params = "".join(f"    {name} : {PARAMS[name]},\n" for name in used)
    return f"uniep 1\n\nmoe m(\n{params}{''.join(unused)}) -> {', '.join(types)} {{\n{body}}}\n"
