from __future__ import annotations

import pytest

from uniep_compiler.ir.types import Dim, DType, RowsType, TensorType

H, I = Dim.of("H"), Dim.of("I")  # noqa: E741 - the language's names


@pytest.mark.parametrize(
    ("dim", "text"),
    [
        (Dim(), "0"),
        (Dim(constant=-3), "-3"),
        (I.times(2), "2*I"),
        (I.times(-1).plus(Dim(constant=1)), "-I + 1"),
        (I.times(2).plus(H).plus(Dim(constant=-1)), "H + 2*I - 1"),
        (H.plus(I.times(-3)), "H - 3*I"),
    ],
)
def test_a_dim_prints_and_reads_back(dim, text):
    assert str(dim) == text
    assert Dim.parse(text) == dim


@pytest.mark.parametrize("text", ["", "2 I", "H*2", "H + ", "H * I", "2**I", "1.5", "a b"])
def test_other_text_is_no_dim(text):
    with pytest.raises(ValueError, match="not a dim"):
        Dim.parse(text)


def test_equal_dims_are_equal_however_they_are_made():
    assert H.plus(I) == I.plus(H)
    assert H.plus(H.times(-1)) == Dim()
    assert len({H.times(2), H.plus(H)}) == 1


def test_binding_replaces_names():
    dim = H.plus(I.times(2)).plus(Dim(constant=1))
    assert dim.bind({"I": 4}) == H.plus(Dim(constant=9))
    assert dim.bind({"I": 4, "H": 2}) == Dim(constant=11)
    assert dim.value({"I": 4, "H": 2}) == 11
    with pytest.raises(KeyError):
        dim.value({"I": 4})


def test_a_half_is_a_dim_only_if_all_parts_are_even():
    assert I.times(2).plus(Dim(constant=4)).half() == I.plus(Dim(constant=2))
    assert I.half() is None
    assert I.times(2).plus(Dim(constant=1)).half() is None


def test_a_name_is_only_the_dim_itself():
    assert H.name == "H"
    assert [dim.name for dim in (H.times(2), H.plus(I), Dim(constant=3))] == [None] * 3


def test_types_print_as_programs_write_them():
    assert str(TensorType(dtype=DType.BF16, shape=(Dim.of("T"), I.times(2)))) == "bf16[T, 2*I]"
    assert str(RowsType(dtype=DType.F32, routes="r", shape=())) == "f32[rows(r)]"
