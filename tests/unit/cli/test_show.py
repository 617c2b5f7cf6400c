"""`uniepc show`: each level as text, and each state between passes."""

from __future__ import annotations

import ast
import json

import pytest

from uniep_compiler.ir.ops_text import print_ops, read_ops
from uniep_compiler.ir.schedule_text import read_schedule
from uniep_compiler.ir.tasks_text import read_tasks
from uniep_compiler.passes.pipeline import PASS_NAMES

DIMS = ("--dims", "H=64,I=32,E=8,K=2")


def test_ops_read_back(uniepc, example):
    done = uniepc("show", example, *DIMS, "--stage", "ops")
    assert (done.exit_code, done.stderr) == (0, "")
    assert print_ops(read_ops(done.stdout)) == done.stdout


@pytest.mark.parametrize(
    ("stage", "read"), [(("tasks",), read_tasks), (("schedule", "--full"), read_schedule)], ids=["tasks", "schedule"]
)
def test_tasks_and_schedule_read_back(uniepc, example, stage, read):
    done = uniepc("show", example, *DIMS, "--ranks", 2, "--stage", *stage)
    assert (done.exit_code, done.stderr) == (0, "")
    assert str(read(done.stdout)).strip() == done.stdout.strip()
    for word in ("send_xs", "relay_xs", "gemm_a", "reduce_out", "a_ready"):
        assert word in done.stdout


def test_of_a_schedule_the_order_is_shown(uniepc, example):
    options = ("show", example, *DIMS, "--ranks", 2, "--stage", "schedule")
    (head, gap, *order), whole = (uniepc(*options, *more).stdout.splitlines() for more in ((), ("--full",)))
    assert "--stage tasks" in head
    assert "--full" in head
    assert gap == ""
    assert order[0] == "launch launch_0 {"
    inner = [line.removeprefix("    ") for line in whole[1:-1]]
    assert order == inner[-len(order) :]
    assert not any(line.startswith(("family", "buffer", "signal")) for line in order)


def test_every_pass_can_be_looked_behind(uniepc, example):
    texts = {name: uniepc("show", example, *DIMS, "--ranks", 2, "--after", name).stdout for name in PASS_NAMES}
    assert all(texts.values())
    assert "relay_xs" not in texts["build_tasks"]
    assert "relay_xs" in texts["insert_relays"]
    assert texts["assign_signals"] == uniepc("show", example, *DIMS, "--ranks", 2, "--stage", "tasks").stdout
    assert texts[PASS_NAMES[-1]] == uniepc("show", example, *DIMS, "--ranks", 2, "--stage", "schedule", "--full").stdout


@pytest.mark.parametrize(("module", "function"), [("forward", "def forward("), ("plan", "def plan_place(")])
def test_source_is_a_module(uniepc, example, module, function):
    done = uniepc("show", example, *DIMS, "--stage", "source", "--module", module)
    ast.parse(done.stdout)
    assert function in done.stdout


def test_json_holds_the_text(uniepc, example):
    shown = json.loads(uniepc("show", example, *DIMS, "--stage", "ops", "--json").stdout)
    assert shown["text"] == uniepc("show", example, *DIMS, "--stage", "ops").stdout
    assert (shown["stage"], shown["after"]) == ("ops", None)


@pytest.mark.parametrize(("stage", "mark"), [("ttgir", "ttg."), ("ptx", ".target sm_80")])
def test_assembly(uniepc, example, stage, mark):
    done = uniepc("show", example, *DIMS, "--stage", stage, "--target", "sm_80")
    assert done.exit_code == 0
    assert done.stdout.startswith("// kernel forward\n")
    assert mark in done.stdout


USAGE = {
    "nothing to show": ((), "say either --stage or --after"),
    "two things": (("--stage", "ops", "--after", "linearise"), "say either --stage or --after"),
    "a pass": (("--after", "linearize"), "did you mean `linearise`?"),
    "no pass at all": (("--after", "xyzzy"), "passes are build_tasks, "),
    "a stage": (("--stage", "sched"), "error: --stage: unknown stage `sched`\n  = help: did you mean `schedule`?"),
    "no stage at all": (("--stage", "xyzzy"), "stages are ops, tasks, schedule, source, ttgir, ptx"),
    "a module": (("--stage", "source", "--module", "plans"), "unknown module `plans`\n  = help: did you mean `plan`?"),
    "interpreted": (("--stage", "ptx", "--target", "cpu"), "say --target sm_90"),
}


@pytest.mark.parametrize("name", USAGE)
def test_wrong_usage_is_explained(uniepc, example, name):
    options, message = USAGE[name]
    done = uniepc("show", example, *DIMS, *options)
    assert (done.exit_code, done.stdout) == (2, "")
    assert message in done.stderr


def test_a_module_that_is_not_there(uniepc, example):
    done = uniepc("show", example.with_name("gemm_combine.uniep"), "--dims", "H=64,I=32,E=8,K=2")
    assert done.exit_code == 2
    dims = ("--dims", "H=64,I=32,E=8,K=2", "--stage", "source", "--module", "plan")
    done = uniepc("show", example.with_name("gemm_combine.uniep"), *dims)
    assert done.exit_code == 2
    assert "`gemm_combine` has no module `plan`" in done.stderr


@pytest.mark.parametrize(
    ("stage", "mark"),
    [
        ("ops", "graph qwen3_moe_backward"),
        ("tasks", "outer_grad_w13"),
        ("schedule", "outer_grad_w13"),
        ("source", "def backward("),
    ],
)
def test_the_backward_pass(uniepc, example, stage, mark):
    done = uniepc("show", example, *DIMS, "--pass", "backward", "--stage", stage)
    assert (done.exit_code, done.stderr) == (0, "")
    assert mark in done.stdout


@pytest.mark.parametrize(
    ("options", "message"),
    [(("--ranks", 2), "have no backward pass yet"), (("--module", "plan"), "has no module `plan`")],
)
def test_a_backward_pass_that_is_not_there(uniepc, example, options, message):
    done = uniepc("show", example, *DIMS, "--pass", "backward", "--stage", "source", *options)
    assert done.exit_code == 2
    assert message in done.stderr
