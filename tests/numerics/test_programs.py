"""Programs of every form: the kernels do what the program says, whichever schedule they run under."""

from __future__ import annotations

import ast
from functools import cache

import pytest
import torch

import uniep_compiler as uniep
from tests.numerics.layers import assert_same_bits, call, even, relative_error
from tests.programs import NASTY, ONE_RANK_ONLY, PARAMS, RELAYED_ONLY, SUPPORTED, program
from uniep_compiler.frontend.bind import dims_to_bind
from uniep_compiler.frontend.lower import lower
from uniep_compiler.ir.types import RoutesType, RowsType
from uniep_compiler.runtime.arguments import TORCH_DTYPES, ParamRole, param_roles
from uniep_compiler.runtime.routes import Routes, is_counts

DIMS = {"H": 20, "I": 12, "E": 4, "K": 2}
TOKENS = 13
TOLERANCE = {
    torch.int32: 0.0,
    torch.float32: 1e-2,
    torch.bfloat16: 1.5e-2,
}  # rows are bf16, and errors add up over three GEMMs
ONE_RANK = [{"relay": "copy"}, {"relay": "off", "fuse": "pairs"}, {"fuse": "none"}]
GROUPS = [{"ranks": 2}, {"ranks": 3, "relay": "gather"}, {"ranks": 2, "relay": "off", "fuse": "none"}]


@cache
def layer_of(text, device, dims, schedule):
    options = dict(schedule)
    ranks = options.pop("ranks", None)
    program = uniep.parse(text)
    bound = {name: size for name, size in dims if name in dims_to_bind(lower(program))}
    group = None if ranks is None else uniep.virtual_group(ranks)
    return uniep.compile(program, dims=bound, target=device, group=group, schedule=options, debug=True)


def arguments(layer, device, seed=0):
    """Random arguments of one rank. Some routes have no expert; weights are scaled to keep rows near 1."""
    generator = torch.Generator().manual_seed(seed)
    token, roles = layer.ops.types[routes_name(layer)].tokens.name, param_roles(layer.ops)
    args = []
    for param in layer.ops.params:
        shape = [TOKENS if dim.name == token else dim.value(layer.dims) for dim in param.type.shape]
        if roles[param.name] is ParamRole.IDS:
            experts = layer.ops.types[routes_name(layer)].experts.value(layer.dims)
            value = torch.rand(TOKENS, experts, generator=generator).topk(shape[1], dim=1).indices.int()
            value[torch.rand(value.shape, generator=generator) < 0.2] = -1
        else:
            scale = shape[-1] ** -0.5 if len(shape) == 3 else 1.0
            value = (torch.randn(shape, generator=generator) * scale).to(TORCH_DTYPES[param.type.dtype])
        args.append(value.to(device))
    return args


def routes_name(layer):
    return next(name for name, kind in layer.ops.types.items() if isinstance(kind, RoutesType))


def run(layer, args):
    """The results as one big rank has them: tokens of all ranks, and valid rows of all ranks."""
    if layer.group is not None:
        ranks, roles = layer.group.num_ranks, param_roles(layer.ops)
        shared = (ParamRole.EXPERTS,)
        parts = {True: layer.placement, False: even(TOKENS, ranks)}
        args = [
            [value] * ranks
            if roles[param.name] is ParamRole.UNUSED and len(value) != TOKENS
            else list(value.split(list(parts[roles[param.name] in shared])))
            for param, value in zip(layer.ops.params, args, strict=True)
        ]
    results = call(layer, *args)
    results = results if isinstance(results, tuple) else (results,)
    by_rank = [result if isinstance(result, list) else [result] for result in results]
    routes = next((ranks for ranks in by_rank if isinstance(ranks[0], Routes)), None)
    whole = []
    for name, ranks in zip(layer.ops.results, by_rank, strict=True):
        kind = layer.ops.types[name]
        if isinstance(kind, RowsType):
            ranks = [rows[rows.any(dim=1)] if routes is None else rows for rows in ranks]
            if routes is not None:
                ranks = [rows[: int(mine.num_rows)] for rows, mine in zip(ranks, routes, strict=True)]
        if is_counts(layer.ops, name):
            assert all(torch.equal(mine, ranks[0]) for mine in ranks)
            ranks = ranks[:1]
        whole.append(None if isinstance(kind, RoutesType) else torch.cat(ranks))
    return whole


@cache
def expected(text, device, dims):
    layer = layer_of(text, device, dims, ())
    args = arguments(layer, device)
    return args, run(layer, args)


def results_of(reference):
    return reference if isinstance(reference, tuple) else (reference,)


@pytest.mark.parametrize("name", SUPPORTED)
def test_a_program_gives_what_it_says(device, name):
    dims = tuple(DIMS.items())
    layer = layer_of(SUPPORTED[name], device, dims, ())
    args, results = expected(SUPPORTED[name], device, dims)
    for out, reference in zip(results, results_of(layer.reference(*args, dtype=torch.float64)), strict=True):
        if isinstance(reference, torch.Tensor):
            assert relative_error(out, reference) <= TOLERANCE[out.dtype]


