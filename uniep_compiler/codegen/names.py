"""Names in generated modules: the program's own where they are free, and never one that hides another."""

from __future__ import annotations

import keyword
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cache

from uniep_compiler.codegen.loader import template_names, template_text
from uniep_compiler.ir.tasks import GemmBody, MapBody, OuterBody, TaskGraph
from uniep_compiler.passes.names import fresh, is_named

LONGEST_LOCAL = 20
LONGEST_DIM = 12
LONGEST_LAG = 16
"""Characters that are kept of a value's, a dim's, and a family's name in that of its lag, so that lines stay short."""

MADE = ("board", "num_tiles", "total_rows", "tokens", "rank")
"""What kernels make of their arguments and hand down to families."""

TILE_PARTS = ("COLS", "COLUMNS", "DEPTH", "STEP")
OUTER_PARTS = ("ROWS", "COLS", "DEPTH", "ACROSS", "PLACES")

_DECODED = frozenset(
    {"tile", "column", "expert", "first_row", "num_rows", "first_token", "route", "source", "origin", "place"}
)
_SUFFIXES = ("_first", "_at", "_tile", "_bias", "_numbers", "_piece", "_pieces", "_row")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleNames:
    """What a module calls families (functions and constants), signals and dims, by their names in the IR.

    `lags` and `firsts` are locals of the code that finds a task: by how many groups a family runs behind the first, and
    where its tasks begin in a step. `taken` holds every name at the top of the module, and every argument.
    """

    functions: Mapping[str, str]
    families: Mapping[str, str]
    tiles: Mapping[str, TileNames]
    outers: Mapping[str, OuterNames]
    signals: Mapping[str, str]
    dims: Mapping[str, str]
    lags: Mapping[str, str]
    firsts: Mapping[str, str]
    taken: frozenset[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class TileNames:
    """Constants of a GEMM: columns of an accumulator, tiles side by side, the reduction step, tasks of a group."""

    cols: str
    columns: str
    depth: str
    step: str


@dataclass(frozen=True, slots=True, kw_only=True)
class OuterNames:
    """Constants of a sum of outer products: the tile, the rows added at a time, tiles side by side and of an expert."""

    rows: str
    cols: str
    depth: str
    across: str
    places: str


def module_names(graph: TaskGraph, dims: Iterable[str], taken: Iterable[str]) -> ModuleNames:
    """The names for a graph, none of them one of `taken` or of those that templates define."""
    used = {*prelude_names(), *MADE, *keyword.kwlist, *taken}

    def take(wishes: Mapping[str, str]) -> dict[str, str]:
        chosen: dict[str, str] = {}
        for key, wish in wishes.items():
            chosen[key] = fresh(wish, used)
            used.add(chosen[key])
        return chosen

    families = [family.name for family in graph.families]
    gemms = [family.name for family in graph.families if isinstance(family.body, GemmBody)]
    dim_names = take({name: name.upper()[:LONGEST_DIM] for name in sorted(dims)})
    functions = take({name: name for name in families})
    numbers = take({name: name.upper() for name in families})
    cols, columns, depth, step = (take({name: f"{numbers[name]}_{part}" for name in gemms}) for part in TILE_PARTS)
    outers = [family.name for family in graph.families if isinstance(family.body, OuterBody)]
    parts = {part: take({name: f"{numbers[name]}_{part}" for name in outers}) for part in OUTER_PARTS}
    return ModuleNames(
        dims=dim_names,
        functions=functions,
        families=numbers,
        tiles={
            name: TileNames(cols=cols[name], columns=columns[name], depth=depth[name], step=step[name])
            for name in gemms
        },
        outers={name: OuterNames(**{part.lower(): parts[part][name] for part in OUTER_PARTS}) for name in outers},
        signals=take({signal.name: f"SIGNAL_{signal.name.upper()}" for signal in graph.signals}),
        lags=take({name: f"{name[:LONGEST_LAG]}_lag" for name in families}),
        firsts=take({name: f"{name[:LONGEST_LAG]}_from" for name in families}),
        taken=frozenset(used),
    )


@cache
def prelude_names() -> frozenset[str]:
    """Every name that a template gives to a function, a constant or an import of the module."""
    texts = [template_text(name) for name in template_names()]
    defined = {name for text in texts for name in re.findall(r"^(?:def )?([A-Za-z_]\w*)(?:\(| = )", text, re.M)}
    imports = [line for text in texts for line in re.findall(r"^(?:from .*)?import (.*)", text, re.M)]
    return frozenset(defined | {name for line in imports for name in re.findall(r"\w+", line)})


@cache
def words_of(template: str) -> frozenset[str]:
    """Every word that stands in a function of that template: a value of such a name would hide something."""
    texts = [template_text(f"triton/{name}.py.jinja") for name in ("family", template)]
    code = [re.sub(r"{{.*?}}|{%.*?%}|{#.*?#}|#.*|\"\"\".*?\"\"\"", " ", text) for text in texts]
    return _DECODED.union(*(re.findall(r"[A-Za-z_]\w*", text) for text in code))


def value_names(body: GemmBody | MapBody, taken: Collection[str]) -> dict[str, str]:
    """The locals that hold an epilogue's values: the program's names, shortened, and `value_1` for what has none.

    The name of what is read or accumulated comes with others, such as `gate_acc_tile` for the tile of its weight, which
    are free too.
    """
    used = {*words_of("gemm" if isinstance(body, GemmBody) else "map"), *taken}
    accumulators = [acc.value for acc in body.accumulators] if isinstance(body, GemmBody) else []
    read = [*accumulators, *(row_value.value for row_value in body.row_values)]
    read += [load.value for load in body.loads]
    read += [bias.value for bias in body.biases] if isinstance(body, MapBody) else []
    made = [*read, *(result for op in body.epilogue for result in op.results)]
    sums = {store.value for store in body.stores if store.summed}
    names: dict[str, str] = {}
    for value in sorted(made, key=is_named, reverse=True):
        wish = value[:LONGEST_LOCAL] if is_named(value) else f"{'acc' if value in accumulators else 'value'}{value}"
        suffixes = ("", *_SUFFIXES) if value in read else ("", "_total") if value in sums else ("",)
        name, number = wish, 1
        while any(name + suffix in used for suffix in suffixes):
            number += 1
            name = f"{wish}_{number}"
        names[value] = name
        used.update(name + suffix for suffix in suffixes)
    return names
