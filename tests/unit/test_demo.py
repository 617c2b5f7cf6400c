"""The demo does what it says, in this process."""

from __future__ import annotations

import re
import sys

import pytest
import torch
from rich.console import Console

import uniep_compiler as uniep
from examples import demo_qwen3_moe as demo


@pytest.fixture(scope="module")
def layer():
    return uniep.compile(
        uniep.parse_file(demo.PROGRAM), dims=demo.DIMS, target="cpu", dtype="f32", schedule=demo.SCHEDULE
    )


def quiet():
    return Console(quiet=True)


def printed(*renderables):
    console = Console(width=200)
    with console.capture() as capture:
        console.print(*renderables)
    return capture.get()


def test_the_tour_ends_well(tmp_path):
    pytest.importorskip("transformers")
    outcome = demo.tour(quiet(), "cpu", tmp_path)
    assert outcome.good
    assert 0 < outcome.difference <= demo.TOLERANCE  # a 0 would mean that the model ran its own experts
    assert outcome.contribution > 0.1  # the comparison says something about the experts
    for name in ("forward", "plan"):
        compile((tmp_path / f"qwen3_moe_{name}.py").read_text(), name, "exec")


def test_wrong_experts_are_noticed():
    pytest.importorskip("transformers")
    outcome = demo.run(WrongLayer(), quiet())
    assert outcome.difference > demo.TOLERANCE
    assert not outcome.same_bits
    assert not outcome.good


class WrongLayer:
    """Experts that give something else on every call."""

    device = torch.device("cpu")
    calls = 0

    def __call__(self, hidden, *_):
        self.calls += 1
        return hidden * self.calls

    def check(self):
        pass


@pytest.mark.parametrize(
    ("difference", "same_bits", "status"),
    [(1e-5, True, 0), (1.1e-5, True, 1), (0.0, False, 1), (float("nan"), True, 1)],
)
def test_the_exit_status_says_how_it_went(monkeypatch, capsys, difference, same_bits, status):
    outcome = demo.Outcome(difference=difference, contribution=1.0, same_bits=same_bits, ids=torch.zeros(1, 2))
    monkeypatch.setattr(demo, "import_transformers", lambda console: "")
    monkeypatch.setattr(demo, "tour", lambda *_: outcome)
    assert demo.main() == status
    assert ("wrong" in capsys.readouterr().out) == bool(status)


def test_without_transformers_one_line_says_how_to_get_it(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "transformers.integrations.moe", None)  # importing it is an ImportError
    assert demo.main() == 2
    message = capsys.readouterr().err
    assert message.count("\n") == 1
    assert "pip install 'transformers>=5'" in message


def test_an_edited_program_gets_its_error_shown(monkeypatch, capsys, tmp_path):
    (path := tmp_path / "mine.uniep").write_text(demo.PROGRAM.read_text().replace("combine(y,", "combine(yy,"))
    monkeypatch.setattr(demo, "PROGRAM", path)
    monkeypatch.setattr(demo, "import_transformers", lambda console: "")
    assert demo.main() == 1
    assert "unknown value `yy`" in capsys.readouterr().err


def test_the_families_table_says_who_waits_for_whom(layer):
    lines = printed(demo.families_table(layer)).splitlines()
    gemm = next(line for line in lines if "gemm_y" in line)
    assert re.split(r"\s{2,}", gemm.strip()) == [
        "gemm_y", "compute", "tile < num_tiles", "a_ready[tile] >= 1", "y_ready[0]"
    ]  # fmt: skip


def test_the_order_table_counts_every_task_once(layer):
    ids = torch.arange(128).view(64, 2) % 8  # 16 routes for each of 8 experts: 8 tiles
    lines = printed(demo.order_table(layer, demo.routing_of(layer, ids))).splitlines()
    counts = [int(line.split()[-1]) for line in lines if line.strip().startswith("launch_0")]
    assert sum(counts) == 8 + 8 + 64 // 8
