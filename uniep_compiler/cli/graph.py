"""`uniepc graph`: the task graph as a picture, or as a page."""

from __future__ import annotations

import random
from itertools import accumulate, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from uniep_compiler.cli.failures import UsageError, guarded
from uniep_compiler.cli.options import (
    AnyTarget,
    AsJson,
    Dims,
    DTypeOption,
    File,
    Moe,
    Ranks,
    ScheduleOption,
    integer,
    read_number,
    read_path,
    read_seed,
    shown,
)
from uniep_compiler.cli.output import print_json, print_text, progress, warn
from uniep_compiler.diagnostics import reason

if TYPE_CHECKING:
    from uniep_compiler.cli.request import Request
    from uniep_compiler.ir.routing import Routing
    from uniep_compiler.ir.schedule import Schedule
    from uniep_compiler.ir.tasks import TaskGraph

Output = Annotated[
    Path | None,
    typer.Option(
        "-o", "--output", parser=read_path, metavar="FILE", help="x.svg for a picture, x.html for a page with tables."
    ),
]
Tokens = Annotated[
    int | None,
    typer.Option(
        "--tokens",
        parser=integer(1),
        metavar="INTEGER",
        help="Draw single tasks, for so many tokens of all ranks with random routes.",
    ),
]
RoutingOption = Annotated[
    str | None,
    typer.Option(
        "--routing",
        metavar="IDS",
        help="Draw single tasks for these expert ids, such as 0,1/2,-1/3,0 for three tokens with two routes each.",
    ),
]
Seed = Annotated[int, typer.Option("--seed", parser=read_seed, metavar="INTEGER", help="Seed of random routes.")]


