"""Turns the error record that kernels leave into the error that a user sees."""

from __future__ import annotations

from uniep_compiler.codegen import state_layout as layout
from uniep_compiler.codegen.state_layout import ErrorKind
from uniep_compiler.compiler import Compiled
from uniep_compiler.diagnostics import Diagnostic, HangError, Label, UniepError
from uniep_compiler.runtime.workspace import Workspace


def raise_if_failed(*workspaces: Workspace) -> None:
    """Raise what the kernels of some workspaces have reported, and clear that. Nothing happens if there is nothing.

    HangError (UEP0602) names task, signal, expected and seen value, rank and source line; UEP0603 is an expert id that
    is neither -1 nor an expert.
    """
    record = next((record for workspace in workspaces for record in workspace.failures()), None)
    if record is None:
        return
    words, compiled = [int(word) for word in record.words.tolist()], record.compiled
    record.words.zero_()
    match ErrorKind(words[layout.ERROR_KIND]):
        case ErrorKind.HANG:
            raise HangError([_hang(words, compiled)], compiled.settings.source)
        case ErrorKind.BAD_ID:
            raise bad_id_error(
                words[layout.ERROR_SEEN],
                words[layout.ERROR_TASK],
                words[layout.ERROR_INDEX],
                words[layout.ERROR_EXPECTED],
                where=f" (rank {words[layout.ERROR_RANK]})",
                notes=("all outputs of that call are NaN",),
            )
        case kind:
            raise UniepError([Diagnostic(code="UEP0602", message=f"a kernel reported {kind.name}: {words}")])


def _hang(words: list[int], compiled: Compiled) -> Diagnostic:
    graph = compiled.schedule.graph
    family = graph.families[words[layout.ERROR_FAMILY]]
    signal = graph.signals[words[layout.ERROR_SIGNAL]]
    expected, seen = words[layout.ERROR_EXPECTED], words[layout.ERROR_SEEN]
    label = Label(span=family.span, text=f"`{family.name}` stands for this", primary=True)
    return Diagnostic(
        code="UEP0602",
        message=(
            f"task {words[layout.ERROR_TASK]} of `{family.name}` on rank {words[layout.ERROR_RANK]} waited for signal "
            f"`{signal.name}[{words[layout.ERROR_INDEX]}]` to reach {expected}, and saw {seen} at last"
        ),
        labels=(label,) if family.span.line else (),
        notes=("all outputs of that call are NaN",),
        help="if the device was only slow, compile with a longer `timeout`",
    )


def bad_id_error(
    expert: int, token: int, route: int, experts: int, *, where: str = "", notes: tuple[str, ...] = ()
) -> UniepError:
    """The error for an expert id that is neither -1 nor one of so many experts (UEP0603)."""
    message = f"expert id {expert} of token {token}, route {route}{where} is out of range: there are {experts} experts"
    help_ = f"ids are 0 to {experts - 1}, or -1 for no expert"
    return UniepError([Diagnostic(code="UEP0603", message=message, notes=notes, help=help_)])
