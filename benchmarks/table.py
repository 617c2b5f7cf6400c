"""Writes the newest result into the README: python -m benchmarks.table, and --check to see that they agree."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
KINDS = {
    "forward": "a forward pass (6·T·K·H·I operations, bf16)",
    "training": "forward and backward pass with all gradients (18·T·K·H·I operations, bf16)",
}
"""Results that the README can show, each in a block of its own, and what their rates are of."""

COLUMNS = {
    "torch_grouped": "torch grouped GEMM",
    "torch_grouped_bf16": "torch grouped GEMM, bf16 router weights",
    "transformers": "transformers",
    "liger": "Liger Triton",
    "uniep": "**uniep**",
}
"""Systems that the README compares, in this order; variants of uniep stay in the result file."""

Record = Mapping[str, object]


class TableError(Exception):
    """A README or a result that can't be used, with what to do about it."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Rewrite the README, or check it. 1 if they don't agree or can't be read."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.table", description=__doc__)
    parser.add_argument("--check", action="store_true", help="change nothing; exit with 1 if the README would change")
    parser.add_argument("--results", type=Path, default=ROOT / "benchmarks" / "results")
    parser.add_argument("--readme", type=Path, default=ROOT / "README.md")
    options = parser.parse_args(arguments)
    try:
        return check(options.readme, options.results) if options.check else rewrite(options.readme, options.results)
    except TableError as error:
        print(error, file=sys.stderr)
        return 1


def rewrite(readme: Path, results: Path) -> int:
    """Put the table of the newest result between the marks."""
    text = readme.read_text(encoding="utf-8")
    newest = {kind: newest_result(results, kind) for kind in KINDS}
    if newest["forward"] is None:
        raise TableError(f"{results} holds no result of a forward benchmark: run `python -m benchmarks.forward` first")
    for kind, record in newest.items():
        if record is not None and _is_shown(text, kind):
            text = with_table(text, markdown(record), kind)
    readme.write_text(text, encoding="utf-8")
    return 0


def check(readme: Path, results: Path) -> int:
    """The README shows the newest results; where there is none, it shows no numbers either."""
    text = readme.read_text(encoding="utf-8")
    for kind in KINDS:
        newest = newest_result(results, kind)
        if newest is None:
            if any(line.startswith("|") for line in block_of(text, kind).splitlines()):
                raise TableError(f"{readme} shows numbers that no result in {results} is behind")
        elif _is_shown(text, kind) and text != with_table(text, markdown(newest), kind):
            raise TableError(f"{readme} does not show the newest result: run `python -m benchmarks.table`")
    return 0


def newest_result(folder: Path, kind: str = "forward") -> Record | None:
    """The newest result of one kind of benchmark on a GPU, by the date that it holds; smoke runs don't count."""
    records = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.json"))]
    real = [record for record in records if record.get("kind") == kind and not record.get("smoke")]
    return max((record for record in real if record["device"].get("gpu")), key=lambda one: one["date"], default=None)


def with_table(text: str, table: str, kind: str = "forward") -> str:
    """The README's text with `table` between the marks of its kind."""
    begin, end = _marks(text, kind)
    return f"{text[:begin]}\n\n{table}\n\n{text[end:]}"


def block_of(text: str, kind: str = "forward") -> str:
    """What stands between the marks of a kind, empty where there are none."""
    if not any(mark in text for mark in marks(kind)):
        return ""
    begin, end = _marks(text, kind)
    return text[begin:end].strip()


def _is_shown(text: str, kind: str) -> bool:
    """Whether the README shows that kind of result. It always shows forward passes."""
    return kind == "forward" or any(mark in text for mark in marks(kind))


def marks(kind: str) -> tuple[str, str]:
    """The lines between which the README shows a kind of result."""
    name = "benchmark" if kind == "forward" else f"benchmark-{kind}"
    return f"<!-- {name}:begin -->", f"<!-- {name}:end -->"


def _marks(text: str, kind: str) -> tuple[int, int]:
    """Where what is between the marks begins and ends."""
    first, last = marks(kind)
    if text.count(first) != 1 or text.count(last) != 1 or text.index(first) > text.index(last):
        raise TableError(f"the README needs one line `{first}` and, below it, one line `{last}`")
    return text.index(first) + len(first), text.index(last)


def markdown(record: Record) -> str:
    """The table, and under it what was measured, on what, and how to do it again."""
    shapes: Sequence[Record] = record["shapes"]  # type: ignore[assignment]
    present = [name for name in COLUMNS if any(name in _systems(shape) for shape in shapes)]
    head = ["shape", "T", "E", "K", "H", "I", *(COLUMNS[name] for name in present), "of dense", "× torch", "error"]
    rule = ["---", *["--:"] * (len(head) - 1)]
    rows = [_row(shape, present) for shape in shapes]
    lines = [f"| {' | '.join(cells)} |" for cells in (head, rule, *rows)]
    return "\n".join([*lines, "", *_caption(record)])


def _row(shape: Record, present: Sequence[str]) -> list[str]:
    systems = _systems(shape)
    own = systems.get("uniep", {})
    rates = [_rate(systems.get(name)) for name in present]
    if "uniep" in present:
        rates[present.index("uniep")] = f"**{rates[present.index('uniep')]}**"
    ratios = [_number(own.get("to_dense"), ".2f"), _number(own.get("to_torch_grouped"), ".2f")]
    sizes = [str(shape[name]) for name in ("T", "E", "K", "H", "I")]
    return [str(shape["name"]), *sizes, *rates, *ratios, _number(own.get("relative_error"), ".1e")]


def _caption(record: Record) -> list[str]:
    device: Record = record["device"]  # type: ignore[assignment]
    versions: Record = record["versions"]  # type: ignore[assignment]
    driver = dict(record["nvidia_smi"]).get("driver_version")  # type: ignore[call-overload]
    card = f"{device['gpu']}{f' (driver {driver})' if driver else ''}"
    packages = ", ".join(f"{name} {text}" for name, text in versions.items())
    commit = str(record["commit"] or "unknown")
    short = commit[:10] + ("+changes" if commit.endswith("+changes") else "")
    return [
        f"TFLOP/s of {KINDS[str(record['kind'])]} on one {card}, all systems in turn on one input;",
        "uniep's times include its plan. *of dense* and *× torch* are the ratios of uniep's rate to those of an 8192³",
        f"`torch.matmul`{_dense_rates(record)} and of torch's grouped GEMM; *error* is uniep's, relative to float64.",
        f"Measured on {str(record['date'])[:10]} at commit {short}, with {packages}, by",
        "",
        f"    {record['command']}",
    ]


def _dense_rates(record: Record) -> str:
    shapes: Sequence[Record] = record["shapes"]  # type: ignore[assignment]
    rates = [float(one["tflops"]) for one in (_systems(shape).get("dense", {}) for shape in shapes) if "tflops" in one]  # type: ignore[arg-type]
    return f" ({min(rates):.0f} to {max(rates):.0f} TFLOP/s)" if rates else ""


def _systems(shape: Record) -> dict[str, Record]:
    systems: Sequence[Record] = shape["systems"]  # type: ignore[assignment]
    return {str(system["name"]): system for system in systems}


def _rate(system: Record | None) -> str:
    """A rate, or why there is none: a result that is wrong has none."""
    if system is None:
        return "–"
    return _number(system.get("tflops"), ".0f") if system["status"] == "ok" else str(system["status"])


def _number(value: object, form: str) -> str:
    return "–" if value is None else format(float(value), form)  # type: ignore[arg-type]


if __name__ == "__main__":
    sys.exit(main())
