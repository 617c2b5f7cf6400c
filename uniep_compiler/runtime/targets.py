"""Which target a name stands for on this machine."""

from __future__ import annotations

import torch

from uniep_compiler.diagnostics import Diagnostic, UniepError
from uniep_compiler.passes.target import TARGETS, Target, find_target


def resolve_target(name: str) -> Target:
    """The target of that name, looking at this machine for "auto" and "cuda". UEP0604 if there is none."""
    if not isinstance(name, str):
        raise target_error(f"a target is named by a text, not by {name!r}")
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda":
        if not torch.cuda.is_available():
            raise target_error("target is `cuda`, but PyTorch sees no GPU here")
        major, minor = torch.cuda.get_device_capability()
        known = [t for t in TARGETS if not t.interpreted and t.capability <= 10 * major + minor]
        if not known:
            raise target_error(f"this GPU has compute capability {major}.{minor}; 8.0 is the least that is supported")
        return known[-1]
    found = find_target(name)
    if found is None:
        raise target_error(f"unknown target `{name}`")
    return found


def current_device(target: Target) -> torch.device:
    """Where a layer for that target runs now: the CPU, or the current CUDA device. UEP0604 if there is none."""
    if target.interpreted:
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise target_error(f"the layer was compiled for {target.name}, but PyTorch sees no GPU here")
    return torch.device("cuda", torch.cuda.current_device())


def target_error(message: str) -> UniepError:
    """The error for a target that is not there (UEP0604)."""
    names = ", ".join(f"`{target.name}`" for target in TARGETS)
    return UniepError([Diagnostic(code="UEP0604", message=message, help=f"targets are `auto`, `cuda`, {names}")])
