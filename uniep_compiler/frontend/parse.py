"""From text to a Program: the public entry of the front end."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from os import PathLike

from uniep_compiler.diagnostics import Diagnostic, DiagnosticBag, Label, UniepError
from uniep_compiler.frontend.build import build_file
from uniep_compiler.frontend.describe import describe
from uniep_compiler.frontend.grammar import Run, tokens_of
from uniep_compiler.frontend.read import MAX_SOURCE_BYTES, check_text, path_named, read_text, too_long
from uniep_compiler.frontend.schedule_block import ScheduleBlock, type_schedules
from uniep_compiler.frontend.syntax import FileDecl, MoeDecl
from uniep_compiler.ir.types import DType
from uniep_compiler.source import Source, Span

VERSION = 1
"""The version of the language that this compiler reads."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Program:
    """A parsed file, or one layer of it (`program["name"]`). Names, types and shapes are checked when it is lowered.

    `moes` and `schedules` are those of the selection, in the order of the text; `file` and `file_schedules` are those
    of the whole file. `rows` is an element type of rows that was asked for in place of the one in the text.
    """

    source: Source
    moes: Mapping[str, MoeDecl]
    schedules: tuple[ScheduleBlock, ...]
    file: FileDecl
    file_schedules: tuple[ScheduleBlock, ...]
    rows: DType | None = None

    def __getitem__(self, name: str) -> Program:
        """The program with only the layer `name` and its schedules; UniepError if the file has no such layer."""
        if not isinstance(name, str) or name not in self.moes:
            raise UniepError([_unknown_moe(name, tuple(self.moes))], self.source)
        schedules = tuple(schedule for schedule in self.schedules if schedule.moe == name)
        return replace(self, moes={name: self.moes[name]}, schedules=schedules)

    def __repr__(self) -> str:
        """The layers by name; the text is `program.source.text`."""
        return f"<Program {self.source.name}: {', '.join(self.moes)}>"

    @property
    def moe(self) -> MoeDecl:
        """The only layer; UniepError if there are several to choose from."""
        if len(self.moes) > 1:
            raise UniepError([_several_moes(tuple(self.moes.values()))], self.source)
        return next(iter(self.moes.values()))


def parse_file(path: str | PathLike[str]) -> Program:
    """Parses a `.uniep` file (UTF-8). Raises UniepError with all syntax errors, or why it cannot be read (UEP0105)."""
    file = path_named(path)
    return parse(read_text(file), name=str(file))


def parse(text: str, name: str = "<string>") -> Program:
    """Parses a program. `name` is what errors call the text. Raises UniepError with all syntax errors."""
    check_text(text, name)
    source = Source(name=name, text=_normal(text))
    num_bytes = len(source.text.encode("utf-8", "surrogatepass"))
    if num_bytes > MAX_SOURCE_BYTES:
        raise UniepError([too_long(num_bytes)], Source(name=name, text=""))
    layout = tokens_of(source.text)
    if not layout.tokens:
        raise UniepError([_no_moe("the file is empty")], source)
    run = Run(layout, describe)
    if run.tree is None:
        raise UniepError(run.errors, source)
    return _program(build_file(run.tree, source))


def _normal(text: str) -> str:
    return text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")


def _program(file: FileDecl) -> Program:
    bag = DiagnosticBag()
    bag.extend(_check_version(file))
    bag.raise_if_errors(file.source)  # what another version means is not for us to say
    bag.extend(_check_unique(file))
    if not file.moes:
        bag.add(_no_moe("the file holds no `moe` block"))
    moes = {moe.name.name: moe for moe in file.moes}
    schedules, problems = type_schedules(file.schedules, moes)
    bag.extend(problems)
    bag.raise_if_errors(file.source)
    return Program(source=file.source, moes=moes, schedules=schedules, file=file, file_schedules=schedules)


def _check_version(file: FileDecl) -> list[Diagnostic]:
    if int(file.version.name) == VERSION:
        return []
    label = Label(span=file.version.span, text=f"this compiler reads version {VERSION}")
    message = f"version {file.version.name} of the language is not known"
    return [Diagnostic(code="UEP0104", message=message, labels=(label,), help=f"write `uniep {VERSION}`")]


def _check_unique(file: FileDecl) -> list[Diagnostic]:
    first: dict[str, Span] = {}
    problems = []
    for moe in file.moes:
        span = first.setdefault(moe.name.name, moe.name.span)
        if span != moe.name.span:
            labels = (Label(span=span, text="first here", primary=False), Label(span=moe.name.span, text="again here"))
            message = f"two layers are called `{moe.name.name}`"
            problems.append(Diagnostic(code="UEP0202", message=message, labels=labels, help="rename one of them"))
    return problems


def _no_moe(message: str) -> Diagnostic:
    help_ = "a program is the line `uniep 1` and a block `moe name(...) -> ... { ... }`"
    return Diagnostic(code="UEP0107", message=message, help=help_)


def _unknown_moe(name: object, names: tuple[str, ...]) -> Diagnostic:
    there_are = f"it has {', '.join(f'`{n}`' for n in names)}"
    if not isinstance(name, str):
        message = f"a layer is chosen by its name, not by {type(name).__name__}"
        return Diagnostic(code="UEP0222", message=message, help=f'{there_are}: write program["{names[0]}"]')
    close = get_close_matches(name, names, n=1)
    help_ = f"did you mean `{close[0]}`?" if close else there_are
    return Diagnostic(code="UEP0222", message=f"the program has no layer `{name}`", help=help_)


def _several_moes(moes: tuple[MoeDecl, ...]) -> Diagnostic:
    labels = tuple(Label(span=moe.name.span, text="one of them", primary=moe is moes[0]) for moe in moes)
    help_ = f'choose one: program["{moes[0].name.name}"]'
    return Diagnostic(code="UEP0222", message=f"the program has {len(moes)} layers", labels=labels, help=help_)
