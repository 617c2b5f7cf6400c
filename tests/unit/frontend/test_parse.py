from __future__ import annotations

import copy
import os
import pickle
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from uniep_compiler.diagnostics import UniepError
from uniep_compiler.frontend.describe import key_of, mistakes
from uniep_compiler.frontend.grammar import Run, tokens_of
from uniep_compiler.frontend.mistakes import MISTAKES
from uniep_compiler.frontend.parse import parse, parse_file
from uniep_compiler.frontend.read import MAX_SOURCE_BYTES, UnreadableError
from uniep_compiler.frontend.schedule_block import Setting, TileSetting
from uniep_compiler.frontend.syntax import Assign, Binary, Call, Return, text_of
from uniep_compiler.source import NO_SPAN, Span

ECHO = "moe {name}(x : bf16[T, H], r : routes[T, K, E]) -> bf16[T, H] {{\n    return combine(dispatch(x, r))\n}}\n"
TWO = "uniep 1\n" + ECHO.format(name="one") + ECHO.format(name="two") + "schedule two {\n    lanes = 3\n}\n"


def codes_of(text):
    with pytest.raises(UniepError) as caught:
        parse(text, "moe.uniep")
    return caught.value.codes


# -- Programs ----------------------------------------------------------------------------------------------------------


def test_a_program_holds_its_layers_and_schedules_in_order():
    program = parse(TWO)
    assert list(program.moes) == ["one", "two"]
    assert [schedule.moe for schedule in program.schedules] == ["two"]
    assert program.source.name == "<string>"


def test_choosing_a_layer_leaves_its_schedules():
    program = parse(TWO)
    assert list(program["one"].moes) == ["one"]
    assert program["one"].schedules == ()
    assert program["two"].schedules == program.schedules
    assert program["two"].moe is program.moes["two"]


def test_a_layer_that_is_not_there_is_an_error_with_a_suggestion():
    with pytest.raises(UniepError, match="did you mean `two`") as caught:
        parse(TWO)["twoo"]
    assert caught.value.codes == ("UEP0222",)


@pytest.mark.parametrize("name", [0, None, [], slice(0, 1)])
def test_a_layer_is_chosen_by_a_name(name):
    with pytest.raises(UniepError, match=r'write program\["one"\]') as caught:
        parse(TWO)[name]
    assert caught.value.codes == ("UEP0222",)


def test_one_of_several_layers_has_to_be_chosen():
    with pytest.raises(UniepError, match=r'program\["one"\]') as caught:
        _ = parse(TWO).moe
    assert caught.value.codes == ("UEP0222",)


def test_spans_are_where_things_stand():
    decl = parse(
        "uniep 1\nmoe m(\n    x : bf16[T, 2*H],\n) -> bf16[T] {\n    a = f(x) + (1 + 2)\n    return a\n}\n"
    ).moe
    assert decl.params[0].type.dims[1].span == Span(line=3, column=17, end_line=3, end_column=20)
    assign, ret = decl.body
    assert isinstance(assign, Assign)
    assert isinstance(assign.value, Binary)
    assert (assign.value.span.column, assign.value.span.end_column) == (9, 23)
    assert isinstance(assign.value.left, Call)
    assert isinstance(ret, Return)
    assert str(decl.span) == "2:1"


def test_operators_bind_as_usual():
    decl = parse("uniep 1\nmoe m() -> f32[T] {\n    return a - b - c * -d * (e + f), (g)\n}\n").moe
    (ret,) = decl.body
    assert isinstance(ret, Return)
    assert [text_of(value) for value in ret.values] == ["a - b - c * -d * (e + f)", "g"]
    (value, _) = ret.values
    assert isinstance(value, Binary)
    assert text_of(value.left) == "a - b"


def test_several_results_may_stand_in_brackets():
    (ret,) = parse("uniep 1\nmoe m() -> (f32[T], f32[T],) {\n    return (a, b,)\n}\n").moe.body
    assert isinstance(ret, Return)
    assert [text_of(value) for value in ret.values] == ["a", "b"]


# -- Texts -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_any_line_end_will_do(end):
    assert list(parse(TWO.replace("\n", end)).moes) == ["one", "two"]


