"""The time of the plan alone, beside that of sorting the same ids in PyTorch: python -m benchmarks.plan --help."""

from __future__ import annotations

import argparse
import faulthandler
import secrets
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median

import torch
from torch import Tensor

import uniep_compiler
from benchmarks import record
from benchmarks.peers import PROGRAM
from benchmarks.shapes import SHAPES, Shape
from benchmarks.timing import synchronize
from uniep_compiler.codegen.state_layout import ERROR_WORDS, STATE_WORDS
from uniep_compiler.runtime.modules import load_module
from uniep_compiler.runtime.plan import Plan, PlanShape, allocate_plan, run_plan

CALLS = 20
REPEATS = 5
SLEEP_CYCLES = 40_000_000
"""Of the device, while calls are queued: some 20 ms."""
MAX_DOUBLINGS = 5


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print a table, write the result. 1 if a plan is wrong."""
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    parser = argparse.ArgumentParser(prog="python -m benchmarks.plan", description="Times the plan alone.")
    parser.add_argument("--shapes", nargs="+", choices=list(SHAPES), default=list(SHAPES), metavar="SHAPE")
    parser.add_argument("--seed", type=int, default=secrets.randbelow(2**31), help="default: another in each run")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--smoke", action="store_true", help="tiny sizes: tests the benchmark, measures nothing")
    parser.add_argument("--out", type=Path, help="folder to write plan-GPU.json into")
    parser.add_argument("--commit", help="the commit to record, where there is no repository")
    parser.add_argument(
        "--limit", type=float, default=240.0, help="seconds after which the process ends, come what may"
    )
    options = parser.parse_args(arguments)
    faulthandler.dump_traceback_later(options.limit, exit=True)  # it also ends a process that waits for a device
    device = torch.device(options.device)
    gpu = {"gpu": torch.cuda.get_device_name(device)} if device.type == "cuda" else {}
    result = record.about("plan", arguments, options.commit)
    result |= {"seed": options.seed, "smoke": options.smoke, "device": gpu, "shapes": []}
    shapes = [SHAPES[name].smoke() if options.smoke else SHAPES[name] for name in options.shapes]
    rows = [measure(shape, options.seed, device) for shape in shapes]
    result["shapes"] = rows
    if options.out:
        record.write(result, options.out)
    print(table(rows))
    faulthandler.cancel_dump_traceback_later()
    return 0 if all(row["right"] for row in rows) else 1


def measure(shape: Shape, seed: int, device: torch.device) -> dict[str, object]:
    """The plan of one shape: whether it is right, its times, and those of the sort that it stands for."""
    generator = torch.Generator(device).manual_seed(seed)
    ids = torch.randn(shape.T, shape.E, generator=generator, device=device).topk(shape.K, dim=1).indices.int()
    make = planner(shape, ids)
    sort = sorter(shape, ids)
    plan = make()
    right = bool((plan.row_of.view(ids.shape) == expected_rows(plan, ids)).all())
    return {
        "name": shape.name,
        **shape.sizes,
        "right": right,
        "plan_us": device_us(make, device),
        "plan_call_us": call_us(make, device),
        "sort_us": device_us(sort, device),
        "sort_call_us": call_us(sort, device),
    }


def planner(shape: Shape, ids: Tensor) -> Callable[[], Plan]:
    """What a layer's call does before its kernel: allocate a plan, and fill it."""
    layer = uniep_compiler.compile(
        uniep_compiler.parse_file(PROGRAM), dims=shape.dims, target="cuda" if ids.is_cuda else "cpu"
    )
    graph = layer.graph
    module = load_module(layer.source["plan"], "benchmark_plan", layer.target.interpreted)
    state = torch.zeros(STATE_WORDS, dtype=torch.int64, device=ids.device)
    error = torch.zeros(ERROR_WORDS, dtype=torch.int64, pin_memory=ids.is_cuda)
    token_start = torch.tensor([0, shape.T], dtype=torch.int32, device=ids.device)
    expert_first = torch.tensor([0, shape.E], dtype=torch.int32, device=ids.device)
    sizes = PlanShape(
        tokens=(shape.T,), experts=graph.experts, topk=graph.topk, tile_rows=graph.tile_rows, block=graph.block
    )

    def make() -> Plan:
        plan = allocate_plan(sizes, ids.device)
        run_plan(module, plan, ids, state=state, error=error, token_start=token_start, expert_first=expert_first)
        return plan

    return make


def sorter(shape: Shape, ids: Tensor) -> Callable[[], Tensor]:
    """The same by PyTorch's ops: a stable sort, where each expert ends, and the row of each route."""
    flat = ids.flatten()
    experts = torch.arange(shape.E, device=ids.device)
    places = torch.arange(flat.numel(), device=ids.device)

    def sort() -> Tensor:
        sorted_ids, order = flat.sort(stable=True)
        torch.searchsorted(sorted_ids, experts, right=True, out_int32=True)
        row_of = torch.empty_like(order)
        row_of[order] = places
        return row_of

    return sort


def expected_rows(plan: Plan, ids: Tensor) -> Tensor:
    """The row that each route has to get: behind its expert's first row, in the order of tokens."""
    flat = ids.flatten().long()
    order = flat.argsort(stable=True)
    counts = torch.bincount(flat, minlength=len(plan.expert_rows))
    within = torch.arange(len(flat), device=flat.device) - (counts.cumsum(0) - counts)[flat[order]]
    rows = torch.empty_like(flat)
    rows[order] = within + plan.expert_row.long()[flat[order]]
    return rows.view(ids.shape)


def device_us(call: Callable[[], object], device: torch.device) -> float | None:
    """Microseconds of a call on the device, without gaps between launches: all are queued while the device sleeps."""
    if device.type != "cuda":
        return None
    return median(_queued_us(call) for _ in range(REPEATS))


def _queued_us(call: Callable[[], object]) -> float:
    for doubling in range(MAX_DOUBLINGS):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda._sleep(SLEEP_CYCLES << doubling)
        start.record()
        for _ in range(CALLS):
            call()
        end.record()
        slept_long_enough = not start.query()
        torch.cuda.synchronize()
        if slept_long_enough:
            break
    return 1e3 * float(start.elapsed_time(end)) / CALLS


def call_us(call: Callable[[], object], device: torch.device) -> float:
    """Microseconds until a single call is done, as a caller sees it who waits."""
    times = []
    for _ in range(CALLS * REPEATS if device.type == "cuda" else 2):
        synchronize(device)
        start = time.perf_counter()
        call()
        synchronize(device)
        times.append(1e6 * (time.perf_counter() - start))
    return median(times)


def table(rows: Sequence[dict[str, object]]) -> str:
    """The rows for a terminal: microseconds on the device, and until a caller has waited for them."""
    head = f"{'':14} {'plan us':>9} {'waited':>9} {'sort us':>9} {'waited':>9}"
    names = ("plan_us", "plan_call_us", "sort_us", "sort_call_us")
    lines = [
        f"{row['name']!s:14} {' '.join(_cell(row[name]) for name in names)}{'' if row['right'] else '  WRONG PLAN'}"
        for row in rows
    ]
    return "\n".join([head, *lines])


def _cell(value: object) -> str:
    return f"{'-':>9}" if value is None else f"{float(value):9.1f}"  # type: ignore[arg-type]


if __name__ == "__main__":
    sys.exit(main())
