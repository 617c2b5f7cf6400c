"""Errors and warnings: what they are, how they are drawn, and the table of their codes.

Imports nothing from the rest of the package but `source`. To add a code, add one entry to `CODES` and one page
`errors/CODE.md`; `uniepc explain CODE` shows that page.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from types import MappingProxyType

from uniep_compiler.source import Source, Span

CODES: Mapping[str, str] = MappingProxyType(
    {
        # 01: syntax.
        "UEP0101": "something else was expected here",
        "UEP0102": "a character that the language does not have",
        "UEP0103": "a bracket that is not closed, or not opened",
        "UEP0104": "the version line is missing or unknown",
        "UEP0105": "the text cannot be read",
        "UEP0106": "a number or an expression is too large",
        "UEP0107": "the file holds no layer",
        "UEP0108": "the header of a layer is incomplete",
        "UEP0109": "this is not a statement",
        "UEP0110": "a comma or an operator is missing",
        "UEP0111": "this text of an OpGraph cannot be read",
        "UEP0112": "this text of a task graph or a schedule cannot be read",
        # 02: names, shapes and types.
        "UEP0201": "a value is not defined",
        "UEP0202": "a name is defined twice",
        "UEP0203": "an op is not known",
        "UEP0204": "a call does not fit its op",
        "UEP0205": "a type is not known",
        "UEP0206": "a dim is not usable",
        "UEP0207": "shapes do not fit",
        "UEP0208": "dtypes do not fit",
        "UEP0209": "a value is of the wrong kind",
        "UEP0210": "rows of different routes meet",
        "UEP0211": "a layer returns exactly once, at its end",
        "UEP0212": "what is returned is not what the header says",
        "UEP0213": "an op has another number of results",
        "UEP0214": "a parameter is used as expert weights and otherwise",
        "UEP0215": "the dims of experts or tokens cannot be found",
        "UEP0216": "a value is never used",
        "UEP0217": "the dims given to compile are not the program's",
        "UEP0218": "a condition of the program does not hold",
        "UEP0219": "a condition is not usable",
        "UEP0220": "more routes per token than experts",
        "UEP0221": "a dim cannot be split in halves",
        "UEP0222": "which layer is meant is not clear",
        "UEP0223": "an operator is not part of expressions",
        "UEP0224": "a name is reserved",
        # 03: schedule rules.
        "UEP0301": "a schedule key is not known",
        "UEP0302": "a schedule key has a value that it cannot take",
        "UEP0303": "a schedule is for a layer that is not there",
        "UEP0304": "a tile is for a value that has none",
        "UEP0305": "a schedule says something twice",
        "UEP0306": "a target is not known",
        "UEP0307": "keys of a schedule do not go together",
        "UEP0308": "a tile does not fit the target",
        "UEP0309": "a tile would change results with the number of tokens",
        # 04: limits.
        "UEP0401": "the compiler cannot build this yet",
        "UEP0402": "a call is too large",
        "UEP0310": "a task does not stand exactly once in the order",
        "UEP0311": "a task waits for one that does not stand before it",
        "UEP0312": "a task waits for other ranks before the own rank has posted",
        "UEP0313": "a wait's target is not the number of posts",
        "UEP0314": "something may be read before it is written",
        "UEP0315": "something may never be written",
        "UEP0316": "something may be written twice, or by two tasks at once",
        "UEP0317": "something may be overwritten before it is read",
        "UEP0318": "a scope is too narrow",
        "UEP0319": "a proxy fence is missing",
        "UEP0320": "something is written through the async proxy",
        "UEP0321": "an access or a post may lie outside",
        "UEP0322": "signals share counters of the scoreboard",
        "UEP0323": "memory of another rank is out of reach",
        "UEP0324": "a schedule names something that is not there",
        "UEP0325": "a schedule divides by what may be 0",
        "UEP0326": "tiles of a schedule are left out",
        "UEP0327": "a number of a schedule is out of its range",
        "UEP0328": "a kernel touches something else than its family says",
        "UEP0329": "a body does not fit its task graph",
        # 05: compiler bugs.
        "UEP0501": "the compiler has a bug",
        # 06: run time.
        "UEP0601": "an argument does not fit",
        "UEP0602": "a task waited for too long",
        "UEP0603": "an expert id is out of range",
        "UEP0604": "the target is not there",
        "UEP0605": "a library or a model does not fit its integration",
        "UEP0606": "a layer has no such derivative",
        "UEP0607": "kernels are not built before a CUDA graph is captured",
        "UEP0608": "the name of an operator is taken",
    }
)
"""Every code with a short title of what went wrong."""

_TAB_COLUMNS = 4
_MAX_SHOWN = 50
_MAX_LINE_COLUMNS = 200  # a longer line is shown only around its label


class Severity(StrEnum):
    """Whether a diagnostic stops compilation."""

    ERROR = "error"
    WARNING = "warning"


@dataclass(frozen=True, slots=True, kw_only=True)
class Label:
    """A place in the program and what to say about it. The primary one is where the diagnostic points."""

    span: Span
    text: str = ""
    primary: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnostic:
    """One thing that is wrong: a code of `CODES`, what it is, where, and how to mend it."""

    code: str
    message: str
    labels: tuple[Label, ...] = ()
    notes: tuple[str, ...] = ()
    help: str = ""
    severity: Severity = Severity.ERROR

    def __post_init__(self) -> None:
        if self.code not in CODES:
            raise KeyError(f"diagnostic code {self.code} has no entry in CODES")

    @property
    def span(self) -> Span | None:
        """Where it points: the first primary label, or the first label."""
        places = [label for label in self.labels if label.primary] or list(self.labels)
        return places[0].span if places else None

    def render(self, source: Source | None = None) -> str:
        """The diagnostic as text, with the lines of `source` that its labels point to."""
        return "\n".join(_render(self, source))


class UniepError(Exception):
    """A program, or a use of one, that is wrong. Holds every diagnostic found; its text shows them all."""

    def __init__(self, diagnostics: Iterable[Diagnostic], source: Source | None = None) -> None:
        self.diagnostics: tuple[Diagnostic, ...] = tuple(diagnostics)
        self.source = source
        super().__init__(self.diagnostics, source)  # these args make it picklable

    @property
    def codes(self) -> tuple[str, ...]:
        """The codes of its diagnostics, in order."""
        return tuple(diagnostic.code for diagnostic in self.diagnostics)

    def __str__(self) -> str:
        return render_all(self.diagnostics, self.source)


class HangError(UniepError):
    """A wait inside a kernel that lasted past its limit; names the task, the signal, and what it expected and saw."""


class InternalError(UniepError):
    """A bug in the compiler, with the paths of the files that help to find it."""

    def __init__(
        self, message: str, *, code: str = "UEP0501", dumps: Iterable[str | Path] = (), notes: Iterable[str] = ()
    ) -> None:
        self.message = message
        self.code = code
        self.dumps = tuple(str(path) for path in dumps)
        self.notes = tuple(notes)
        diagnostic = Diagnostic(
            code=code,
            message=message,
            notes=(*self.notes, *(f"dump: {path}" for path in self.dumps)),
            help="this is a bug in uniep_compiler; please report it" + (" with the dumps" if self.dumps else ""),
        )
        super().__init__((diagnostic,))

    def __reduce__(self) -> tuple[object, ...]:
        return (_internal_error, (self.message, self.code, self.dumps, self.notes))


def _internal_error(message: str, code: str, dumps: tuple[str, ...], notes: tuple[str, ...]) -> InternalError:
    return InternalError(message, code=code, dumps=dumps, notes=notes)


@dataclass(slots=True, kw_only=True)
class DiagnosticBag:
    """Collects diagnostics, so that all of a file are shown at once."""

    diagnostics: dict[Diagnostic, None] = field(default_factory=dict)  # an ordered set

    def add(self, diagnostic: Diagnostic) -> None:
        """Keeps `diagnostic`, unless the same one is there."""
        self.diagnostics[diagnostic] = None

    def extend(self, diagnostics: Iterable[Diagnostic]) -> None:
        """Keeps several."""
        for diagnostic in diagnostics:
            self.add(diagnostic)

    @property
    def errors(self) -> tuple[Diagnostic, ...]:
        """The errors, in the order of the text."""
        return tuple(d for d in self.sorted() if d.severity is Severity.ERROR)

    def sorted(self) -> tuple[Diagnostic, ...]:
        """All of them, in the order of the text; those without a place come first."""
        return tuple(sorted(self.diagnostics, key=lambda d: (d.span.line, d.span.column) if d.span else (0, 0)))

    def raise_if_errors(self, source: Source | None = None) -> None:
        """Raises a UniepError with every error, if there is one."""
        if self.errors:
            raise UniepError(self.errors, source)


def reason(error: OSError) -> str:
    """Why a file could not be read or written, to stand after a colon."""
    text = error.strerror or str(error)
    return text[:1].lower() + text[1:]


def explain(code: str) -> str:
    """The page (Markdown) about a code such as `UEP0201`; KeyError if there is no such code."""
    code = code.upper()
    if code not in CODES:
        raise KeyError(code)
    return (Path(__file__).parent / "errors" / f"{code}.md").read_text(encoding="utf-8")


def render_all(diagnostics: Iterable[Diagnostic], source: Source | None = None) -> str:
    """Several diagnostics as one text, a blank line between two. Of very many only the first are shown."""
    found = tuple(diagnostics)
    texts = [diagnostic.render(source) for diagnostic in found[:_MAX_SHOWN]]
    return "\n\n".join([*texts, *([f"... and {len(found) - _MAX_SHOWN} more"] if len(found) > _MAX_SHOWN else [])])


def _render(diagnostic: Diagnostic, source: Source | None) -> Iterable[str]:
    labels = sorted(diagnostic.labels, key=lambda label: (label.span, not label.primary))
    margin = " " * max([len(str(label.span.line)) for label in labels], default=1)
    yield f"{diagnostic.severity}[{diagnostic.code}]: {diagnostic.message}"
    if diagnostic.span is not None:
        name = source.name if source is not None else "<program>"
        yield f"{margin[1:] or ' '}--> {name}:{diagnostic.span}"
    if labels and source is not None:
        yield f"{margin} |"
        yield from _render_lines(labels, source.lines, margin)
    trailer = [
        *(f"note: {note}" for note in diagnostic.notes),
        *([f"help: {diagnostic.help}"] if diagnostic.help else []),
    ]
    if trailer and labels and source is not None:
        yield f"{margin} |"
    for text in trailer:
        first, *rest = text.split("\n")
        yield f"{margin} = {first}"
        yield from (f"{margin}   {line}" for line in rest)


def _render_lines(labels: list[Label], lines: tuple[str, ...], margin: str) -> Iterable[str]:
    shown = 0
    for label in labels:
        number = label.span.line
        line = lines[number - 1] if 1 <= number <= len(lines) else ""
        start, end = label.span.column, label.span.end_column if label.span.end_line == number else len(line) + 1
        line, start, end = _crop(line, start, end)
        if number != shown:
            if shown and number > shown + 1:
                yield "..."
            yield f"{number:>{len(margin)}} | {_printable(line)}".rstrip()
            shown = number
        before = _columns(line[: start - 1])
        under = max(1, _columns(line[: end - 1]) - before)
        yield f"{margin} | {' ' * before}{('^' if label.primary else '-') * under} {label.text}".rstrip()


def _crop(line: str, start: int, end: int) -> tuple[str, int, int]:
    if len(line) <= _MAX_LINE_COLUMNS:
        return line, start, end
    first = max(0, start - _MAX_LINE_COLUMNS // 2)
    piece = line[first : first + _MAX_LINE_COLUMNS]
    lead, tail = "..." if first else "", "..." if first + len(piece) < len(line) else ""
    shift = len(lead) - first
    return lead + piece + tail, start + shift, min(end + shift, len(lead + piece) + 1)


def _printable(line: str) -> str:
    """The line with tabs as spaces, and a stand-in for what would move the cursor or hide text."""
    out: list[str] = []
    column = 0
    for character in line:
        width = _width(character, column)
        column += width
        if character == "\t":
            out.append(" " * width)
        else:
            out.append(character if unicodedata.category(character)[0] != "C" else "\N{REPLACEMENT CHARACTER}")
    return "".join(out)


def _columns(text: str) -> int:
    """How many terminal columns `text` takes from the start of a line."""
    column = 0
    for character in text:
        column += _width(character, column)
    return column


def _width(character: str, column: int) -> int:
    if character == "\t":
        return _TAB_COLUMNS - column % _TAB_COLUMNS
    if unicodedata.category(character) in ("Mn", "Me"):
        return 0
    return 2 if unicodedata.east_asian_width(character) in ("W", "F") else 1