def assert_same_under(schedules, name, device):
    dims = tuple(DIMS.items())
    args, results = expected(SUPPORTED[name], device, dims)
    for schedule in schedules:
        in_place = "ranks" in schedule and schedule.get("relay") == "off"
        if ("ranks" in schedule and name in ONE_RANK_ONLY) or (in_place and name in RELAYED_ONLY):
            continue
        again = run(layer_of(SUPPORTED[name], device, dims, tuple(schedule.items())), args)
        for out, reference in zip(again, results, strict=True):
            if reference is not None:
                assert_same_bits(out, reference)


EVERY_THIRD = {name for number, name in enumerate(SUPPORTED) if number % 3 == 0}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in EVERY_THIRD else [pytest.mark.long]) for name in SUPPORTED]
)
def test_a_program_gives_the_same_bits_under_other_schedules(device, name):
    """Two of them, which take turns; the long test takes all."""
    turn = list(SUPPORTED).index(name) % 3
    assert_same_under((ONE_RANK[turn], GROUPS[-turn]), name, device)


@pytest.mark.long
@pytest.mark.parametrize("name", SUPPORTED)
def test_a_program_gives_the_same_bits_under_every_schedule(device, name):
    assert_same_under((*ONE_RANK, *GROUPS), name, device)


@pytest.mark.parametrize("schedule", [{}, *ONE_RANK, *GROUPS], ids=str)
def test_a_program_may_use_any_names(device, schedule):
    dims = tuple({"tile": 4, "rank": 20, "H": 12, "k": 2}.items())
    layer = layer_of(NASTY, device, dims, tuple(schedule.items()))
    args, results = expected(NASTY, device, dims)
    if schedule:
        for out, reference in zip(run(layer, args), results, strict=True):
            assert_same_bits(out, reference)
    else:
        for out, reference in zip(results, results_of(layer.reference(*args, dtype=torch.float64)), strict=True):
            assert relative_error(out, reference) <= TOLERANCE[out.dtype]


def test_values_may_have_every_name_that_the_kernel_uses(interpreter):
    """The names in the GEMMs of a plain layer, as names of another layer's values, a few at a time."""
    dims = tuple(DIMS.items())
    plain = layer_of(SUPPORTED["biases"], interpreter, dims, (("ranks", 2),))
    functions = [node for node in ast.parse(plain.source["forward"]).body if isinstance(node, ast.FunctionDef)]
    gemms = [node for function in functions if function.name.startswith("gemm_") for node in ast.walk(function)]
    names = {node.id for node in gemms if isinstance(node, ast.Name)} | {"lambda", "x_stride", "tl", "print"}
    names = sorted(names - set(DIMS) - set(PARAMS))
    results = set()
    for first in range(0, len(names) - 4, 5):
        h, a, y, xs, z = names[first : first + 5]
        text = program(
            f"{xs} = dispatch(x, experts); {h} = group_gemm({xs}, w1); {z} = group_gemm({xs}, w3); "
            f"{a} = silu({h}) * {z}; {y} = group_gemm({a}, w2); return combine({y}, weights)"
        )
        layer = layer_of(text, interpreter, dims, ())
        results.add(tuple(run(layer, arguments(layer, interpreter))[0].flatten().tolist()))
    assert len(names) > 70
    assert len(results) == 1


FIRST = program(
    "r = route(experts); h = group_gemm(dispatch(x, r), w1); return r, h", "routes[T, K, E], bf16[rows(r), I]"
)
SECOND = """
uniep 1

moe second(
    r : routes[T, K, E], h : bf16[rows(r), I], s : f32[rows(r)], weights : f32[T, K], w2 : bf16[E, H, I]
) -> bf16[T, H], bf16[rows(r), I] {
    a = silu(h) * s
    b = relu(h) + a * 0.5
    y = group_gemm(b, w2) * s
    return combine(y, weights), a
}
"""


def test_rows_and_numbers_per_row_may_be_parameters(device):
    dims = tuple(DIMS.items())
    args, _ = expected(FIRST, device, dims)
    first, second = (layer_of(text, device, dims, ()) for text in (FIRST, SECOND))
    routes, h = call(first, *args)
    generator = torch.Generator().manual_seed(1)
    s, weights = (torch.rand(size, generator=generator).to(device) for size in ((len(h),), (TOKENS, 2)))
    w2 = torch.randn(4, 20, 12, generator=generator).to(torch.bfloat16).to(device)
    results = call(second, routes, h, s, weights, w2)
    count = int(routes.num_rows)
    for out, reference in zip(results, second.reference(routes, h, s, weights, w2, dtype=torch.float64), strict=True):
        assert relative_error(out[: len(reference)], reference) <= TOLERANCE[out.dtype]
    assert not results[1][count:].any()
    # In a group, with the rows and the numbers that are each rank's.
    first, second = (layer_of(text, device, dims, (("ranks", 2),)) for text in (FIRST, SECOND))
    tokens = even(TOKENS, 2)
    x, ids = (list(value.split(tokens)) for value in args[:2])
    routes, h = call(first, x, ids, list(args[2].split(first.placement)))
    counts = [int(mine.num_rows) for mine in routes]
    numbers = [torch.nn.functional.pad(part, (0, len(h[0]) - len(part))) for part in s[:count].split(counts)]
    out, a = call(second, routes, h, numbers, list(weights.split(tokens)), list(w2.split(first.placement)))
    assert_same_bits(torch.cat(out), results[0])
    assert_same_bits(torch.cat([part[:size] for part, size in zip(a, counts, strict=True)]), results[1][:count])
