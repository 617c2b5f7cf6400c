"""The benchmarks' arithmetic and tables, on made-up times; what they measure is for machines with a GPU."""

from __future__ import annotations

import json
import math
import time
from argparse import ArgumentTypeError
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from benchmarks import record, table
from benchmarks.forward import keep_whole_rounds
from benchmarks.inputs import expected_rows, make_inputs, relative_error, sample_rows
from benchmarks.jobs import Job, Variant, parse_variant
from benchmarks.peers import SETUPS, in_training
from benchmarks.session import Session
from benchmarks.shapes import SHAPES, Shape
from benchmarks.summary import Measured, shape_record, text_table
from benchmarks.timing import nan_in_new_memory
from benchmarks.worker import Worker, WorkerError, serve

SHAPE = Shape(name="made-up", T=10, E=4, K=2, H=100, I=50)
TINY = Shape(name="tiny", T=21, E=5, K=2, H=32, I=16)
CPU = torch.device("cpu")


def measured(system, flops, rounds_ms, *, name=None, error=1e-3, failure=""):
    return Measured(
        Variant(name=name or system, system=system),
        prepared={"flops": flops, "peak_bytes": 2**30, "first_call_s": 1.0} if rounds_ms else {},
        rounds_ms=rounds_ms,
        errors=[error] if rounds_ms else [],
        failure=failure,
    )


def made_up_systems():
    flops = SHAPE.flops
    return [
        measured("dense", 2 * flops, [2.0, 4.0, 2.0]),
        measured("torch_grouped", flops, [3.0, 6.0, 3.0]),
        measured("liger", 0, [], failure="no such module"),
        measured("uniep", flops, [2.0, 4.0, 2.5]),
        measured("uniep", flops, [1.0, 1.0, 1.0], name="uniep[relay=copy]", error=0.5),
    ]


def made_up_result(**changes):
    return {
        "format": 1,
        "kind": "forward",
        "date": "2026-01-02T03:04:05+00:00",
        "command": "python -m benchmarks.forward --rounds 3",
        "commit": "0123456789abcdef",
        "versions": {"uniep_compiler": "0.1.0", "torch": "2.11.0"},
        "nvidia_smi": {"driver_version": "580.1"},
        "smoke": False,
        "device": {"gpu": "NVIDIA H200"},
        "shapes": [shape_record(SHAPE, made_up_systems())],
        **changes,
    }


def systems_of(shape):
    return {system["name"]: system for system in shape["systems"]}


# -- numbers ------------------------------------------------------------------------------------------------------


def test_flops_count_three_products():
    assert SHAPE.flops == 6 * 10 * 2 * 100 * 50
    assert SHAPES["mixtral"].flops == 6 * 8192 * 2 * 4096 * 14336


def test_ratios_are_taken_within_rounds():
    """The card was at half its clock in the second round: rates differ by 2, and ratios not at all."""
    systems = systems_of(shape_record(SHAPE, made_up_systems()))
    assert systems["uniep"]["ms"] == 2.5
    assert systems["uniep"]["tflops"] == pytest.approx(SHAPE.flops / 2.5e9)
    assert systems["uniep"]["to_torch_grouped"] == pytest.approx(1.5)
    assert systems["uniep"]["to_dense"] == pytest.approx(0.5)
    assert systems["torch_grouped"]["to_torch_grouped"] == 1
    assert systems["uniep"]["spread"] == pytest.approx(0.8)


def test_no_ratio_without_the_same_rounds():
    systems = made_up_systems()
    systems[0].rounds_ms.pop()
    found = systems_of(shape_record(SHAPE, systems))
    assert found["uniep"]["to_dense"] is None
    assert found["uniep"]["to_torch_grouped"] == pytest.approx(1.5)


@pytest.mark.parametrize(
    ("error", "status"), [(1e-3, "ok"), (0.011, "wrong"), (math.inf, "wrong"), (math.nan, "wrong")]
)
def test_a_wrong_result_is_called_wrong(error, status):
    one = measured("uniep", SHAPE.flops, [1.0], error=1e-3)
    one.errors.append(error)
    one.errors.append(1e-3)
    found = systems_of(shape_record(SHAPE, [one]))["uniep"]
    assert found["status"] == status
    assert found["relative_error"] == (error if math.isfinite(error) else None)


