"""`uniepc run`: the layer on random or given inputs, against the reference."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from difflib import get_close_matches
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from uniep_compiler.cli.failures import WRONG_PROGRAM, UsageError, WrongOptionsError, guarded
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
    read_path,
    read_schedule,
    read_seed,
)
from uniep_compiler.cli.output import print_json, print_table, print_text, progress, warn
from uniep_compiler.diagnostics import UniepError, reason

if TYPE_CHECKING:
    from torch import Tensor

    from uniep_compiler.cli.request import Request
    from uniep_compiler.runtime.layer import Layer
    from uniep_compiler.runtime.routes import Routes
    from uniep_compiler.runtime.trial import ResultCheck, Trial

Tokens = Annotated[
    int | None,
    typer.Option(
        "--tokens",
        parser=integer(0, 2**31 - 1),
        metavar="INTEGER",
        help="Tokens of all ranks together; 64, or as many as --inputs has.",
    ),
]
Seed = Annotated[int, typer.Option("--seed", parser=read_seed, metavar="INTEGER", help="Seed of the random inputs.")]
Inputs = Annotated[
    Path | None,
    typer.Option(
        "--inputs",
        parser=read_path,
        metavar="FILE",
        help="A safetensors file; its tensors stand for the parameters they name.",
    ),
]
Timeout = Annotated[float, typer.Option("--timeout", min=0.001, help="Seconds that a task may wait for another.")]

DEFAULT_TOKENS = 64


@guarded
def run_command(
    file: File,
    dims: Dims = None,
    tokens: Tokens = None,
    seed: Seed = 0,
    inputs: Inputs = None,
    moe: Moe = None,
    target: AnyTarget = "auto",
    ranks: Ranks = None,
    dtype: DTypeOption = None,
    schedule: ScheduleOption = None,
    timeout: Timeout = 10.0,
    as_json: AsJson = False,
) -> None:
    """Run a layer twice, and compare it with the float64 reference and with itself."""
    from uniep_compiler.cli.request import make_request

    request = make_request(file=file, moe=moe, dims=dims, target=target, ranks=ranks, dtype=dtype, schedule=schedule)
    for warning in request.warnings:
        warn(warning.render(request.program.source))
    with progress("loading torch and triton"):
        from uniep_compiler.runtime.trial import try_layer
    layer = _make_layer(request, dtype, read_schedule(schedule or ()), timeout)
    with _blaming_the_inputs():
        arguments, num_tokens = _arguments(layer, inputs, tokens, seed)
        with progress(f"running {request.ops.name} on {num_tokens} tokens"):
            trial = try_layer(layer, arguments)
    _report(request, trial, num_tokens=num_tokens, device=str(layer.device), as_json=as_json)
    if not trial.ok:
        raise typer.Exit(WRONG_PROGRAM)


@contextmanager
def _blaming_the_inputs() -> Iterator[None]:
    """Arguments that do not fit, and ids out of range, are those of the command line. Hangs are not."""
    try:
        yield
    except UniepError as error:
        if {"UEP0601", "UEP0603"}.issuperset(error.codes):
            raise WrongOptionsError(error.diagnostics, error.source) from None
        raise


def _make_layer(request: Request, dtype: str | None, overrides: Mapping[str, object], timeout: float) -> Layer:
    from uniep_compiler.cli.request import blaming_the_options
    from uniep_compiler.runtime.layer import compile as compile_layer
    from uniep_compiler.transports.virtual import virtual_group

    settings = request.settings
    with blaming_the_options():
        layer = compile_layer(
            request.program,
            dims=settings.dims,
            target=settings.target.name,
            group=None if settings.local else virtual_group(settings.ranks),
            dtype=dtype,
            schedule=overrides,
            timeout=timeout,
            debug=True,
        )
        _ = layer.device  # is there one?
    return layer


# -- inputs -----------------------------------------------------------------------------------------------------------


def _arguments(
    layer: Layer, inputs: Path | None, tokens: int | None, seed: int
) -> tuple[dict[str, Tensor | Routes], int]:
    """The layer's arguments by parameter, and how many tokens they have."""
    from uniep_compiler.runtime.trial import num_tokens, random_arguments

    given: dict[str, Tensor | Routes] = {} if inputs is None else _read_inputs(layer, inputs)
    found = num_tokens(layer, given)
    if None not in (tokens, found) and tokens != found:
        raise UsageError(f"--tokens is {tokens}, but {inputs} holds {found} tokens", "leave --tokens out")
    count = next((number for number in (tokens, found) if number is not None), DEFAULT_TOKENS)
    if len(given) == len(layer.ops.params):
        return given, count
    return {**random_arguments(layer, count, seed), **given}, count


