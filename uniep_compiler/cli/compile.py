"""`uniepc compile`: from a program to its modules, and what they hold."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

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
    read_path,
)
from uniep_compiler.cli.output import print_json, print_table, print_text, progress, warn
from uniep_compiler.diagnostics import reason

if TYPE_CHECKING:
    from uniep_compiler.compiler import Compiled

Folder = Annotated[
    Path | None,
    typer.Option("-o", "--output", parser=read_path, metavar="DIR", help="Write the modules into this folder."),
]
Aot = Annotated[bool, typer.Option("--aot", help="Build the kernels too, ahead of time, and show what they take.")]


@guarded
def compile_command(
    file: File,
    dims: Dims = None,
    moe: Moe = None,
    target: AnyTarget = "sm_90",
    ranks: Ranks = None,
    dtype: DTypeOption = None,
    schedule: ScheduleOption = None,
    tokens: WhenTokens = None,
    output: Folder = None,
    aot: Aot = False,
    as_json: AsJson = False,
) -> None:
    """Compile a layer: write its modules, and print what was built."""
    from uniep_compiler import compiler
    from uniep_compiler.cli.request import make_request
    from uniep_compiler.cli.summary import compiled_json, print_built, request_json

    request = make_request(
        file=file, moe=moe, dims=dims, target=target, ranks=ranks, dtype=dtype, schedule=schedule, tokens=tokens
    )
    for warning in request.warnings:
        warn(warning.render(request.program.source))
    if aot and request.settings.target.interpreted:
        raise UsageError("--aot: kernels for `cpu` are interpreted, so there is nothing to build", "say --target sm_90")
    compiled = compiler.build(request.ops, request.settings)
    files = {} if output is None else write_modules(compiled.sources, output)
    made: dict[str, Any] = {"ok": True, **request_json(request), **compiled_json(compiled), "files": files}
    if aot:
        made["kernels"] = _build_ahead(compiled)
    if as_json:
        print_json(made)
        return
    print_text(request.title())
    print_built(made)
    _print_kernels(made.get("kernels", []))
    print_text("\n".join(f"wrote {path}" for path in files.values()) or "nothing written: -o DIR writes the modules")


def write_modules(sources: Mapping[str, str], folder: Path) -> dict[str, str]:
    """Write `forward.py` and so on into a folder, which is made if need be. Gives the paths by module."""
    paths = {name: folder / f"{name}.py" for name in sources}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, path in paths.items():
            path.write_text(sources[name], encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot write to {folder}: {reason(error)}") from None
    return {name: str(path) for name, path in paths.items()}


def _build_ahead(compiled: Compiled) -> list[dict[str, object]]:
    with progress("building kernels"):
        from uniep_compiler.runtime.ahead import compile_ahead

        kernels = compile_ahead(compiled)
    return [
        {
            "module": kernel.module,
            "name": kernel.name,
            "num_warps": kernel.num_warps,
            "num_registers": kernel.num_registers,
            "spill_bytes": kernel.spill_bytes,
            "shared_bytes": kernel.shared_bytes,
            "seconds": round(kernel.seconds, 3),
        }
        for kernel in kernels
    ]


def _print_kernels(kernels: list[dict[str, Any]]) -> None:
    if kernels:
        print_table(
            "kernels, built ahead of time",
            ("module", "kernel", "warps", "registers", "spilled bytes", "shared bytes", "seconds"),
            (tuple(kernel.values()) for kernel in kernels),
        )