def test_only_whole_rounds_count():
    systems = [measured("dense", 1, [1.0, 2.0]), measured("uniep", 1, [3.0]), measured("liger", 0, [], failure="why")]
    keep_whole_rounds(systems)
    assert [system.rounds_ms for system in systems] == [[1.0], [3.0], []]
    assert [system.status for system in systems] == ["ok", "ok", "failed"]
    assert systems[2].failure == "why"


def test_text_table_has_a_line_per_system():
    lines = text_table(shape_record(SHAPE, made_up_systems())).splitlines()
    assert len(lines) == 2 + len(made_up_systems())
    assert lines[4].split(maxsplit=1) == ["liger", "failed: no such module"]
    assert lines[6].startswith("uniep[relay=copy]")
    assert lines[6].rstrip().endswith("wrong:")
    assert len({len(line) for line in lines[1:4]}) == 1


# -- inputs and the reference -------------------------------------------------------------------------------------


def test_inputs_come_from_the_seed():
    first, second, other = (make_inputs(TINY, seed, CPU) for seed in (1, 1, 2))
    assert first.fingerprint == second.fingerprint != other.fingerprint
    assert torch.equal(first.w13, second.w13)
    assert all(len(set(row)) == TINY.K for row in first.ids.tolist())


def test_sample_has_both_ends_and_no_row_twice():
    rows = sample_rows(100, 10, 3, CPU).tolist()
    assert rows[0] == 0
    assert rows[-1] == 99
    assert rows == sorted(set(rows))
    assert len(rows) == 10
    assert sample_rows(5, 0, 3, CPU).tolist() == sample_rows(5, 9, 3, CPU).tolist() == list(range(5))


def test_reference_is_the_layer():
    """Against the definition, token by token."""
    inputs = make_inputs(TINY, 7, CPU)
    tokens = torch.tensor([0, 4, 20])
    wanted = torch.zeros(3, TINY.H, dtype=torch.float64)
    for place, token in enumerate(tokens.tolist()):
        for expert, weight in zip(inputs.ids[token].tolist(), inputs.weights[token].tolist(), strict=True):
            h = inputs.w13[expert].double() @ inputs.x[token].double()
            gate, up = h[: TINY.I], h[TINY.I :]
            wanted[place] += weight * (inputs.w2[expert].double() @ (gate * torch.sigmoid(gate) * up))
    torch.testing.assert_close(expected_rows(inputs, tokens), wanted)


@pytest.mark.parametrize("system", ["dense", "torch_grouped", "uniep"])
def test_systems_compute_the_reference(system):
    """Also on poisoned memory; a system that leaves an element unwritten has an infinite error."""
    answer = Session(job(system)).prepare()
    assert answer["relative_error"] < 1e-2
    assert answer["same_bits"]


def test_an_unwritten_element_is_found():
    with nan_in_new_memory():
        assert torch.empty(3).isnan().all()
    assert not torch.are_deterministic_algorithms_enabled()
    assert math.isnan(relative_error(torch.tensor([[1.0, math.nan]]), torch.ones(1, 2, dtype=torch.float64)))


# -- processes ----------------------------------------------------------------------------------------------------


def job(system, shape=TINY):
    return Job(variant=Variant(name=system, system=system), shape=shape, seed=5, device="cpu", check_rows=0)


class Line:
    """A connection whose requests are known beforehand."""

    def __init__(self, *requests):
        self.requests = list(requests)
        self.answers = []

    def recv(self):
        if not self.requests:
            raise EOFError
        return self.requests.pop(0)

    def send(self, answer):
        self.answers.append(answer)


def test_a_session_answers_and_goes_on_after_an_error(capsys):
    line = Line(("turn", ()), ("about_device", ()))
    serve(line, job("dense"))
    assert [kind for kind, _ in line.answers] == ["error", "ok"]
    assert line.answers[0][1].startswith("TypeError: ")
    assert "TypeError" in capsys.readouterr().err


def test_a_late_answer_ends_the_process():
    worker = Worker(job("dense", replace(TINY, T=200000, H=512)))
    started = time.monotonic()
    with pytest.raises(WorkerError, match="no answer within 0 s"):
        worker.request(0.01, "prepare")
    assert not worker.alive
    assert time.monotonic() - started < 10
    with pytest.raises(WorkerError):
        worker.request(0.01, "prepare")