@pytest.mark.parametrize(
    "text", ["\ufeff" + TWO, TWO.rstrip(), TWO + "# 終わり", TWO.replace("    ", "\t"), "\n\n" + TWO]
)
def test_odd_but_harmless_text_is_read(text):
    assert list(parse(text).moes) == ["one", "two"]


def test_newlines_only_count_inside_braces_and_outside_brackets():
    text = (
        "uniep\n1\nmoe\nm\n(x\n:\nf32\n[T,\n]\n)\n->\nf32[T]\nwhere\nH\n>\n1\n{\n\n\na = f(\nx,\n\nx\n)\n\nreturn a }"
    )
    assert len(parse(text).moe.body) == 2


def test_long_texts_are_refused_unread():
    assert codes_of("#" * (MAX_SOURCE_BYTES + 1)) == ("UEP0105",)
    assert codes_of("#" * MAX_SOURCE_BYTES) == ("UEP0107",)


def test_files_are_read(tmp_path):
    path = tmp_path / "two.uniep"
    path.write_text(TWO)
    assert parse_file(path).source.name == str(path)


@pytest.mark.parametrize("path", ["none.uniep", "", "a\0b", "\ud800", "/dev/zero", ".", "a.uniep/b"])
def test_where_no_file_is_read_the_path_is_named(tmp_path, monkeypatch, path):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.uniep").write_text("uniep 1\n")
    with pytest.raises(
        UnreadableError, match=r"^error\[UEP0105\]: (cannot read|the path of the program is empty)"
    ) as caught:
        parse_file(path)
    assert str(path) in str(caught.value) or repr(path) in str(caught.value)


def test_a_missing_file_brings_the_nearest_one(tmp_path):
    (tmp_path / "experts.uniep").write_text("uniep 1\n")
    with pytest.raises(UnreadableError, match=f"did you mean {tmp_path}/experts.uniep"):
        parse_file(tmp_path / "expert.uniep")


@pytest.mark.parametrize("path", [3, None, b"x", ["a.uniep"]])
def test_what_is_no_path_is_refused(path):
    with pytest.raises(UniepError, match="parse_file takes a path, not") as caught:
        parse_file(path)
    assert caught.value.codes == ("UEP0601",)


@pytest.mark.parametrize("text", [None, 3, b"uniep 1", Path("a.uniep")])
def test_what_is_no_text_is_refused(text):
    for wrong in (lambda: parse(text), lambda: parse(TWO, name=text)):
        with pytest.raises(UniepError, match="text") as caught:
            wrong()
        assert caught.value.codes == ("UEP0601",)


def test_pipes_are_read_until_they_are_too_long(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with ThreadPoolExecutor(1) as pool:
        written = pool.submit(pipe.write_text, TWO)
        assert list(parse_file(pipe).moes) == ["one", "two"]
        written.result()
        endless = pool.submit(pipe.write_text, "#" * (MAX_SOURCE_BYTES * 2))
        with pytest.raises(UniepError, match="the most is"):
            parse_file(pipe)
        with pytest.raises(BrokenPipeError):
            endless.result()


def test_files_that_are_no_text_are_refused(tmp_path):
    path = tmp_path / "latin.uniep"
    path.write_bytes(b"uniep 1\n# gr\xfc\xdfe\n")
    with pytest.raises(UniepError, match="byte 0xfc on line 2") as caught:
        parse_file(path)
    assert caught.value.codes == ("UEP0105",)


def test_files_that_are_too_long_are_refused(tmp_path):
    path = tmp_path / "weights.uniep"
    path.write_bytes(b"\0" * (MAX_SOURCE_BYTES + 1))
    with pytest.raises(UniepError, match="is this the right file") as caught:
        parse_file(path)
    assert caught.value.codes == ("UEP0105",)


# -- Mistakes ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mistake", "example"),
    [(mistake, example) for mistake in MISTAKES for example in mistake.examples],
    ids=lambda value: repr(value.rsplit("\n", 1)[-1]) if isinstance(value, str) else value.message,
)
def test_every_example_of_a_mistake_is_known_by_it(mistake, example):
    assert mistakes()[key_of(example)] is mistake


