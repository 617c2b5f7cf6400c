"""`uniepc run`: random and given inputs, on one rank and several, against the reference."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from uniep_compiler.frontend.bind import dims_to_bind
from uniep_compiler.frontend.lower import lower
from uniep_compiler.frontend.parse import parse_file

DIMS = ("--dims", "H=32,I=16,E=4,K=2", "--target", "cpu", "--tokens", 9)


@pytest.fixture
def save(tmp_path):
    torch_file = pytest.importorskip("safetensors.torch")

    def write(**tensors):
        torch_file.save_file(tensors, path := tmp_path / "inputs.safetensors")
        return path

    return write


def results(done):
    assert done.exit_code == 0, done.stderr
    return json.loads(done.stdout)["results"]


def test_it_runs_and_compares(uniepc, example):
    done = uniepc("run", example, *DIMS)
    assert (done.exit_code, done.stderr) == (0, "")
    assert "same bits" in done.stdout
    assert done.stdout.endswith("right\n")
    (out,) = results(uniepc("run", example, *DIMS, "--json"))
    assert (out["name"], out["shape"], out["dtype"]) == ("out", [9, 32], "bfloat16")
    assert out["same_bits"]
    assert 1e-4 < out["relative_error"] <= out["tolerance"] == 1e-2


def test_all_numbers_of_ranks_give_the_same_bits(uniepc, example):
    digests = {
        results(uniepc("run", example, *DIMS, *ranks, "--json"))[0]["sha256"]
        for ranks in ((), ("--ranks", 2), ("--ranks", 3))
    }
    assert len(digests) == 1


def test_the_seed_makes_the_inputs(uniepc, example):
    digests = [results(uniepc("run", example, *DIMS, "--seed", seed, "--json"))[0]["sha256"] for seed in (1, 1, 2)]
    assert digests[0] == digests[1] != digests[2]


def test_other_dtypes(uniepc, example):
    (out,) = results(uniepc("run", example, *DIMS, "--dtype", "f32", "--json"))
    assert out["relative_error"] <= 1e-6
    assert (out["dtype"], out["tolerance"]) == ("float32", 1e-5)


@pytest.mark.parametrize(("dtype", "tolerance"), [(None, 1e-2), ("f16", 2e-3), ("f32", 1e-5)])
def test_a_layer_without_a_gemm_is_held_to_what_its_rows_can_keep(uniepc, tmp_path, dtype, tolerance):
    (path := tmp_path / "sum.uniep").write_text(
        "uniep 1\nmoe sum(x : bf16[T, H], experts : i32[T, K], _w : bf16[E, H, H]) -> bf16[T, H] {\n"
        "    return combine(dispatch(x, experts))\n}\n"
    )
    options = ("--dims", "H=64,E=8,K=3", "--target", "cpu", "--tokens", 17, *(("--dtype", dtype) if dtype else ()))
    (out,) = results(uniepc("run", path, *options, "--json"))
    assert out["tolerance"] == tolerance
    assert out["dtype"] == {None: "bfloat16", "f16": "float16", "f32": "float32"}[dtype]


def test_no_tokens(uniepc, example):
    (out,) = results(uniepc("run", example, *DIMS[:-1], 0, "--json"))
    assert (out["shape"], out["relative_error"]) == ([0, 32], 0.0)


def test_a_layer_that_returns_routes_and_rows(uniepc, example):
    options = ("--dims", "H=32,N=16,E=4,K=2", "--target", "cpu", "--tokens", 5, "--json")
    (rows,) = results(uniepc("run", example.with_name("dispatch_gemm.uniep"), *options))
    assert rows["shape"] == [10, 16]


def test_a_wrong_result_is_an_error(uniepc, example, monkeypatch):
    from uniep_compiler.runtime.layer import Layer

    right = Layer.reference
    monkeypatch.setattr(Layer, "reference", lambda *args, **options: right(*args, **options) * 1.1)
    done = uniepc("run", example, *DIMS)
    assert done.exit_code == 1
    assert "WRONG" in done.stdout
    assert not json.loads(uniepc("run", example, *DIMS, "--json").stdout)["ok"]


def test_nan_is_an_error_and_still_json(uniepc, example, save):
    path = save(x=torch.full((9, 32), torch.nan, dtype=torch.bfloat16))
    done = uniepc("run", example, *DIMS, "--inputs", path, "--json")
    assert done.exit_code == 1
    assert "NaN" not in done.stdout
    assert json.loads(done.stdout)["results"][0]["relative_error"] is None
    assert "not a number" in uniepc("run", example, *DIMS, "--inputs", path).stdout


def test_a_target_that_is_not_here(uniepc, example):
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    for target in ("cuda", "sm_90"):
        done = uniepc("run", example, *DIMS[:2], "--target", target)
        assert done.exit_code == 2
        assert "PyTorch sees no GPU" in done.stderr


EXAMPLES = sorted(path.name for path in (Path(__file__).parents[3] / "examples").glob("*.uniep"))


IN_EVERY_DTYPE = ("qwen3_moe.uniep", "gpt_oss.uniep")


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        pytest.param(name, dtype, marks=[pytest.mark.long] if dtype != "bf16" and name not in IN_EVERY_DTYPE else [])
        for name in EXAMPLES
        for dtype in ("bf16", "f16", "f32")
    ],
)
def test_every_example_in_every_dtype_on_one_rank_and_on_two(uniepc, example, name, dtype):
    path = example.with_name(name)
    known = {"H": 32, "R": 24, "I": 16, "N": 48, "E": 4, "K": 2}
    dims = ",".join(f"{dim}={known[dim]}" for dim in dims_to_bind(lower(parse_file(path))))
    options = ("--dims", dims, "--target", "cpu", "--tokens", 11, "--dtype", dtype, "--json")
    one, two = (results(uniepc("run", path, *options, *ranks)) for ranks in ((), ("--ranks", 2)))
    assert [result["sha256"] for result in one] == [result["sha256"] for result in two]
    assert {result["dtype"] for result in one} == {{"bf16": "bfloat16", "f16": "float16", "f32": "float32"}[dtype]}


def test_results_without_a_name_are_told_apart(uniepc, tmp_path):
    (path := tmp_path / "counted.uniep").write_text(
        "uniep 1\nmoe counted(x : bf16[T, H], ids : i32[T, K], w : bf16[E, H, H]) -> bf16[T, H], i32[E] {\n"
        "    r = route(ids)\n    return combine(group_gemm(dispatch(x, r), w)), counts(r)\n}\n"
    )
    options = ("--dims", "H=16,E=8,K=3", "--target", "cpu", "--tokens", 17, "--json")
    for ranks in ((), ("--ranks", 3)):
        out, counts = results(uniepc("run", path, *options, *ranks))
        assert {out["name"], counts["name"]} == {"out", "out_2"}
        assert (counts["shape"], counts["relative_error"], counts["tolerance"]) == ([8], 0.0, 0.0)


# -- inputs from a file ------------------------------------------------------------------------------------------------


def test_tensors_of_a_file_stand_for_parameters(uniepc, example, save):
    path = save(x=torch.zeros(7, 32, dtype=torch.bfloat16))
    done = uniepc("run", example, *DIMS[:-2], "--inputs", path, "--json")
    (out,) = results(done)
    assert json.loads(done.stdout)["tokens"] == 7
    assert (out["shape"], out["relative_error"]) == ([7, 32], 0.0)
    split = results(uniepc("run", example, *DIMS[:-2], "--inputs", path, "--ranks", 2, "--json"))
    assert split[0]["sha256"] == out["sha256"]


def test_a_file_that_does_not_fit(uniepc, example, save, tmp_path):
    cases = {
        "`xx`, but `qwen3_moe` has no such parameter": {"xx": torch.zeros(7, 32, dtype=torch.bfloat16)},
        "`w2` has shape [4, 32, 8], but has to be [4, 32, 16]": {"w2": torch.zeros(4, 32, 8, dtype=torch.bfloat16)},
        "`x` is float32, but the program says bf16[T, H]": {"x": torch.zeros(9, 32)},
        "--tokens is 9, but": {"x": torch.zeros(7, 32, dtype=torch.bfloat16)},
        "expert id 4 of token 0": {"experts": torch.full((9, 2), 4, dtype=torch.int32)},
    }
    for message, tensors in cases.items():
        done = uniepc("run", example, *DIMS, "--inputs", save(**tensors))
        assert done.exit_code == 2
        assert message in done.stderr
    for path, reason in ((tmp_path / "none", "o such file"), (example, "cannot read"), (tmp_path, "cannot read")):
        done = uniepc("run", example, *DIMS, "--inputs", path)
        assert done.exit_code == 2
        assert reason in done.stderr


def test_safetensors_may_be_missing(uniepc, example, tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "safetensors", None)
    done = uniepc("run", example, *DIMS, "--inputs", tmp_path / "none")
    assert done.exit_code == 2
    assert "pip install safetensors" in done.stderr


def test_a_cache_that_is_not_used_is_a_warning_with_a_mend(uniepc, example, tmp_path, monkeypatch):
    (folder := tmp_path / "open").mkdir()
    folder.chmod(0o777)
    monkeypatch.setenv("UNIEP_CACHE_DIR", str(folder))
    monkeypatch.setattr("uniep_compiler.runtime.modules._loaded", {})
    monkeypatch.setattr("uniep_compiler.runtime.modules._warned", set())
    done = uniepc("run", example, *DIMS)
    assert done.exit_code == 0
    assert done.stderr.startswith("warning: can't keep generated kernels in the cache")
    assert f"`chmod go-w {folder}` mends it" in done.stderr


def test_unnamed_results_have_the_names_of_their_buffers(uniepc, tmp_path):
    (path := tmp_path / "two.uniep").write_text(
        "uniep 1\nmoe two(x : bf16[T, H], ids : i32[T, K], v : f32[T, K], w : bf16[E, H, H])"
        " -> bf16[T, H], f32[T, H] {\n    y = group_gemm(dispatch(x, ids), w)\n"
        "    return combine(y, v), combine(y)\n}\n"
    )
    dims = ("--dims", "H=32,E=4,K=2", "--target", "cpu")
    done = results(uniepc("run", path, *dims, "--tokens", 5, "--json"))
    assert [(result["name"], result["dtype"]) for result in done] == [("out", "bfloat16"), ("out_2", "float32")]
    built = json.loads(uniepc("compile", path, *dims, "--json").stdout)["buffers"]
    outputs = [(buffer["name"], buffer["dtype"]) for buffer in built if buffer["kind"] == "output"]
    assert sorted(outputs) == [("out", "bf16"), ("out_2", "f32")]
