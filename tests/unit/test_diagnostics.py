from __future__ import annotations

import pickle
import re
from pathlib import Path

import pytest

import uniep_compiler
from tests.snippets import codes, snippets
from uniep_compiler.diagnostics import (
    CODES,
    Diagnostic,
    DiagnosticBag,
    InternalError,
    Label,
    Severity,
    UniepError,
    explain,
    render_all,
)
from uniep_compiler.source import Source, Span

PACKAGE = Path(uniep_compiler.__file__).parent
PAGES = sorted((PACKAGE / "errors").glob("*.md"))


def span(line: int, column: int, end_column: int, end_line: int | None = None) -> Span:
    return Span(line=line, column=column, end_line=end_line or line, end_column=end_column)


# -- How errors look ---------------------------------------------------------------------------------------------------

MOE = "\n" * 10 + "    h = group_gemm(xs, w13)\n    return combine(hh, weights)\n"
UNKNOWN = Diagnostic(
    code="UEP0201",
    message="unknown value `hh`",
    labels=(
        Label(span=span(12, 20, 22), text="not defined in this layer"),
        Label(span=span(11, 5, 6), text="a value with a similar name is defined here", primary=False),
    ),
    help="did you mean `h`?",
)


def test_an_error_shows_places_and_mend():
    assert UNKNOWN.render(Source(name="moe.uniep", text=MOE)) == (
        "error[UEP0201]: unknown value `hh`\n"
        " --> moe.uniep:12:20\n"
        "   |\n"
        "11 |     h = group_gemm(xs, w13)\n"
        "   |     - a value with a similar name is defined here\n"
        "12 |     return combine(hh, weights)\n"
        "   |                    ^^ not defined in this layer\n"
        "   |\n"
        "   = help: did you mean `h`?"
    )


def underlined(line: str, column: int, end_column: int) -> tuple[str, str]:
    """The line as shown, and what stands above the carets."""
    found = Diagnostic(code="UEP0101", message="m", labels=(Label(span=span(1, column, end_column)),))
    shown, carets = found.render(Source(name="n", text=line)).splitlines()[3:5]
    return shown, carets


@pytest.mark.parametrize(
    ("line", "column", "caret_column", "num_carets"),
    [
        ("abc = d", 7, 6, 1),
        ("\tabc", 2, 4, 1),
        ("ab\tcd", 4, 4, 1),
        ("\t\tabc", 3, 8, 1),
        ("幅 = d", 5, 5, 1),
        ("幅 = d", 1, 0, 2),
        ("e\u0301 = d", 6, 4, 1),
    ],
)
def test_carets_stand_below_what_they_mean(line, column, caret_column, num_carets):
    _, carets = underlined(line, column, column + 1)
    assert carets == f"  | {' ' * caret_column}{'^' * num_carets}"


def test_tabs_are_shown_as_the_spaces_that_carets_count_on():
    shown, carets = underlined("\ta = é\tb", 8, 9)
    assert shown == "1 |     a = é   b"
    assert carets.index("^") == shown.index("b")


def test_characters_that_would_move_the_cursor_or_hide_text_are_not_printed():
    shown, _ = underlined("a\x1b[2J\u202eb", 1, 2)
    assert shown == "1 | a\N{REPLACEMENT CHARACTER}[2J\N{REPLACEMENT CHARACTER}b"


def test_a_long_line_is_shown_around_its_label():
    shown, carets = underlined("x" * 5000 + "!" + "y" * 5000, 5001, 5002)
    assert len(shown) < 220
    assert shown[carets.index("^")] == "!"


def test_a_span_over_lines_is_underlined_to_the_end_of_its_first():
    found = Diagnostic(code="UEP0101", message="m", labels=(Label(span=span(1, 3, 2, end_line=2)),))
    assert found.render(Source(name="n", text="ab(\n)")).splitlines()[4] == "  |   ^"


def test_a_label_past_the_end_still_has_a_caret():
    found = Diagnostic(code="UEP0101", message="m", labels=(Label(span=span(3, 1, 1)),))
    assert found.render(Source(name="n", text="a\n")).splitlines()[4] == "  | ^"