def test_mistakes_in_different_statements_are_all_reported():
    text = "uniep 1\nmoe m() -> f32[T] {\n    a = = b\n    c = d\n    e f\n}\nmoe n( {\n}\nschedule m { 3 }\n"
    assert codes_of(text) == ("UEP0101", "UEP0109", "UEP0103", "UEP0101")


def test_only_so_many_mistakes_are_looked_for():
    assert len(codes_of("uniep 1\nmoe m() -> f32[T] {\n" + "    a = = b\n" * 100 + "}\n")) == 20


def test_a_bracket_that_is_never_closed_hides_nothing_behind_it():
    assert codes_of("uniep 1\nmoe m() -> f32[T] {\n    a = f(b\n    c = = d\n    return a\n}\n") == (
        "UEP0103",
        "UEP0101",
    )


@pytest.mark.parametrize("depth", [10, 32])
def test_brackets_nest(depth):
    assert parse(f"uniep 1\nmoe m() -> f32[T] {{\n    return {'(' * depth}a{')' * depth}\n}}\n")


def test_tokens_know_where_they_are():
    layout = tokens_of("uniep 1\n  moe m")
    run = Run(
        layout, lambda token, previous, parser: pytest.fail("only the end is missing") if token.type != "$END" else None
    )
    assert run.tree is None
    assert [(token.line, token.column) for token in layout.tokens] == [(1, 1), (1, 7), (2, 3), (2, 7)]


# -- Schedules ---------------------------------------------------------------------------------------------------------


def schedule_of(block, header="schedule one"):
    return parse(f"uniep 1\n{ECHO.format(name='one')}{header} {{\n{block}\n}}\n").schedules[0]


def test_a_schedule_is_typed():
    schedule = schedule_of("fuse = pairs\nlanes = 4\ntile(y) = (128, 64, 32)\ntile(grad(w)) = (64, 64, 16)")
    assert dict(schedule.entries) == {
        "fuse": Setting(value="pairs", span=NO_SPAN),
        "lanes": Setting(value=4, span=NO_SPAN),
    }
    assert schedule.tiles == (
        TileSetting(value="y", shape=(128, 64, 32), span=NO_SPAN),
        TileSetting(value="grad(w)", shape=(64, 64, 16), span=NO_SPAN),
    )
    assert str(schedule.entries["lanes"].span) == "7:9"


def test_a_schedule_says_where_it_applies():
    schedule = schedule_of("", "schedule one for sm_90 when T <= 4096, H % 2 == 0")
    assert schedule.applies("sm_90", {"T": 4096, "H": 2})
    assert not schedule.applies("sm_90", {"T": 4097, "H": 2})
    assert not schedule.applies("sm_80", {"T": 4096, "H": 2})
    assert schedule_of("").applies("cpu", {})
    with pytest.raises(UniepError, match="divides by zero"):
        schedule_of("", "schedule one when T % (H - 2) == 0").applies("cpu", {"T": 8, "H": 2})
    with pytest.raises(KeyError):
        schedule.applies("sm_90", {"H": 2})


def test_a_program_can_be_copied_and_pickled():
    program = parse(TWO)["two"]
    assert pickle.loads(pickle.dumps(program)) == copy.deepcopy(program) == program


def test_a_program_is_shown_by_its_name_and_layers():
    text = "uniep 1\n" + "".join(
        f"moe {name}(x : bf16[T, H], ids : i32[T, K]) -> bf16[T, H] {{\n return combine(dispatch(x, ids))\n}}\n"
        for name in ("first", "second")
    )
    program = parse(text, name="two.uniep")
    assert str(program) == repr(program) == "<Program two.uniep: first, second>"
    assert repr(program["second"]) == "<Program two.uniep: second>"


@pytest.mark.parametrize("number", ["\u0662", "\u0661\u0660", "\uff12", "\u00b2"])
def test_only_digits_of_ascii_make_numbers(number):
    assert codes_of(f"uniep 1\nmoe m(x : bf16[T, {number}*H]) -> bf16[T] {{\n    return x\n}}\n") == ("UEP0102",)
    assert "UEP0102" in codes_of(f"uniep 1\nmoe m(x : bf16[T, H]) -> bf16[T] {{\n    return x * {number}.5\n}}\n")