def _read_inputs(layer: Layer, path: Path) -> dict[str, Tensor | Routes]:
    try:
        from safetensors import SafetensorError
        from safetensors.torch import load_file
    except ImportError:
        raise UsageError("--inputs needs the package safetensors", "pip install safetensors") from None
    try:
        tensors = load_file(path)
    except OSError as error:
        raise UsageError(f"cannot read {path}: {reason(error)}") from None
    except SafetensorError as error:
        raise UsageError(f"cannot read {path}: {error}") from None
    names = [param.name for param in layer.ops.params]
    for name in tensors:
        if name not in names:
            near = get_close_matches(name, names, n=1)
            help_ = f"did you mean `{near[0]}`?" if near else f"its parameters are {', '.join(names)}"
            raise UsageError(f"{path} holds `{name}`, but `{layer.ops.name}` has no such parameter", help_)
    return {name: tensor.to(layer.device) for name, tensor in tensors.items()}


# -- what came of it --------------------------------------------------------------------------------------------------


def _report(request: Request, trial: Trial, *, num_tokens: int, device: str, as_json: bool) -> None:
    from uniep_compiler.cli.summary import request_json

    results = [_result_json(name, check) for name, check in zip(_result_names(request), trial.results, strict=False)]
    if as_json:
        seconds = {"first": trial.first_seconds, "second": trial.second_seconds}
        facts = {"tokens": num_tokens, "device": device, "seconds": seconds, "results": results}
        print_json({"ok": trial.ok, **request_json(request), **facts})
        return
    print_text(f"{request.title()}; {num_tokens} tokens on {device}\n")
    print_table(
        "against the reference in float64",
        ("result", "shape", "dtype", "relative error", "at most", "second run", "sha256"),
        map(_result_row, results),
    )
    print_text(
        f"first run {trial.first_seconds:.2f} s (with building the kernels), second {trial.second_seconds:.2f} s"
    )
    print_text("right" if trial.ok else "WRONG: see the table")


def _result_names(request: Request) -> list[str]:
    """The results that are compared: those that are tensors. What the program leaves without a name is `out`."""
    from uniep_compiler.ir.types import RoutesType
    from uniep_compiler.passes.names import buffer_names

    names = buffer_names(request.ops)
    tensors = (name for name in request.ops.results if not isinstance(request.ops.types[name], RoutesType))
    return [names[name] if name.startswith("_") else name for name in tensors]


def _result_json(name: str, check: ResultCheck) -> dict[str, Any]:
    error = check.relative_error if isfinite(check.relative_error) else None  # JSON has no NaN
    return {"name": name, "ok": check.ok, **asdict(check), "relative_error": error}


def _result_row(result: dict[str, Any]) -> tuple[object, ...]:
    return (
        result["name"],
        ", ".join(map(str, result["shape"])),
        result["dtype"],
        "not a number" if result["relative_error"] is None else f"{result['relative_error']:.2e}",
        f"{result['tolerance']:.0e}",
        "same bits" if result["same_bits"] else "OTHER BITS",
        result["sha256"][:16],
    )
