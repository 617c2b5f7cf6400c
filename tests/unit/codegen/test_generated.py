"""Generated modules as texts: they parse, are formatted and the same everywhere, and nothing in them is idle."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from hashlib import sha256
from itertools import cycle, product
from pathlib import Path

import pytest

from tests.modules import DIMS, LAYER, emitted, source
from tests.programs import NASTY, ONE_RANK_ONLY, RELAYED_ONLY, SUPPORTED
from tests.random_programs import random_program
from uniep_compiler.codegen.layout import WIDTH
from uniep_compiler.diagnostics import UniepError

pytestmark = pytest.mark.xdist_group("generated modules")  # made once, in one process

TARGETS = ("cpu", "sm_80", "sm_90", "sm_100")
SIZES = (1, 16, 48, 100, 2048)
DTYPES = ("bf16", "f16", "f32")


def modules(every=1):
    """Names and texts: of each target, relay, fusion and group size, with dims and dtypes in turn; of each program."""
    made = (source_of(name, options) for name, options in list(cases())[::every])
    yield from (module for module in made if module is not None)


def source_of(name, options):
    try:
        return name, source(**options)
    except UniepError:
        if not name.startswith("random"):
            raise
        return None  # refused


def cases():
    dims, dtypes = cycle(product(SIZES, SIZES)), cycle(DTYPES)
    schedules = list(product(("copy", "gather", "off"), ("layer", "pairs", "none"), (None, 1, 2, 3)))
    for target, (relay, fuse, ranks) in product(TARGETS, schedules):
        (hidden, inner), dtype = next(dims), next(dtypes)
        sizes = (("H", hidden), ("I", inner), ("E", 5), ("K", 3))
        options = {"target": target, "relay": relay, "fuse": fuse, "ranks": ranks, "dtype": dtype, "dims": sizes}
        yield str(options), options
    for (name, text), target, ranks in product(SUPPORTED.items(), ("cpu", "sm_90"), (None, 2)):
        if ranks is None or name not in ONE_RANK_ONLY:
            yield f"{name} {target} {ranks}", {"text": text, "target": target, "ranks": ranks, "dims": PROGRAM_DIMS}
    targets = cycle(TARGETS)
    for (name, text), ranks, relay in product(SUPPORTED.items(), (1, 2), ("copy", "gather", "off")):
        if name not in ONE_RANK_ONLY and not (name in RELAYED_ONLY and relay == "off"):
            options = {"target": next(targets), "ranks": ranks, "relay": relay}
            yield f"{name} {options}", {"text": text, "dims": PROGRAM_DIMS, **options}
    for seed in range(24):
        sizes = (("H", SIZES[seed % 5]), ("I", SIZES[seed % 3]), ("E", 5), ("K", 2))
        yield f"random {seed}", {"text": random_program(seed), "target": TARGETS[seed % 4], "dims": sizes}
    for target in TARGETS:
        yield f"nasty {target}", {"text": NASTY, "target": target, "ranks": 3, "dims": NASTY_DIMS}
        yield f"long {target}", {"text": LONG, "target": target, "ranks": 3, "dims": LONG_DIMS}


PROGRAM_DIMS = (("H", 20), ("I", 12), ("E", 5), ("K", 1))
NASTY_DIMS = (("tile", 4), ("rank", 20), ("H", 12), ("k", 2))

LONG = re.sub(
    r"\b(x|experts|weights|w13|w2|r|xs|h|gate|up|a|y|H|I|K|E)\b", r"\1_" + "long_name_of_a_value_or_dim_" * 4, LAYER
)
"""The layer with names of a hundred characters."""
LONG_DIMS = tuple((f"{name}_" + "long_name_of_a_value_or_dim_" * 4, size) for name, size in DIMS)


@dataclass(frozen=True, kw_only=True)
class Module:
    """A module's text and functions, and the names that it has at its top."""

    name: str
    text: str
    functions: tuple[ast.FunctionDef, ...]
    top: frozenset[str]


def read(name, text):
    tree = ast.parse(text)
    functions = tuple(node for node in tree.body if isinstance(node, ast.FunctionDef))
    top = {function.name for function in functions}
    top |= {target.id for node in tree.body if isinstance(node, ast.Assign) for target in node.targets}
    imports = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
    top |= {alias.asname or alias.name for node in imports for alias in node.names}
    return Module(name=name, text=text, functions=functions, top=frozenset(top))


def names_in(function):
    return [node for node in ast.walk(function) if isinstance(node, ast.Name)]


@pytest.fixture(scope="module")
def all_modules():
    return [read(name, text) for name, text in modules()]