# -- command lines and files --------------------------------------------------------------------------------------


def test_variants_are_read():
    variant = parse_variant("relay=copy,group=4,tile(h)=128x256x64")
    assert variant.system == "uniep"
    assert variant.schedule == {"relay": "copy", "group": 4, "tiles": {"h": (128, 256, 64)}}
    for text in ("relay", "relay=", "=copy", "tile(h)=128"):
        with pytest.raises(ArgumentTypeError):
            parse_variant(text)


def test_recorded_command_names_no_place():
    arguments = ["--shapes", "mixtral", "--out", "/somewhere", "--commit=abc", "--rounds", "3"]
    assert record.command_line("forward", arguments) == "python -m benchmarks.forward --shapes mixtral --rounds 3"


def test_records_are_written_by_gpu(tmp_path):
    path = record.write(made_up_result(), tmp_path / "new")
    assert path.name == "forward-nvidia-h200.json"
    assert json.loads(path.read_text())["shapes"][0]["name"] == "made-up"


def test_every_system_says_what_it_is():
    assert all(setup.__doc__ for setup in SETUPS.values())


# -- the README ---------------------------------------------------------------------------------------------------


@pytest.fixture
def readme(tmp_path):
    path = tmp_path / "README.md"
    begin, end = table.marks("forward")
    path.write_text(f"# Title\n\n{begin}\n{end}\n\nThe rest.\n")
    return path


@pytest.fixture
def results(tmp_path):
    folder = tmp_path / "results"
    folder.mkdir()
    return folder


def run_table(readme, results, *more):
    return table.main(["--readme", str(readme), "--results", str(results), *more])


def test_table_is_written_once_and_checked(readme, results):
    record.write(made_up_result(), results)
    assert run_table(readme, results, "--check") == 1
    assert run_table(readme, results) == 0
    written = readme.read_text()
    assert run_table(readme, results, "--check") == 0
    assert run_table(readme, results) == 0
    assert readme.read_text() == written
    assert written.startswith("# Title\n")
    assert written.endswith("\n\nThe rest.\n")
    assert "| made-up | 10 | 4 | 2 | 100 | 50 | 0 | failed | **0** | 0.50 | 1.50 | 1.0e-03 |" in written
    assert "    python -m benchmarks.forward --rounds 3" in written
    assert "NVIDIA H200 (driver 580.1)" in written


def test_newest_result_counts(readme, results):
    (results / "a.json").write_text(json.dumps(made_up_result(date="2026-02-01T00:00:00+00:00", commit="new")))
    (results / "b.json").write_text(json.dumps(made_up_result(commit="old")))
    (results / "c.json").write_text(json.dumps(made_up_result(date="2027-01-01T00:00:00+00:00", smoke=True)))
    (results / "d.json").write_text(json.dumps(made_up_result(date="2027-01-01T00:00:00+00:00", kind="plan")))
    (results / "e.json").write_text(json.dumps(made_up_result(date="2027-01-01T00:00:00+00:00", device={})))
    assert table.newest_result(results)["commit"] == "new"


def test_numbers_without_a_result_are_found(readme, results):
    readme.write_text(table.with_table(readme.read_text(), "No numbers yet."))
    assert run_table(readme, results, "--check") == 0
    readme.write_text(table.with_table(readme.read_text(), "| fast | very |"))
    assert run_table(readme, results, "--check") == 1


def test_marks_are_asked_for(readme, results, capsys):
    record.write(made_up_result(), results)
    readme.write_text("# Title\n")
    assert run_table(readme, results) == 1
    assert table.marks("forward")[0] in capsys.readouterr().err


def test_readme_agrees_with_the_results():
    """Of this repository: after a new result, `python -m benchmarks.table`."""
    root = Path(table.__file__).parents[1]
    assert run_table(root / "README.md", root / "benchmarks" / "results", "--check") == 0


@pytest.mark.parametrize("name", ["torch_grouped", "transformers", "uniep"])
def test_training_gives_the_gradient_of_the_tokens(name):
    inputs = make_inputs(SHAPES["qwen3-30b"].smoke(), 3, torch.device("cpu"))
    system = in_training(SETUPS[name](inputs, {}), inputs, 3)
    rows = torch.arange(system.num_rows)
    assert relative_error(system.call(), system.expected(rows)) < 1e-2
    assert system.flops == 3 * inputs.shape.flops
