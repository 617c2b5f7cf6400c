from __future__ import annotations

from textwrap import dedent

import pytest

from uniep_compiler.diagnostics import UniepError
from uniep_compiler.ir.ops import Op, OpGraph, Value
from uniep_compiler.ir.ops_text import print_ops, read_ops
from uniep_compiler.ir.types import Dim, DType, TensorType

TEXT = dedent(
    """\
    graph m {
        param x : bf16[T, H]
        param r : routes[T, K, E]
        where H % 16 == 0
        xs : bf16[rows(r), H] = dispatch(x, r)
        a : bf16[rows(r), I], b : bf16[rows(r), I] = split(xs) {how = "halves"}
        _1 : f32[] = const() {value = -0.5}
        _2 : f32[rows(r)] = made_up(a, b, _1) {flag = true, n = 3, dtype = bf16, text = "a, \\"b\\" = 1"}
        sink(_2)
        return xs, r
    }
    """
)


def test_a_text_is_read_and_printed_the_same():
    assert print_ops(read_ops(TEXT)) == TEXT


def test_what_is_read_has_its_place_in_the_text():
    graph = read_ops(TEXT)
    assert [str(op.span) for op in graph.ops][:2] == ["5:5", "6:5"]
    assert dict(graph.ops[3].attrs) == {"flag": True, "n": 3, "dtype": DType.BF16, "text": 'a, "b" = 1'}
    assert graph.ops[4] == Op(kind="sink", operands=("_2",), results=())


def test_a_graph_without_results_prints_and_reads_back():
    x = Value(name="x", type=TensorType(dtype=DType.F32, shape=(Dim.of("T"),)))
    graph = OpGraph(name="nothing", params=(x,), values=(), ops=(), results=())
    assert read_ops(print_ops(graph)) == graph


@pytest.mark.parametrize(
    ("line", "instead"),
    [
        ("graph m {", "graph m"),
        ("param x : bf16[T, H]", "param x : bf17[T, H]"),
        ("param x : bf16[T, H]", "param x : bf16[T, H*K]"),
        ("param r : routes[T, K, E]", "param r : routes[T, K]"),
        ("xs : bf16[rows(r), H] = dispatch(x, r)", "xs = dispatch(x, r)"),
        ("xs : bf16[rows(r), H] = dispatch(x, r)", "xs : bf16[rows(r), H] = dispatch x, r"),
        ("a : bf16[rows(r), I], b", "a : bf16[rows(r), I] b"),
        ('{how = "halves"}', "{how = halves}"),
        ('{how = "halves"}', "{how}"),
        ("{value = -0.5}", "{value = }"),
        ("return xs, r", "return xs, r\n    sink(xs)"),
        ("return xs, r\n", ""),
        ("}\n", ""),
        ("\n}\n", "\n}\n}\n"),
    ],
)
def test_other_text_is_refused_with_its_line(line, instead):
    assert line in TEXT
    with pytest.raises(UniepError) as caught:
        read_ops(TEXT.replace(line, instead, 1))
    assert caught.value.codes == ("UEP0111",)
    assert "--> <ops>:" in str(caught.value)


def test_no_text_is_refused():
    with pytest.raises(UniepError):
        read_ops("")