def test_lines_between_labels_are_left_out():
    labels = (Label(span=span(1, 1, 2)), Label(span=span(9, 1, 2), primary=False))
    found = Diagnostic(code="UEP0101", message="m", labels=labels)
    text = found.render(Source(name="n", text="\n".join("abcdefghi")))
    assert text.splitlines()[3:] == ["1 | a", "  | ^", "...", "9 | i", "  | -"]


def test_without_a_source_the_place_is_still_named():
    assert UNKNOWN.render() == (
        "error[UEP0201]: unknown value `hh`\n --> <program>:12:20\n   = help: did you mean `h`?"
    )


def test_notes_stand_before_help_and_go_over_lines():
    found = Diagnostic(code="UEP0501", message="m", notes=("one\ntwo",), help="three")
    assert found.render() == "error[UEP0501]: m\n  = note: one\n    two\n  = help: three"


def test_of_very_many_errors_the_first_are_shown():
    text = render_all([Diagnostic(code="UEP0101", message=str(n)) for n in range(60)])
    assert text.endswith("error[UEP0101]: 49\n\n... and 10 more")


# -- Errors and bags ---------------------------------------------------------------------------------------------------


def test_a_bag_gives_each_error_once_in_the_order_of_the_text():
    bag = DiagnosticBag()
    early = Diagnostic(code="UEP0101", message="early", labels=(Label(span=span(1, 1, 2)),))
    warning = Diagnostic(code="UEP0216", message="w", severity=Severity.WARNING)
    bag.extend([UNKNOWN, early, warning, UNKNOWN])
    with pytest.raises(UniepError) as caught:
        bag.raise_if_errors(Source(name="moe.uniep", text=MOE))
    assert caught.value.diagnostics == (early, UNKNOWN)
    assert caught.value.codes == ("UEP0101", "UEP0201")
    assert "moe.uniep:12:20" in str(caught.value)


def test_warnings_alone_raise_nothing():
    bag = DiagnosticBag()
    bag.add(Diagnostic(code="UEP0216", message="w", severity=Severity.WARNING))
    bag.raise_if_errors()


def test_errors_survive_pickling():
    error = pickle.loads(pickle.dumps(UniepError([UNKNOWN], Source(name="moe.uniep", text=MOE))))
    assert str(error) == UNKNOWN.render(Source(name="moe.uniep", text=MOE))


def test_an_internal_error_names_its_dumps():
    error = pickle.loads(pickle.dumps(InternalError("broken", dumps=["a.ops", "b.ops"])))
    assert error.dumps == ("a.ops", "b.ops")
    assert error.codes == ("UEP0501",)
    assert "= note: dump: a.ops\n" in str(error)
    assert "report it with the dumps" in str(error)


def test_a_diagnostic_needs_a_code_of_the_table():
    with pytest.raises(KeyError, match="UEP9999"):
        Diagnostic(code="UEP9999", message="m")


# -- Codes and pages ---------------------------------------------------------------------------------------------------


def test_each_code_has_a_page_and_each_page_a_code():
    assert [page.stem for page in PAGES] == sorted(CODES)


@pytest.mark.parametrize("code", sorted(CODES))
def test_a_page_has_the_title_of_its_code(code):
    title, blank, *text = explain(code.lower()).splitlines()
    assert (title, blank) == (f"# {code}: {CODES[code]}", "")
    assert text


def test_codes_are_sorted_into_their_ranges():
    assert {code[3:5] for code in CODES} == {"01", "02", "03", "04", "05", "06"}


def test_codes_that_the_sources_use_are_in_the_table():
    used = {code for path in PACKAGE.rglob("*.py") for code in re.findall(r"\bUEP\d{4}\b", path.read_text("utf-8"))}
    assert used <= set(CODES)


def test_explaining_an_unknown_code_is_a_key_error():
    with pytest.raises(KeyError):
        explain("UEP9999")


@pytest.mark.parametrize("snippet", [s for page in PAGES for s in snippets(page)], ids=str)
def test_snippets_of_pages_do_what_the_page_says(snippet):
    assert set(codes(snippet)) == ({snippet.code} if snippet.code else set())


def test_snippets_of_a_page_are_about_its_code():
    wrong = [s for page in PAGES for s in snippets(page) if s.code not in (None, page.stem)]
    assert wrong == []