@guarded
def graph_command(
    file: File,
    dims: Dims = None,
    output: Output = None,
    tokens: Tokens = None,
    routing: RoutingOption = None,
    seed: Seed = 0,
    moe: Moe = None,
    target: AnyTarget = "sm_90",
    ranks: Ranks = None,
    dtype: DTypeOption = None,
    schedule: ScheduleOption = None,
    as_json: AsJson = False,
) -> None:
    """Draw the task graph: families, buffers, signals and launches; or single tasks in their linear order."""
    from uniep_compiler import compiler
    from uniep_compiler.cli.request import make_request

    _check_output(output)
    if tokens is not None and routing is not None:
        raise UsageError("--tokens and --routing: say one of them", "--routing gives the ids of every token")
    routes = None if routing is None else read_routes(routing)
    count = tokens if routes is None else len(routes)
    request = make_request(
        file=file,
        moe=moe,
        dims=dims,
        target=target,
        ranks=ranks,
        dtype=dtype,
        schedule=schedule,
        tokens=None if count is None else -(-count // (ranks or 1)),
    )
    for warning in request.warnings:
        warn(warning.render(request.program.source))
    order = compiler.final_schedule(compiler.states(request.ops, request.settings))
    if tokens is not None:
        _check_size(order.graph, tokens)
        routes = random_routes(tokens, order.graph.experts, order.graph.topk, seed)
    plan = None if routes is None else _routing(request, order, routes)
    with progress("drawing"):
        picture = _picture(request, order, plan, page=output is not None and output.suffix == ".html")
    if output is not None:
        _write(picture, output)
    if as_json:
        drawn = {"picture": picture} if output is None else {"file": str(output)}
        print_json({"ok": True, **_counts(request, order, plan), **drawn})
    else:
        print_text(picture if output is None else f"wrote {output}")


def _check_output(output: Path | None) -> None:
    if output is not None and output.suffix not in (".svg", ".html"):
        raise UsageError(f"--output: cannot draw into {output}", "its name has to end in .svg or .html")


def _write(picture: str, output: Path) -> None:
    try:
        output.write_text(picture, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot write to {output}: {reason(error)}") from None


def _counts(request: Request, order: Schedule, plan: Routing | None) -> dict[str, object]:
    from uniep_compiler.pictures.tasks import count_tasks

    graph = order.graph
    return {
        "layer": request.ops.name,
        "families": len(graph.families),
        "signals": len(graph.signals),
        "buffers": len(graph.buffers),
        "launches": len(order.launches),
        "tasks": None if plan is None else count_tasks(graph, plan),
    }


def _picture(request: Request, order: Schedule, plan: Routing | None, *, page: bool) -> str:
    from uniep_compiler.cli.summary import options_json
    from uniep_compiler.pictures.families import families_svg
    from uniep_compiler.pictures.page import page as page_html

    tasks = None if plan is None else _tasks_picture(request, order, plan)
    if page:
        options = options_json(request.settings)
        tiles = {f"tile({name})": tuple(shape) for name, shape in options.pop("tiles").items()}
        return page_html(
            order, title=request.title(), source=request.program.source, options={**options, **tiles}, tasks=tasks
        )
    return tasks or families_svg(order, request.title())


def _check_size(graph: TaskGraph, tokens: int) -> None:
    """Refuses a picture of so many tokens before they get routes: some family has a task for each tile, or block."""
    from uniep_compiler.pictures.tasks import MAX_TASKS

    fewest = min(-(-tokens * graph.topk // graph.tile_rows), -(-tokens // graph.block))
    if fewest > MAX_TASKS:
        raise _too_many_tasks(f"{fewest} tasks or more")


def _too_many_tasks(number: str) -> UsageError:
    from uniep_compiler.pictures.tasks import MAX_TASKS

    return UsageError(f"{number} are too many to draw; {MAX_TASKS} are the most", "take fewer tokens, or smaller dims")


def _tasks_picture(request: Request, order: Schedule, plan: Routing) -> str:
    from uniep_compiler.pictures.tasks import MAX_TASKS, count_tasks, tasks_svg

    number = count_tasks(order.graph, plan)
    if number > MAX_TASKS:
        raise _too_many_tasks(f"{number} tasks")
    return tasks_svg(order, plan, request.title())


# -- routes -----------------------------------------------------------------------------------------------------------


def read_routes(text: str) -> tuple[tuple[int, ...], ...]:
    """The expert ids of each token, of a text such as `0,1/2,-1`. UsageError for anything else."""
    tokens = [[read_number(number.strip()) for number in token.split(",")] for token in text.split("/")]
    routes = tuple(tuple(number for number in token if number is not None) for token in tokens)
    if any(None in token for token in tokens):
        raise UsageError(
            f"--routing: {shown(text)} is not a list of ids", "write tokens as in 0,1/2,-1: a slash ends one"
        )
    return routes


def random_routes(tokens: int, experts: int, topk: int, seed: int) -> tuple[tuple[int, ...], ...]:
    """Different experts for each token, as a router without preferences would choose them."""
    source = random.Random(seed)
    return tuple(tuple(source.sample(range(experts), topk)) for _ in range(tokens))


def _routing(request: Request, order: Schedule, routes: tuple[tuple[int, ...], ...]) -> Routing:
    """The plan for these routes, of which every rank has the same number, or the first ones have one more."""
    from uniep_compiler.ir.routing import Routing, balanced_placement

    graph, settings = order.graph, request.settings
    for token, ids in enumerate(routes):
        if len(ids) != graph.topk:
            raise UsageError(f"--routing: token {token} has {len(ids)} ids, but K is {graph.topk}")
        if any(not -1 <= expert < graph.experts for expert in ids):
            raise UsageError(
                f"--routing: token {token} has an id that is no expert",
                f"ids go from 0 to {graph.experts - 1}, or are -1",
            )
    ends = accumulate(balanced_placement(len(routes), graph.ranks), initial=0)
    return Routing(
        ids=tuple(routes[start:end] for start, end in pairwise(ends)),
        experts=graph.experts,
        topk=graph.topk,
        placement=settings.placement,
        tile_rows=graph.tile_rows,
        block=graph.block,
        send=settings.send,
        order=settings.order,
    )
