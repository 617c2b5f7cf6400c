"""Forward passes of all systems on the same inputs, in turn, in one run: python -m benchmarks.forward --help.

With --training, forward and backward passes with all gradients.
"""

from __future__ import annotations

import argparse
import faulthandler
import os
import secrets
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from benchmarks import record
from benchmarks.jobs import Job, Variant, parse_variant
from benchmarks.peers import SETUPS, TUNES_ITSELF
from benchmarks.shapes import SHAPES, Shape
from benchmarks.summary import Measured, shape_record, text_table
from benchmarks.worker import Worker, WorkerError

PREPARE_SECONDS = 240
TURN_SECONDS = 60
GRACE_SECONDS = 20
"""What a turn that has begun may take past the deadline."""
BACKSTOP_SECONDS = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How much is measured. `deadline` is on the clock of `time.monotonic`."""

    rounds: int
    turn_ms: float
    warm_up_ms: float
    deadline: float

    def seconds(self, limit: float) -> float:
        """What a step that may take `limit` seconds has, now that it begins."""
        return max(0.0, min(limit, self.deadline + GRACE_SECONDS - time.monotonic()))

    @property
    def over(self) -> bool:
        """Whether the time is up."""
        return time.monotonic() >= self.deadline


@dataclass(slots=True, kw_only=True)
class Running:
    """A system that is being measured on one shape."""

    worker: Worker
    measured: Measured

    def fail(self, error: WorkerError) -> None:
        """It takes no more turns; what it said is kept."""
        self.measured.failure = str(error)
        say(self.worker.job, f"FAILED: {str(error).splitlines()[0] if str(error) else ''}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print the tables, write the result. 1 if this package's own layer failed or computed something else."""
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    options = parse_arguments(arguments)
    faulthandler.dump_traceback_later(options.limit + BACKSTOP_SECONDS, exit=True)
    settings = Settings(
        rounds=options.rounds,
        turn_ms=options.turn_ms,
        warm_up_ms=options.warm_up_ms,
        deadline=time.monotonic() + options.limit,
    )
    result = record.about("forward", arguments, options.commit)
    if options.training:
        result["kind"] = "training"
    result |= {"seed": options.seed, "smoke": options.smoke, "flush_l2": options.flush_l2, "device": {}, "shapes": []}
    shapes: list[dict[str, object]] = result["shapes"]  # type: ignore[assignment]
    own: list[Measured] = []
    for name in options.shapes:
        if settings.over:
            print(f"[{name}] not measured: the time is up", file=sys.stderr, flush=True)
            continue
        shape = SHAPES[name].smoke() if options.smoke else SHAPES[name]
        measured, device = measure_shape(jobs_of(options, shape), settings)
        result["device"] = device or result["device"]
        shapes.append(shape_record(shape, measured))
        own += [system for system in measured if system.variant.system == "uniep"]
        print(text_table(shapes[-1]), file=sys.stderr, flush=True)
        if options.out:
            record.write(result, options.out)
    print_result(result)
    faulthandler.cancel_dump_traceback_later()
    return 1 if len(shapes) < len(options.shapes) or any(system.status != "ok" for system in own) else 0


def parse_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.forward", description="Times forward passes of all systems in turn, in one run."
    )
    parser.add_argument("--shapes", nargs="+", choices=list(SHAPES), default=list(SHAPES), metavar="SHAPE")
    parser.add_argument("--systems", nargs="+", choices=list(SETUPS), default=list(SETUPS), metavar="SYSTEM")
    parser.add_argument(
        "--variants",
        nargs="+",
        type=parse_variant,
        default=[],
        metavar="KEY=VALUE,...",
        help="more schedules of uniep, such as relay=copy,group=4 or 'tile(h)=128x128x64'",
    )
    parser.add_argument("--rounds", type=int, default=7, help="turns that each system gets")
    parser.add_argument("--turn-ms", type=float, default=200.0, help="how long the timed calls of a turn take, about")
    parser.add_argument("--warm-up-ms", type=float, default=50.0, help="how long a turn's calls before those take")
    parser.add_argument("--training", action="store_true", help="forward and backward passes, with all gradients")
    parser.add_argument("--flush-l2", action="store_true", help="empty the L2 before each call")
    parser.add_argument("--check-rows", type=int, default=4096, help="rows to compare with float64; 0: all")
    parser.add_argument("--seed", type=int, default=secrets.randbelow(2**31), help="default: another in each run")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--smoke", action="store_true", help="tiny sizes: tests the benchmark, measures nothing")
    parser.add_argument("--out", type=Path, help="folder to write forward-GPU.json (or training-GPU.json) into")
    parser.add_argument("--commit", help="the commit to record, where there is no repository")
    parser.add_argument(
        "--limit", type=float, default=540.0, help="seconds for everything; what is not done then is left out"
    )
    return parser.parse_args(arguments)


