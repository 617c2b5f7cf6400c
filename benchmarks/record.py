"""What a result file says besides the numbers: on what, with what, by which command, of which commit."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from benchmarks.peers import PACKAGES
from uniep_compiler import __version__

FORMAT = 1
SMI_FIELDS = ("driver_version", "power.limit", "clocks.max.sm")
SECONDS = 20


def about(module: str, arguments: Sequence[str], commit: str | None) -> dict[str, object]:
    """The part of a record that is known before anything was measured."""
    return {
        "format": FORMAT,
        "kind": module,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": command_line(module, arguments),
        "commit": commit or current_commit(),
        "versions": {"uniep_compiler": __version__, **versions()},
        "nvidia_smi": nvidia_smi(),
    }


def command_line(module: str, arguments: Sequence[str]) -> str:
    """The command that repeats a run: as it was given, less `--out` and `--commit`, which change no number."""
    kept: list[str] = []
    rest = iter(arguments)
    for argument in rest:
        name, _, value = argument.partition("=")
        if name not in ("--out", "--commit"):
            kept.append(argument)
        elif not value:
            next(rest, None)
    return shlex.join(["python", "-m", f"benchmarks.{module}", *kept])


def versions() -> dict[str, str]:
    """The versions of the packages that take part, where they are installed."""
    found = {}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def current_commit() -> str | None:
    """The checked-out commit, marked where the working tree differs; None outside a repository."""
    head = _output("git", "rev-parse", "HEAD")
    if head is None:
        return None
    return head + ("+changes" if _output("git", "status", "--porcelain", "--untracked-files=no") else "")


def nvidia_smi() -> dict[str, str]:
    """The driver, and the limits that the card runs under, of the first GPU."""
    out = _output("nvidia-smi", "--id=0", f"--query-gpu={','.join(SMI_FIELDS)}", "--format=csv,noheader")
    if out is None:
        return {}
    return dict(zip(SMI_FIELDS, (cell.strip() for cell in out.splitlines()[0].split(",")), strict=False))


def write(record: Mapping[str, object], folder: Path) -> Path:
    """Write `KIND-GPU.json` into the folder; a file of that name is replaced."""
    device: Mapping[str, object] = record.get("device") or {}  # type: ignore[assignment]
    path = folder / f"{record['kind']}-{slug(str(device.get('gpu', 'cpu')))}.json"
    folder.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(record, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    return path


def slug(name: str) -> str:
    """A name as part of a file name."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def _output(*command: str) -> str | None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