def test_they_are_formatted(all_modules, tmp_path):
    for number, module in enumerate(all_modules):
        (tmp_path / f"m{number}.py").write_text(module.text, encoding="utf-8")
    command = [sys.executable, "-m", "ruff", "format", "--isolated", "--line-length", "120", "--diff", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    differing = [all_modules[int(number)].name for number in re.findall(r"^--- .*m(\d+)\.py", done.stdout, re.M)]
    assert done.returncode == 0, f"{differing}\n{done.stdout[:5000]}"


def test_no_line_is_too_long(all_modules):
    for module in all_modules:
        assert [line for line in module.text.split("\n") if len(line) > WIDTH] == [], module.name


def test_every_local_is_read(all_modules):
    # A half of a split that nobody reads is computed and then dropped; a call may have no tasks to tell apart.
    special = ("half a split", "random", "routing alone")
    for module in (module for module in all_modules if not module.name.startswith(special)):
        for function in module.functions:
            names = names_in(function)
            stored = {node.id for node in names if isinstance(node.ctx, ast.Store)}
            assert stored <= {node.id for node in names if isinstance(node.ctx, ast.Load)}, (module.name, function.name)


def test_counts_of_tasks_have_names(all_modules):
    """What a wait waits for, and where tasks stand in the order, are not bare numbers."""
    for module in all_modules:
        for function in module.functions:
            calls = [node for node in ast.walk(function) if isinstance(node, ast.Call)]
            waits = [call for call in calls if getattr(call.func, "id", "") == "wait"]
            assert {number for call in waits for number in numbers_in(call.args[1])} <= {1}, module.name
            if function.name.startswith("locate"):
                lags = [call for call in calls if getattr(call.func, "id", "") == "minimum"]
                allowed = [number for call in lags for number in numbers_in(call)]
                assert set(numbers_in(function)) <= {0, 1, *allowed}, module.name
                assert set(allowed) <= set(range(2, 9)), module.name


def numbers_in(node):
    return [child.value for child in ast.walk(node) if isinstance(child, ast.Constant) and isinstance(child.value, int)]


def test_compiled_modules_cast_nothing_for_the_interpreter(all_modules):
    for module in all_modules:
        assert ("as_int" in module.top) == ("cpu" in module.text.split("\n")[0]), module.name


def test_they_hold_no_path_and_no_date(all_modules):
    for module in all_modules:
        assert str(Path.cwd()) not in module.text, module.name
        assert not re.search(r"/(home|root|tmp|usr|var)/", module.text), module.name
        assert not re.search(r"\b20\d\d-\d\d-\d\d\b|\b\d\d:\d\d:\d\d\b", module.text), module.name


def test_every_name_is_read_and_every_name_that_is_read_is_there(all_modules):
    for module in all_modules:
        read_names = {"RUN_TIME_COUNTS"}
        for function in module.functions:
            names = names_in(function)
            stored = {node.id for node in names if isinstance(node.ctx, ast.Store)}
            own = stored | {argument.arg for argument in function.args.args}
            loaded = {node.id for node in names if isinstance(node.ctx, ast.Load)}
            assert loaded - own - module.top <= BUILTINS, (module.name, function.name)
            assert not stored & module.top, (module.name, function.name)
            read_names |= loaded - own
        idle = {name for name in module.top - read_names if not re.fullmatch(r"forward(_\d+)?", name)}
        assert idle == set(), module.name


BUILTINS = {"range", "float", "int", "isinstance", "list", "len", "min", "max", "TypeError"}


def test_every_argument_of_a_family_is_used(all_modules):
    for module in all_modules:
        for function in module.functions:
            if function.name.split("_")[0] in ("send", "relay", "gemm", "push", "reduce", "pad", "locate"):
                arguments = {argument.arg for argument in function.args.args}
                assert arguments <= {node.id for node in names_in(function)}, (module.name, function.name)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("ranks", [None, 2])
def test_kernels_take_what_the_host_is_told(target, ranks):
    made = emitted(ranks=ranks, target=target, fuse="none")
    kernels = {function.name: function for function in read("", made.source).functions}
    for launch in made.view.launches:
        assert tuple(argument.arg for argument in kernels[launch.name].args.args) == made.view.arguments
    assert set(made.view.run_time_counts) <= set(made.view.arguments)
    assert {view.name for view in made.view.descriptors} <= set(made.view.arguments)


PRINT_DIGEST = """
from hashlib import sha256
from tests.unit.codegen.test_generated import modules
print(sha256(repr(list(modules(every=4))).encode()).hexdigest())
"""


def test_they_are_the_same_in_every_process():
    digests = {sha256(repr(list(modules(every=4))).encode()).hexdigest()}
    for seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path)}
        command = [sys.executable, "-c", PRINT_DIGEST]
        digests.add(subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.strip())
    assert len(digests) == 1