def jobs_of(options: argparse.Namespace, shape: Shape) -> list[Job]:
    """One job per system, in the order of the command line, and one per variant."""
    plain = [Variant(name=system, system=system) for system in options.systems]
    return [
        Job(
            variant=variant,
            shape=shape,
            seed=options.seed + list(SHAPES).index(shape.name),
            device=options.device,
            check_rows=options.check_rows,
            flush_l2=options.flush_l2,
            training=options.training,
        )
        for variant in [*plain, *options.variants]
    ]


def measure_shape(jobs: Sequence[Job], settings: Settings) -> tuple[list[Measured], dict[str, object]]:
    """Everything about one shape, and the device that it was measured on."""
    running = [Running(worker=Worker(job), measured=Measured(job.variant)) for job in jobs]
    try:
        device = prepare(running, settings)
        for number in range(settings.rounds):
            take_turns(running, number, settings)
    finally:
        for item in running:
            item.worker.end()
    keep_whole_rounds([item.measured for item in running])
    return [item.measured for item in running], device


def prepare(running: Sequence[Running], settings: Settings) -> dict[str, object]:
    """Set up all systems at once, since they compile on the CPU; then, one by one, those that need the device alone."""
    device: dict[str, object] = {}
    together = [item for item in running if item.worker.job.variant.system not in TUNES_ITSELF]
    alone = [[item] for item in running if item.worker.job.variant.system in TUNES_ITSELF]
    for batch in [together, *alone]:
        limit = time.monotonic() + settings.seconds(PREPARE_SECONDS)
        asked = [item for item in batch if _ask(item, "prepare")]
        for item in asked:
            try:
                item.measured.prepared = item.worker.receive(limit - time.monotonic())
                device = device or item.worker.request(TURN_SECONDS, "about_device")
                _note_check(item.measured, item.measured.prepared)
                say(item.worker.job, _prepared_text(item.measured.prepared))
            except WorkerError as error:
                item.fail(error)
    _compare_inputs(running)
    return device


def take_turns(running: Sequence[Running], number: int, settings: Settings) -> None:
    """One round: each system that still runs, in turn; every other round backwards, so that neighbours change roles."""
    order = [item for item in running if not item.measured.failure]
    for item in order if number % 2 == 0 else reversed(order):
        if settings.over:
            return
        try:
            answer = item.worker.request(settings.seconds(TURN_SECONDS), "turn", settings.warm_up_ms, settings.turn_ms)
        except WorkerError as error:
            item.fail(error)
            continue
        item.measured.rounds_ms.append(median(answer["times_ms"]))  # type: ignore[arg-type]
        _note_check(item.measured, answer)


def keep_whole_rounds(systems: Sequence[Measured]) -> None:
    """Of a last round that the time did not suffice for, nothing counts."""
    running = [measured for measured in systems if not measured.failure]
    whole = min((len(measured.rounds_ms) for measured in running), default=0)
    for measured in running:
        del measured.rounds_ms[whole:]
        if not whole:
            measured.failure = "not timed: the time was up"


def print_result(result: dict[str, object]) -> None:
    """All tables at the end, where they are found."""
    device: dict[str, object] = result["device"]  # type: ignore[assignment]
    shapes: list[dict[str, object]] = result["shapes"]  # type: ignore[assignment]
    parts = [str(device.get("gpu", "CPU")), *(f"{name} {text}" for name, text in dict(result["versions"]).items())]  # type: ignore[call-overload]
    print(f"\n{', '.join(parts)}; seed {result['seed']}, commit {result['commit']}")
    if result["smoke"]:
        print("SMOKE RUN: tiny sizes, the times mean nothing")
    for shape in shapes:
        print(f"\n{text_table(shape)}")
    sys.stdout.flush()


def say(job: Job, text: str) -> None:
    print(f"[{job.shape.name}] {job.variant.name}: {text}", file=sys.stderr, flush=True)


def _ask(item: Running, request: str) -> bool:
    try:
        item.worker.send(request)
    except WorkerError as error:
        item.fail(error)
    return not item.measured.failure


def _note_check(measured: Measured, answer: dict[str, object]) -> None:
    """Moves what a check found out of an answer: the worst of all checks is reported."""
    measured.errors.append(float(answer.pop("relative_error")))  # type: ignore[arg-type]
    measured.same_bits &= bool(answer.pop("same_bits"))


def _prepared_text(prepared: dict[str, object]) -> str:
    return f"set up in {prepared['setup_s']:.1f} s, first call {prepared['first_call_s']:.1f} s"


def _compare_inputs(running: Sequence[Running]) -> None:
    """Every process has drawn the same inputs, or nothing of this can be compared."""
    prints = {item.measured.prepared.pop("fingerprint") for item in running if item.measured.prepared}
    if len(prints) > 1:
        raise RuntimeError(f"the processes drew different inputs from one seed: {sorted(map(str, prints))}")


if __name__ == "__main__":
    with suppress(BrokenPipeError):
        status = main()
        sys.stdout.flush()
        os._exit(status)  # a process that the kernel can't end must not keep this one
