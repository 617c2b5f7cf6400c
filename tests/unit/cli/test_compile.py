"""`uniepc compile`: what it writes and prints, and how it refuses."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest

DIMS = ("--dims", "H=64,I=32,E=8,K=2")


def test_it_writes_the_modules_and_says_what_is_in_them(uniepc, example, tmp_path):
    done = uniepc("compile", example, *DIMS, "-o", tmp_path / "new" / "folder")
    assert (done.exit_code, done.stderr) == (0, "")
    files = [tmp_path / "new" / "folder" / name for name in ("forward.py", "plan.py")]
    for file in files:
        assert f"wrote {file}" in done.stdout
        ast.parse(file.read_text())
    for word in ("gemm_a", "compute", "reduce_out", "2 signals", "1 launch", "tile(h) = (128, 256, 64)"):
        assert word in done.stdout


def test_the_same_command_writes_the_same_bytes(uniepc, example, tmp_path):
    for name in ("one", "two"):
        assert uniepc("compile", example, *DIMS, "-o", tmp_path / name).exit_code == 0
    for module in ("forward.py", "plan.py"):
        assert (tmp_path / "one" / module).read_bytes() == (tmp_path / "two" / module).read_bytes()


def test_without_a_folder_nothing_is_written(uniepc, example, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = uniepc("compile", example, *DIMS)
    assert done.exit_code == 0
    assert "nothing written" in done.stdout
    assert list(tmp_path.iterdir()) == []


def test_json_says_what_was_built(uniepc, example, tmp_path):
    done = uniepc("compile", example, *DIMS, "--ranks", 2, "--dtype", "f16", "-o", tmp_path, "--json")
    made = json.loads(done.stdout)
    assert made["ok"]
    assert (made["layer"], made["target"], made["dtype"]) == ("qwen3_moe", "sm_90", "f16")
    assert made["dims"] == {"E": 8, "H": 64, "I": 32, "K": 2}
    assert (made["ranks"], made["virtual"], made["placement"]) == (2, True, [4, 4])
    assert [family["role"] for family in made["families"]] == ["comm", "relay", "compute", "compute", "push", "reduce"]
    gemm = made["families"][2]
    assert (gemm["name"], gemm["value"], gemm["line"]) == ("gemm_a", "a", 17)
    assert (gemm["waits"], gemm["posts"]) == (["xs_ready"], ["a_ready"])
    assert next(iter(gemm["domain"].values())) == "num_tiles"
    assert made["files"] == {name: str(tmp_path / f"{name}.py") for name in ("forward", "plan")}


def test_schedule_keys_go_over_those_of_the_program(uniepc, example):
    options = ("--schedule", "fuse=none,chunk=8", "--schedule", "tile(h) = (128, 64, 32)", "--target", "sm_90")
    made = json.loads(uniepc("compile", example, *DIMS, *options, "--json").stdout)
    assert (made["options"]["fuse"], made["options"]["chunk"]) == ("none", 8)
    assert made["options"]["tiles"]["h"] == [128, 64, 32]
    assert made["options"]["tiles"]["grad(w13)"] == [128, 256, 64]
    assert len(made["launches"]) > 1
    assert [family["tile"] for family in made["families"] if family["name"] == "gemm_a"] == [[128, 64, 32]]


def test_tiles_of_a_program_are_for_its_own_dtype(uniepc, example):
    kept, left = (
        json.loads(uniepc("compile", example, *DIMS, "--dtype", dtype, "--json").stdout) for dtype in ("bf16", "f32")
    )
    assert kept["options"]["tiles"]["h"] == [128, 256, 64]
    assert (left["dtype"], left["options"]["tiles"]) == ("f32", {})


def test_it_says_which_lag_and_how_many_workers_there_are(uniepc, example):
    def launches(*options):
        return json.loads(uniepc("compile", example, *DIMS, *options, "--json").stdout)["launches"]

    (chosen,) = launches()
    assert chosen["lag"] >= 1
    assert chosen["workers"] is None  # the device's multiprocessors
    assert "one per multiprocessor" in uniepc("compile", example, *DIMS).stdout
    assert launches("--target", "cpu")[0]["workers"] == 1
    (said,) = launches("--schedule", "lag=7,workers=3")
    assert (said["lag"], said["workers"]) == (7, 3)
    assert [launch["lag"] for launch in launches("--schedule", "fuse=none")] == [None, None, None]


def test_the_number_of_tokens_picks_the_block_of_a_schedule(uniepc, example, tmp_path):
    (path := tmp_path / "when.uniep").write_text(
        example.read_text() + "\nschedule qwen3_moe when T <= 64 { fuse = none }\n"
    )
    picked = {
        tokens: json.loads(uniepc("compile", path, *DIMS, "--tokens", tokens, "--json").stdout)["options"]["fuse"]
        for tokens in (64, 65)
    }
    assert picked == {64: "none", 65: "layer"}


def test_one_layer_of_several_is_named(uniepc, two_layers):
    dims = ("--dims", "H=32,N=16,E=4,K=2")
    done = uniepc("compile", two_layers, *dims)
    assert done.exit_code == 2
    assert "has 2 layers: `first`, `second`" in done.stderr
    assert "--moe first" in done.stderr
    made = json.loads(uniepc("compile", two_layers, *dims, "--moe", "second", "--json").stdout)
    assert made["layer"] == "second"
    wrong = uniepc("compile", two_layers, *dims, "--moe", "secnd")
    assert wrong.exit_code == 2
    assert "did you mean `second`?" in wrong.stderr


# -- what is wrong with the program ------------------------------------------------------------------------------------


def test_a_wrong_program_is_shown_with_its_place(uniepc, example, tmp_path):
    text = example.read_text().replace("return combine(y, weights)", "return combine(yy, weights)")
    (path := tmp_path / "wrong.uniep").write_text(text)
    done = uniepc("compile", path, *DIMS)
    assert (done.exit_code, done.stdout) == (1, "")
    assert f"{path}:21:20" in done.stderr
    assert "^^" in done.stderr
    assert "did you mean `y`?" in done.stderr
    found = json.loads(uniepc("compile", path, *DIMS, "--json").stdout)
    assert not found["ok"]
    (diagnostic,) = found["diagnostics"]
    assert diagnostic["code"] == "UEP0201"
    assert [label["line"] for label in diagnostic["labels"] if label["primary"]] == [21]


def test_warnings_do_not_stop_it(uniepc, example, tmp_path):
    text = example.read_text().replace("    y  = group_gemm", "    z  = silu(a)\n    y  = group_gemm")
    (path := tmp_path / "odd.uniep").write_text(text)
    done = uniepc("compile", path, *DIMS, "--json")
    assert done.exit_code == 0
    assert "warning[UEP0216]" in done.stderr
    assert [warning["code"] for warning in json.loads(done.stdout)["warnings"]] == ["UEP0216"]


def test_a_wrong_schedule_block_is_the_programs_fault(uniepc, example, tmp_path):
    text = example.read_text().replace("fuse  = layer  ", "block = 3 # ")
    (path := tmp_path / "wrong.uniep").write_text(text)
    done = uniepc("compile", path, *DIMS)
    assert done.exit_code == 1
    assert f"{path}:26:" in done.stderr


def test_a_file_that_is_not_text_is_a_wrong_program(uniepc, tmp_path):
    (path := tmp_path / "binary.uniep").write_bytes(b"uniep 1\n\xff\xfe")
    done = uniepc("compile", path, *DIMS)
    assert done.exit_code == 1
    assert "is not UTF-8: byte 0xff on line 2" in done.stderr
    assert "Traceback" not in done.stderr


# -- what is wrong with the command line -------------------------------------------------------------------------------

USAGE = {
    "no dims": ((), "no number for `E`, `H`, `I`, `K`"),
    "dims of one kind": (("--dims", "H=64,I=32"), "write --dims E=...,H=64,I=32,K=..."),
    "no number": (("--dims", "H=x"), "`H=x` is not a name and an integer"),
    "no value": (("--dims", "H"), "`H` is not NAME=VALUE"),
    "twice": (("--dims", "H=1", "--dims", "H=2"), "`H` is given twice"),
    "the tokens": (("--dims", "H=64,I=32,E=8,K=2,T=9"), "`T` is the number of tokens"),
    "another dim": (("--dims", "H=64,I=32,E=8,K=2,J=9"), "has no dim `J`"),
    "too small": (("--dims", "H=0,I=32,E=8,K=2"), "`H` cannot be 0"),
    "a condition": (("--dims", "H=8,I=32,E=8,K=2"), "`H % 16 == 0` does not hold"),
    "a target": ((*DIMS, "--target", "sm_9"), "did you mean `sm_90`?"),
    "a key": ((*DIMS, "--schedule", "relai=copy"), "did you mean `relay`?"),
    "a word": ((*DIMS, "--schedule", "fuse=all"), "takes one of layer, pairs, none"),
    "a pair": ((*DIMS, "--schedule", "fuse"), "`fuse` is not NAME=VALUE"),
    "a tile": ((*DIMS, "--schedule", "tile(h)=(1,2)"), "is not a tile of rows, columns and depth"),
    "a tile of nothing": ((*DIMS, "--schedule", "tile(q)=(128,64,64)"), "`q` is not a GEMM"),
    "two keys": ((*DIMS, "--schedule", "relay=off,send=rank"), "`send = rank` cannot go with `relay = off`"),
    "no ranks": ((*DIMS, "--ranks", "0"), "in the range from 1 to 64"),
    "interpreted": ((*DIMS, "--target", "cpu", "--aot"), "kernels for `cpu` are interpreted"),
    "an option": ((*DIMS, "--quiet"), "No such option: --quiet"),
    "a dtype": ((*DIMS, "--dtype", "fp8"), "'bf16', 'f16', 'f32'"),
    "a dtype of others": ((*DIMS, "--dtype", "fp16"), "did you mean `f16`?"),
    "a dtype of torch": ((*DIMS, "--dtype", "torch.float32"), "did you mean `f32`?"),
    "a dtype in capitals": ((*DIMS, "--dtype", "BF16"), "did you mean `bf16`?"),
    "a dtype of ids": ((*DIMS, "--dtype", "int32"), "'int32' is not one of"),
}


@pytest.mark.parametrize("name", USAGE)
def test_wrong_usage_is_explained(uniepc, example, name):
    options, message = USAGE[name]
    done = uniepc("compile", example, *options)
    assert (done.exit_code, done.stdout) == (2, "")
    assert message in " ".join(done.stderr.replace("│", " ").split())
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("options", [(), (*DIMS[:1], "H=x"), (*DIMS, "--schedule", "fuse=all")])
def test_wrong_usage_is_json_too(uniepc, example, options):
    done = uniepc("compile", example, *options, "--json")
    assert done.exit_code == 2
    found = json.loads(done.stdout)
    assert not found["ok"]
    assert all(diagnostic["message"] for diagnostic in found["diagnostics"])


def test_files_that_cannot_be_read(uniepc, example, tmp_path):
    missing = uniepc("compile", example.with_name("qwen3_mo.uniep"), *DIMS)
    assert missing.exit_code == 2
    assert "no such file or directory\n  = help: did you mean" in missing.stderr
    folder = uniepc("compile", tmp_path, *DIMS)
    assert (folder.exit_code, folder.stderr) == (2, f"error: cannot read {tmp_path}: is a directory\n")
    nowhere = uniepc("compile", tmp_path / "no" / "such.uniep", *DIMS)
    assert nowhere.exit_code == 2
    assert nowhere.stderr.count("\n") == 1


def test_a_folder_that_cannot_be_written(uniepc, example, tmp_path):
    (tmp_path / "file").touch()
    done = uniepc("compile", example, *DIMS, "-o", tmp_path / "file")
    assert done.exit_code == 2
    assert done.stderr == f"error: cannot write to {tmp_path / 'file'}: file exists\n"


def test_a_bug_is_reported_with_a_dump(uniepc, example, monkeypatch):
    def fail(*_):
        raise IndexError("tuple index out of range")

    monkeypatch.setattr("uniep_compiler.compiler.emit", fail)
    done = uniepc("compile", example, *DIMS, "--json")
    assert done.exit_code == 1
    assert "error[UEP0501]: IndexError: tuple index out of range" in done.stderr
    assert "please report it" in done.stderr
    (dump,) = [note for note in json.loads(done.stdout)["diagnostics"][0]["notes"] if note.startswith("dump: ")]
    assert "in fail" in Path(dump.removeprefix("dump: ")).read_text()


def test_ahead_of_time(uniepc, example):
    done = uniepc("compile", example, *DIMS, "--schedule", "fuse=none", "--aot", "--json")
    kernels = json.loads(done.stdout)["kernels"]
    assert {"forward_0", "plan_count", "plan_place"} <= {kernel["name"] for kernel in kernels}
    for kernel in kernels:
        assert 16 <= kernel["num_registers"] <= 255
        assert kernel["spill_bytes"] == 0
