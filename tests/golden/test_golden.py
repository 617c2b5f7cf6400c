"""Programs with what the compiler says of them, beside: `.err` holds errors and warnings, `.ops` the OpGraph.

`pytest --update-golden` rewrites the files that differ and then fails, so that nobody accepts blindly. To add a case,
write `cases/name.uniep` and run that. To add a stage, add it to STAGES; an optional one is made only for programs that
have a file of it, which may be empty at first.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from uniep_compiler.diagnostics import UniepError, render_all
from uniep_compiler.frontend.lower import diagnose, lower
from uniep_compiler.frontend.parse import parse
from uniep_compiler.ir.ops_text import print_ops

CASES = Path(__file__).parent / "cases"
EXAMPLES = Path(__file__).parents[2] / "examples"


def diagnostics_of(text: str, name: str) -> str:
    try:
        program = parse(text, name)
    except UniepError as error:
        return f"{error}\n"
    found = diagnose(program)
    return f"{render_all(found, program.source)}\n" if found else ""


def ops_of(text: str, name: str) -> str:
    try:
        program = parse(text, name)
        return "\n".join(print_ops(lower(program[moe])) for moe in program.moes)
    except UniepError:
        return ""


@dataclass(frozen=True, kw_only=True)
class Stage:
    make: Callable[[str, str], str]  # of a program's text and name; "" where there is nothing to keep
    optional: bool = False


STAGES = {".err": Stage(make=diagnostics_of), ".ops": Stage(make=ops_of)}
PROGRAMS = [*sorted(CASES.glob("*.uniep")), *sorted(EXAMPLES.glob("*.uniep"))]


def stages_of(program: Path) -> dict[Path, str]:
    """The golden files of a program, and what each should hold."""
    text, made = program.read_bytes().decode("utf-8"), {}
    for suffix, stage in STAGES.items():
        golden = CASES / f"{program.stem}{suffix}"
        content = "" if stage.optional and not golden.exists() else stage.make(text, program.name)
        if content:
            made[golden] = content
    return made


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.stem)
def test_program_gives_what_its_golden_files_hold(program, request):
    update = request.config.getoption("--update-golden")
    expected = stages_of(program)
    assert expected, "a case that gives nothing tests nothing"
    differing = [path for path, text in expected.items() if not path.exists() or path.read_text("utf-8") != text]
    if update and differing:
        for path in differing:
            path.write_text(expected[path], encoding="utf-8")
        pytest.fail(f"rewrote {', '.join(path.name for path in differing)}: look at the difference, and run again")
    for path, text in expected.items():
        assert path.exists(), f"{path.name} is missing; --update-golden writes it"
        assert path.read_text("utf-8") == text


def test_no_golden_file_is_unused():
    used = {path for program in PROGRAMS for path in (program, *stages_of(program))}
    assert [path.name for path in sorted(CASES.iterdir()) if path not in used] == []


def test_broken_programs_differ_in_code_or_place():
    seen: dict[tuple[str, ...], str] = {}
    for path in sorted(CASES.glob("*.err")):
        lines = [line.replace(path.stem, "") for line in path.read_text("utf-8").splitlines()]
        heads = tuple(line for line in lines if line.startswith(("error", "warning")) or "-->" in line)
        assert heads not in seen, f"{path.name} and {seen[heads]} test the same"
        seen[heads] = path.name


@pytest.mark.parametrize("path", sorted(CASES.glob("*.err")), ids=lambda path: path.stem)
def test_every_error_says_how_to_mend_it(path):
    for block in path.read_text("utf-8").split("\n\n"):
        assert "= help: " in block
