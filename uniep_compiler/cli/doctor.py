"""`uniepc doctor`: what this machine can do, and why not."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from importlib import metadata
from shutil import which

import typer

from uniep_compiler.cli.failures import WRONG_PROGRAM, guarded
from uniep_compiler.cli.options import AsJson
from uniep_compiler.cli.output import print_json, print_table, print_text, progress
from uniep_compiler.version import VERSION

PROGRAM = """
uniep 1

moe doctor(
    x : f32[T, H], experts : i32[T, K], weights : f32[T, K], w13 : f32[E, 2*I, H], w2 : f32[E, H, I]
) -> f32[T, H] {
    h = group_gemm(dispatch(x, experts), w13)
    a = swiglu(h)
    y = group_gemm(a, w2)
    return combine(y, weights)
}
"""
DIMS = {"H": 32, "I": 16, "E": 4, "K": 2}
NUM_TOKENS = 8

PACKAGES = ("torch", "triton", "numpy", "lark", "jinja2", "networkx", "typer", "rich", "transformers", "safetensors")
NEEDED = ("torch", "triton", "numpy", "lark", "jinja2", "networkx", "typer", "rich")


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Whether one thing works here: what was seen, or why it does not work and how to get it (`help`)."""

    kind: str
    name: str
    works: bool
    detail: str
    help: str = ""


class UnavailableError(Exception):
    """Something that does not work here: why, and how to get it."""

    def __init__(self, why: str, help: str) -> None:
        super().__init__(why)
        self.help = help


@guarded
def doctor_command(as_json: AsJson = False) -> None:
    """Find out what works on this machine: every target and transport, by running a small layer on it."""
    with progress("looking around"):
        findings = [*_versions(), *_checks()]
    ok = all(finding.works for finding in findings if finding.kind == "version" or finding.name in ("cpu", "local"))
    if as_json:
        print_json({"ok": ok, "findings": [asdict(finding) for finding in findings]})
    else:
        print_table(
            "what works here",
            ("", "what", "works", "seen"),
            ((f.kind, f.name, "yes" if f.works else "no", f.detail) for f in findings),
        )
        for finding in findings:
            if finding.help:
                print_text(f"{finding.name}: {finding.help}")
    if not ok:
        raise typer.Exit(WRONG_PROGRAM)


# -- versions ---------------------------------------------------------------------------------------------------------


def _versions() -> Iterator[Finding]:
    python = ".".join(map(str, sys.version_info[:3]))
    yield Finding(kind="version", name="uniep_compiler", works=True, detail=f"{VERSION}, on Python {python}")
    for name in PACKAGES:
        try:
            yield _version_finding(name, metadata.version(name))
        except metadata.PackageNotFoundError:
            if name in NEEDED:
                yield Finding(
                    kind="version", name=name, works=False, detail="not installed", help=f"pip install {name}"
                )
            else:
                yield Finding(kind="version", name=name, works=True, detail="not installed (optional)")


def _version_finding(name: str, version: str) -> Finding:
    parts = tuple(int(part) for part in version.split("+")[0].split(".")[:2] if part.isdigit())
    if name == "numpy" and parts >= (2, 4):
        help_ = "pip install 'numpy<2.4': from 2.4 on, Triton's interpreter fails in `range(tl.cdiv(..))`"
        return Finding(kind="version", name=name, works=False, detail=version, help=help_)
    return Finding(kind="version", name=name, works=True, detail=version)


# -- targets and transports -------------------------------------------------------------------------------------------


def _checks() -> Iterator[Finding]:
    checks: tuple[tuple[str, str, Callable[[], str]], ...] = (
        ("target", "cpu", lambda: _run_layer("cpu", None)),
        ("target", "cuda", _check_cuda),
        ("ahead of time", "sm_90", _build_ahead),
        ("transport", "local", lambda: _run_layer("cpu", None)),
        ("transport", "virtual", lambda: _run_layer("cpu", 2)),
    )
    return (_finding(kind, name, check) for kind, name, check in checks)


def _finding(kind: str, name: str, check: Callable[[], str]) -> Finding:
    """Whatever goes wrong in a check is what it found."""
    try:
        return Finding(kind=kind, name=name, works=True, detail=check())
    except UnavailableError as error:
        return Finding(kind=kind, name=name, works=False, detail=str(error), help=error.help)
    except Exception as error:
        why = f"{type(error).__name__}: {error}".partition("\n")[0]
        return Finding(kind=kind, name=name, works=False, detail=why, help="this should work; please report it")


def _run_layer(target: str, ranks: int | None) -> str:
    """Run a small layer, and say how far it is from the reference."""
    from uniep_compiler.frontend.parse import parse
    from uniep_compiler.runtime.layer import compile as compile_layer
    from uniep_compiler.runtime.trial import random_arguments, try_layer
    from uniep_compiler.transports.virtual import virtual_group

    group = None if ranks is None else virtual_group(ranks)
    layer = compile_layer(parse(PROGRAM, name="doctor"), dims=DIMS, target=target, group=group, debug=True)
    trial = try_layer(layer, random_arguments(layer, NUM_TOKENS, seed=0))
    error = max(result.relative_error for result in trial.results)
    if not trial.ok:
        raise UnavailableError(f"a small layer is wrong: relative error {error:.1e}", "please report it")
    where = "" if ranks is None else f" on {ranks} ranks"
    return f"ran a small layer{where} in {trial.second_seconds:.2f} s, relative error {error:.1e}"


def _check_cuda() -> str:
    import torch

    if torch.version.cuda is None:
        raise UnavailableError(
            "this is a CPU build of torch", "install a CUDA build of torch, with the triton that goes with it"
        )
    if not torch.cuda.is_available():
        raise UnavailableError(
            "torch sees no GPU", "check `nvidia-smi`: is there a GPU, and a driver new enough for torch?"
        )
    if not any(map(which, ("cc", "gcc", "clang"))):
        raise UnavailableError(
            "no C compiler, with which Triton builds its launchers", "install gcc or clang, or set CC"
        )
    name = torch.cuda.get_device_name()
    return f"{name}: {_run_layer('cuda', None)}"


def _build_ahead() -> str:
    from uniep_compiler import compiler
    from uniep_compiler.frontend.lower import lower
    from uniep_compiler.frontend.parse import parse
    from uniep_compiler.passes.target import find_target
    from uniep_compiler.runtime.ahead import compile_ahead

    program, target = parse(PROGRAM, name="doctor"), find_target("sm_90")
    assert target is not None
    settings = compiler.make_settings(program, dims=DIMS, target=target, placement=(DIMS["E"],), local=True)
    kernels = compile_ahead(compiler.build(lower(program), settings), modules=("forward",))
    return f"built {kernels[0].name} in {kernels[0].seconds:.1f} s: {kernels[0].num_registers} registers"
