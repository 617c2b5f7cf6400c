"""`uniepc show`: every level of the IR, and every state between two passes, as text."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches
from enum import StrEnum
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
    WhenTokens,
)
from uniep_compiler.cli.output import print_json, print_text, progress, warn

if TYPE_CHECKING:
    from uniep_compiler.cli.request import Request


class Stage(StrEnum):
    """What can be shown, from the program to the machine."""

    OPS = "ops"
    TASKS = "tasks"
    SCHEDULE = "schedule"
    SOURCE = "source"
    TTGIR = "ttgir"
    PTX = "ptx"


class Module(StrEnum):
    """The modules that a compilation makes."""

    FORWARD = "forward"
    BACKWARD = "backward"
    PLAN = "plan"


class Pass(StrEnum):
    """The passes of a layer."""

    FORWARD = "forward"
    BACKWARD = "backward"


StageOption = Annotated[
    str | None, typer.Option("--stage", metavar="|".join(Stage), help="Which level to show.", show_default=False)
]
After = Annotated[str | None, typer.Option("--after", metavar="PASS", help="Show the IR as this pass left it.")]
Full = Annotated[
    bool, typer.Option("--full", help="With --stage schedule, the task graph too: the text that reads back.")
]
ModuleOption = Annotated[
    str | None,
    typer.Option(
        "--module",
        metavar="|".join(Module),
        help="Of which module to show source, ttgir or ptx: the pass's own, unless said.",
    ),
]
PassOption = Annotated[str, typer.Option("--pass", metavar="|".join(Pass), help="Which pass of the layer to show.")]


_ONLY_ORDER = "# the order of tasks; --stage tasks shows the families, and --full all of it, as a text that reads back"


@guarded
def show_command(
    file: File,
    dims: Dims = None,
    stage: StageOption = None,
    after: After = None,
    module: ModuleOption = None,
    which: PassOption = Pass.FORWARD.value,
    full: Full = False,
    moe: Moe = None,
    target: AnyTarget = "sm_90",
    ranks: Ranks = None,
    dtype: DTypeOption = None,
    schedule: ScheduleOption = None,
    tokens: WhenTokens = None,
    as_json: AsJson = False,
) -> None:
    """Print a layer at one stage of its compilation, or as a pass left it."""
    from uniep_compiler.cli.request import backward_of, make_request

    _check_choice(stage, after)
    level = Stage.OPS if stage is None else Stage(_known("--stage", "stage", stage, tuple(Stage)))
    part = Pass(_known("--pass", "pass of a layer", which, tuple(Pass)))
    of = Module(part if module is None else _known("--module", "module", module, tuple(Module)))
    request = make_request(
        file=file, moe=moe, dims=dims, target=target, ranks=ranks, dtype=dtype, schedule=schedule, tokens=tokens
    )
    for warning in request.warnings:
        warn(warning.render(request.program.source))
    if part is Pass.BACKWARD:
        request = backward_of(request)
    text = _text_after(request, after) if after is not None else _text_at(request, level, of, full)
    if as_json:
        print_json({"ok": True, "layer": request.ops.name, "stage": stage, "after": after, "text": text})
    else:
        print_text(text)


def _check_choice(stage: str | None, after: str | None) -> None:
    from uniep_compiler.passes.pipeline import PASS_NAMES

    if (stage is None) == (after is None):
        raise UsageError(
            "say either --stage or --after", f"stages are {', '.join(Stage)}; passes {', '.join(PASS_NAMES)}"
        )
    if after is not None:
        _known("--after", "pass", after, PASS_NAMES)


def _known(option: str, what: str, name: str, names: Sequence[str]) -> str:
    """The name itself, if it is one of `names`."""
    if name not in names:
        near = get_close_matches(name, names, n=1, cutoff=0.4)
        plural = "passes of a layer" if what == "pass of a layer" else f"{what}es" if what.endswith("s") else f"{what}s"
        help_ = f"did you mean `{near[0]}`?" if near else f"{plural} are {', '.join(names)}"
        raise UsageError(f"{option}: unknown {what} `{name}`", help_)
    return name


def _text_after(request: Request, name: str) -> str:
    from uniep_compiler.passes.pipeline import run_passes

    states = run_passes(request.ops, request.settings)
    return str(next(state.ir for state in states if state.after == name))


def _text_at(request: Request, stage: Stage, module: Module, full: bool) -> str:
    from uniep_compiler import compiler
    from uniep_compiler.ir.ops_text import print_ops
    from uniep_compiler.ir.schedule_text import print_order
    from uniep_compiler.passes.pipeline import TASK_PASSES

    match stage:
        case Stage.OPS:
            return print_ops(request.ops)
        case Stage.TASKS:
            return _text_after(request, TASK_PASSES[-1].__name__)
        case Stage.SCHEDULE:
            schedule = compiler.final_schedule(compiler.states(request.ops, request.settings))
            return str(schedule) if full else f"{_ONLY_ORDER}\n\n{print_order(schedule)}"
        case Stage.SOURCE:
            return _source(request, module)
        case Stage.TTGIR | Stage.PTX:
            return _assembly(request, stage, module)


def _source(request: Request, module: Module) -> str:
    from uniep_compiler import compiler

    sources = compiler.build(request.ops, request.settings, direction=request.direction).sources
    if module not in sources:
        raise UsageError(f"`{request.ops.name}` has no module `{module}`", f"it has {', '.join(sources)}")
    return sources[module]


def _assembly(request: Request, stage: Stage, module: Module) -> str:
    from uniep_compiler import compiler

    if request.settings.target.interpreted:
        raise UsageError(f"--stage {stage}: kernels for `cpu` are interpreted, so there is none", "say --target sm_90")
    compiled = compiler.build(request.ops, request.settings, direction=request.direction)
    with progress("building kernels"):
        from uniep_compiler.runtime.ahead import compile_ahead

        kernels = compile_ahead(compiled, modules=(str(module),))
    return "\n".join(f"// kernel {kernel.name}\n{getattr(kernel, stage)}" for kernel in kernels)
