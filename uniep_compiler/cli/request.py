"""From a command line to something that the compiler can build: a checked program, bound dims, settings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path

from uniep_compiler import compiler
from uniep_compiler.cli.failures import UsageError, WrongOptionsError
from uniep_compiler.cli.options import RowDType, read_dims, read_schedule
from uniep_compiler.diagnostics import Diagnostic, Severity, UniepError
from uniep_compiler.frontend.bind import bind_dims, dims_to_bind
from uniep_compiler.frontend.lower import diagnose, lower
from uniep_compiler.frontend.parse import Program, parse_file
from uniep_compiler.frontend.read import UnreadableError
from uniep_compiler.ir.ops import OpGraph
from uniep_compiler.ir.routing import balanced_placement
from uniep_compiler.ir.types import DType, RoutesType
from uniep_compiler.passes.check_options import check_options
from uniep_compiler.passes.differentiate import differentiable_params, differentiate
from uniep_compiler.passes.settings import Settings, backward_settings
from uniep_compiler.passes.target import TARGETS, Target, find_target


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One layer to build. `dtype` is the element type of its rows, `warnings` what is odd about the program."""

    program: Program
    ops: OpGraph
    settings: Settings
    warnings: tuple[Diagnostic, ...]
    direction: compiler.Direction = compiler.Direction.FORWARD

    @property
    def dtype(self) -> DType:
        """Element type of the layer's rows."""
        return compiler.row_dtype(self.ops)

    def title(self) -> str:
        """The layer, its target and its group, for people."""
        settings = self.settings
        group = "" if settings.local else f", {settings.ranks} virtual rank{'s' * (settings.ranks > 1)}"
        dims = ", ".join(f"{name} = {value}" for name, value in settings.dims.items())
        return f"{self.ops.name} for {settings.target.name}{group}: {self.dtype}, {dims}"


def make_request(
    *,
    file: Path,
    moe: str | None,
    dims: Sequence[str] | None,
    target: str,
    ranks: int | None,
    dtype: RowDType | None,
    schedule: Sequence[str] | None,
    tokens: int | None = None,
) -> Request:
    """What the shared options ask for. UsageError/WrongOptionsError if they are wrong, UniepError if the program is."""
    numbers, overrides = read_dims(dims or ()), read_schedule(schedule or ())
    program = read_program(file, moe)
    found = find_named_target(target)
    ops = lower(program)
    bound = bind(ops, numbers, program)
    written = program
    if dtype is not None:
        with blaming_options_without_place():
            program, ops = compiler.in_dtype(program, ops, DType(dtype))
    with blaming_options_without_place():
        settings = compiler.make_settings(
            program,
            dims=bound,
            target=found,
            placement=balanced_placement(num_experts(ops, bound), ranks or 1),
            local=ranks is None,
            overrides=overrides,
            tokens={} if tokens is None else {compiler.token_dim(ops): tokens},
        )
        check_options(ops, settings)
    odd = tuple(d for d in diagnose(program) if d.severity is Severity.WARNING)
    left_out = compiler.tiles_left_out(written, program, found, settings.dims)
    return Request(program=program, ops=ops, settings=settings, warnings=(*odd, *left_out))


def backward_of(request: Request) -> Request:
    """The backward pass of a layer, for the gradients of all parameters. UsageError if it has none."""
    if not request.settings.local:
        raise UsageError("--pass backward: layers of a group have no backward pass yet", "leave --ranks out")
    derivative = differentiate(request.ops, differentiable_params(request.ops))
    if not derivative.wrt:
        raise UsageError(f"--pass backward: no result of `{request.ops.name}` has a gradient", "say --pass forward")
    return replace(
        request,
        ops=derivative.backward,
        settings=backward_settings(request.settings),
        direction=compiler.Direction.BACKWARD,
    )


@contextmanager
def blaming_the_options() -> Iterator[None]:
    """Errors in here are about what the command line said, not about the program."""
    try:
        yield
    except UniepError as error:
        raise WrongOptionsError(error.diagnostics, error.source) from None


@contextmanager
def blaming_options_without_place() -> Iterator[None]:
    """Errors in here are about a schedule key: one that stands in the program if they point there, else an option."""
    try:
        yield
    except UniepError as error:
        if any(diagnostic.labels for diagnostic in error.diagnostics):
            raise
        raise WrongOptionsError(error.diagnostics, error.source) from None


def read_program(file: Path, moe: str | None) -> Program:
    """The file's only layer, or the one called `moe`."""
    try:
        program = parse_file(file)
    except UnreadableError as error:
        (found,) = error.diagnostics
        raise UsageError(found.message, found.help) from None
    if moe is not None:
        with blaming_the_options():
            return program[moe]
    if len(program.moes) > 1:
        names = ", ".join(f"`{name}`" for name in program.moes)
        raise UsageError(
            f"{file} has {len(program.moes)} layers: {names}", f"choose one: --moe {next(iter(program.moes))}"
        )
    return program


def find_named_target(name: str) -> Target:
    """The target of that name. `auto` and `cuda` look at this machine, for which they need torch."""
    if name in ("auto", "cuda"):
        from uniep_compiler.runtime.targets import resolve_target

        with blaming_the_options():
            return resolve_target(name)
    found = find_target(name)
    if found is None:
        names = [*(target.name for target in TARGETS), "cuda", "auto"]
        near = get_close_matches(name, names, n=1)
        raise UsageError(
            f"--target: unknown target `{name}`",
            f"did you mean `{near[0]}`?" if near else f"targets are {', '.join(names)}",
        )
    return found


def bind(ops: OpGraph, dims: Mapping[str, int], program: Program) -> dict[str, int]:
    """`bind_dims`, with help that speaks of the command line where a number is missing."""
    try:
        return bind_dims(ops, dims, program)
    except UniepError as error:
        wanted = ",".join(f"{name}={dims.get(name, '...')}" for name in dims_to_bind(ops))
        diagnostics = [
            replace(d, help=f"write --dims {wanted}") if d.help.startswith("pass dims=") else d
            for d in error.diagnostics
        ]
        raise WrongOptionsError(diagnostics, error.source) from None


def num_experts(ops: OpGraph, dims: Mapping[str, int]) -> int:
    """Experts of the whole group."""
    routes = next(kind for kind in ops.types.values() if isinstance(kind, RoutesType))
    return routes.experts.value(dims)
