"""`uniepc graph`: pictures and pages, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

DIMS = ("--dims", "H=64,I=32,E=4,K=2")


def test_without_a_file_the_picture_is_printed(uniepc, example):
    done = uniepc("graph", example, *DIMS)
    assert (done.exit_code, done.stderr) == (0, "")
    assert ElementTree.fromstring(done.stdout).tag.endswith("svg")
    assert "gemm_a" in done.stdout


def test_a_name_says_whether_it_is_a_picture_or_a_page(uniepc, example, tmp_path):
    for name, start in {"a.svg": "<svg", "a.html": "<!DOCTYPE html>"}.items():
        done = uniepc("graph", example, *DIMS, "-o", tmp_path / name)
        assert (done.exit_code, done.stdout) == (0, f"wrote {tmp_path / name}\n")
        assert (tmp_path / name).read_text().startswith(start)


def test_the_page_has_the_program_and_its_options(uniepc, example, tmp_path):
    uniepc("graph", example, *DIMS, "--tokens", 3, "-o", tmp_path / "a.html")
    text = (tmp_path / "a.html").read_text()
    for word in ("gate, up = split(h, halves)", "tile(h) = (128, 256, 64)", "Single tasks", "fuse = layer"):
        assert word in text


def test_json_counts_what_is_drawn(uniepc, example, tmp_path):
    drawn = json.loads(uniepc("graph", example, *DIMS, "--ranks", 2, "--json").stdout)
    assert drawn.pop("picture").startswith("<svg")
    assert drawn == {
        "ok": True,
        "layer": "qwen3_moe",
        "families": 6,
        "signals": 5,
        "buffers": 11,
        "launches": 1,
        "tasks": None,
    }
    done = uniepc("graph", example, *DIMS, "--routing", "0,1/2,-1", "-o", tmp_path / "a.svg", "--json")
    drawn = json.loads(done.stdout)
    assert (drawn["file"], drawn["tasks"]) == (str(tmp_path / "a.svg"), 3 + 3 + 1)  # a tile for each expert, a block


def test_routes_by_hand_are_split_over_ranks(uniepc, example):
    done = uniepc("graph", example, *DIMS, "--ranks", 2, "--routing", "0,1/0,1/3,3")
    assert done.stdout.count("relay_xs[") == 2 + 1
    assert "gemm_a[0]@1: tile = 0, column = 0" in done.stdout


def test_a_seed_gives_the_same_picture_and_another_another(uniepc, example):
    one, same, other = (
        uniepc("graph", example, *DIMS, "--ranks", 2, "--tokens", 6, "--seed", seed).stdout for seed in (1, 1, 2)
    )
    assert one == same
    assert one != other


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("-o", "a.png"), "has to end in .svg or .html"),
        (("-o", "/nowhere/a.svg"), "cannot write to /nowhere/a.svg"),
        (("--tokens", "2", "--routing", "0,1"), "say one of them"),
        (("--routing", "0,1/x"), "not a list of ids"),
        (("--routing", ""), "not a list of ids"),
        (("--routing", "0,1/2"), "token 1 has 1 ids, but K is 2"),
        (("--routing", "0,4"), "ids go from 0 to 3"),
        (("--routing", "-2,0"), "ids go from 0 to 3"),
        (("--tokens", "20000"), "tasks are too many to draw"),
        (("--tokens", "99999999"), "tasks or more are too many to draw"),
    ],
)
def test_what_cannot_be_drawn_is_wrong_usage(uniepc, example, arguments, message):
    done = uniepc("graph", example, *DIMS, *arguments)
    assert done.exit_code == 2
    assert message in done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize("options", [("--ranks", 2), ("--tokens", 5), ("-o", "a.html"), ("-o", "a.svg")])
def test_a_layer_without_tasks_is_drawn(uniepc, tmp_path, monkeypatch, options):
    monkeypatch.chdir(tmp_path)
    Path("a.uniep").write_text("uniep 1\nmoe a(r : routes[T, K, E]) -> i32[E] {\n    return counts(r)\n}\n")
    done = uniepc("graph", "a.uniep", "--dims", "E=4,K=2", *options)
    assert (done.exit_code, done.stderr.replace("wrote ", "")) in ((0, ""), (0, f"{options[1]}\n"))


def test_a_wrong_program_is_not_drawn(uniepc, tmp_path):
    (path := tmp_path / "a.uniep").write_text("uniep 1\nmoe a(")
    assert uniepc("graph", path).exit_code == 1
