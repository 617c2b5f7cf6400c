"""`uniepc verify`: the static proof, and runs of the schedule machine."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from uniep_compiler.cli.failures import WRONG_PROGRAM, guarded
from uniep_compiler.cli.options import (
    AnyTarget,
    AsJson,
    Dims,
    DTypeOption,
    File,
    Moe,
    Ranks,
    ScheduleOption,
    WhenTokens,
    integer,
    read_seed,
)
from uniep_compiler.cli.output import diagnostics_json, print_json, print_text, progress, warn

if TYPE_CHECKING:
    from uniep_compiler.ir.schedule import Schedule
    from uniep_compiler.passes.settings import Settings

MachineRuns = Annotated[
    int,
    typer.Option(
        "--machine",
        parser=integer(0),
        metavar="N",
        help="Execute the schedule N times too, under random routings and interleavings.",
    ),
]
MachineTokens = Annotated[
    int,
    typer.Option(
        "--machine-tokens",
        parser=integer(0),
        metavar="INTEGER",
        help="Tokens of a rank in these runs, at the most.",
    ),
]
Seed = Annotated[int, typer.Option("--seed", parser=read_seed, metavar="INTEGER", help="Seed of these runs.")]


@guarded
def verify_command(
    file: File,
    dims: Dims = None,
    moe: Moe = None,
    target: AnyTarget = "sm_90",
    ranks: Ranks = None,
    dtype: DTypeOption = None,
    schedule: ScheduleOption = None,
    tokens: WhenTokens = None,
    machine: MachineRuns = 0,
    machine_tokens: MachineTokens = 8,
    seed: Seed = 0,
    as_json: AsJson = False,
) -> None:
    """Check a layer: that it is well-formed, and that its schedule can neither deadlock nor race."""
    from uniep_compiler import compiler
    from uniep_compiler.cli.request import make_request
    from uniep_compiler.ir.verify import verify

    request = make_request(
        file=file, moe=moe, dims=dims, target=target, ranks=ranks, dtype=dtype, schedule=schedule, tokens=tokens
    )
    for warning in request.warnings:
        warn(warning.render(request.program.source))
    order = compiler.final_schedule(compiler.states(request.ops, request.settings))
    with progress("proving"):
        found = verify(order)
    for diagnostic in found:
        warn(diagnostic.render(request.program.source))
    runs = _Runs(order=order, settings=request.settings, tokens=machine_tokens, seed=seed).run(machine)
    ok = not found and not runs.findings
    if as_json:
        proof = {"proven": not found, "diagnostics": diagnostics_json(found)}
        print_json(
            {"ok": ok, "layer": request.ops.name, "target": request.settings.target.name, **proof, **runs.as_json()}
        )
    else:
        print_text(request.title())
        if not found:
            print_text(f"proven: no deadlock and no race, whatever the routing ({_size(order)})")
        print_text(runs.text())
    if not ok:
        raise typer.Exit(WRONG_PROGRAM)


def _size(order: Schedule) -> str:
    graph = order.graph
    num_waits = sum(len(family.waits) for family in graph.families)
    return f"task families: {len(graph.families)}, signals: {len(graph.signals)}, waits: {num_waits}"


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineResult:
    """What runs of the machine found: one line per finding, each with the seed of its run."""

    num_runs: int
    num_steps: int
    findings: tuple[str, ...]

    def as_json(self) -> dict[str, object]:
        """Plain values."""
        return {"machine": {"runs": self.num_runs, "steps": self.num_steps, "findings": list(self.findings)}}

    def text(self) -> str:
        """Lines for people; none where nothing was run."""
        if not self.num_runs:
            return "machine: not run; --machine N executes the schedule N times"
        if not self.findings:
            return f"machine: nothing wrong in {self.num_runs} runs of {self.num_steps} steps altogether"
        return "\n".join(f"machine: {finding}" for finding in self.findings)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Runs:
    order: Schedule
    settings: Settings
    tokens: int
    seed: int

    def run(self, number: int) -> MachineResult:
        """Runs until something is found, `number` of them at most."""
        num_steps = 0
        for done in range(number):
            with progress(f"machine run {done + 1} of {number}"):
                findings, steps = self._run_once(self.seed + done)
            num_steps += steps
            if findings:
                return MachineResult(num_runs=done + 1, num_steps=num_steps, findings=findings)
        return MachineResult(num_runs=number, num_steps=num_steps, findings=())

    def _run_once(self, seed: int) -> tuple[tuple[str, ...], int]:
        from uniep_compiler.ir.routing import Routing
        from uniep_compiler.machine.run import run

        graph, settings = self.order.graph, self.settings
        source = random.Random(seed)
        routing = Routing(
            ids=_random_ids(source, self.tokens, graph.ranks, graph.experts, graph.topk),
            experts=graph.experts,
            topk=graph.topk,
            placement=settings.placement,
            tile_rows=graph.tile_rows,
            block=graph.block,
            send=settings.send,
            order=settings.order,
            tight=source.random() < 0.5,
        )
        merged = graph.ranks > 1 and source.random() < 0.5
        report = run(self.order, routing, workers=source.randint(2, 4), seed=seed, merged=merged)
        return tuple(f"seed {seed}: {finding}" for finding in report.findings), report.num_steps


def _random_ids(
    source: random.Random, tokens: int, ranks: int, experts: int, topk: int
) -> tuple[tuple[tuple[int, ...], ...], ...]:
    """Routes of every rank: some ranks have no tokens, some experts are popular, some ids are -1."""
    popular = source.sample(range(experts), k=source.randint(1, experts))

    def draw() -> int:
        return -1 if source.random() < 0.2 else source.choice(popular)

    counts = [source.choice((0, tokens // 2, tokens, tokens)) for _ in range(ranks)]
    return tuple(tuple(tuple(draw() for _ in range(topk)) for _ in range(count)) for count in counts)
