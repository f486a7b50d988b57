# SPDX-License-Identifier: Apache-2.0
"""Laws that casts of the reference obey on random data; the exact bytes are in test_tables.py. numerics, 2 to 7."""

from typing import Any

import pytest
import torch

from blockscale import reference as ref
from blockscale.formats import ScaleLayout
from blockscale.operand import NVFP4Operand
from blockscale.reference.codes import pack, unpack
from tests.bits import assert_bits_equal, assert_same_operand

INF = float("inf")
NAN = float("nan")

FORMATS: tuple[dict[str, Any], ...] = (
    {},
    {"e4m3_max": 256},
    {"scaling": "row"},
    {"block": (16, 16)},
    {"four_over_six": "mae"},
    {"four_over_six": "mse", "e4m3_max": 256},
    {"four_over_six": "mse", "scaling": "row"},
    {"four_over_six": "mae", "block": (16, 16), "e4m3_max": 256},
    {"four_over_six": "mse", "block": (16, 16)},
)


def data(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Normal values whose rows differ in magnitude by up to 2^12."""
    gen = torch.Generator().manual_seed(seed)
    x = torch.randn(shape, generator=gen)
    return (x * 2.0 ** torch.randint(-6, 7, (*shape[:-1], 1), generator=gen)).to(dtype)


def rowwise(op: NVFP4Operand) -> NVFP4Operand:
    """The same fields with orientation="rowwise", to compare a columnwise operand with that of the transpose."""
    return NVFP4Operand(op.qdata, op.block_scale, op.amax, op.shape, op.layout, op.format, "rowwise")


def is_tiled(fmt: dict[str, Any]) -> bool:
    return fmt.get("block") == (16, 16)


@pytest.mark.parametrize("layout", ScaleLayout)
@pytest.mark.parametrize("fmt", [fmt for fmt in FORMATS if not is_tiled(fmt)], ids=str)
def test_columnwise_is_rowwise_of_the_transpose(fmt: dict[str, Any], layout: ScaleLayout) -> None:
    x = data(32, 80)
    columnwise = ref.quantize(x, orientation="columnwise", layout=layout, **fmt)
    assert columnwise.orientation == "columnwise"
    assert_same_operand(rowwise(columnwise), ref.quantize(x.T, layout=layout, **fmt))


@pytest.mark.parametrize("layout", ScaleLayout)
@pytest.mark.parametrize("fmt", [fmt for fmt in FORMATS if is_tiled(fmt)], ids=str)
def test_columnwise_tiles_are_the_transposed_bytes(fmt: dict[str, Any], layout: ScaleLayout) -> None:
    x = data(48, 80)
    columnwise = ref.quantize(x, orientation="columnwise", layout=layout, **fmt)
    row_op = ref.quantize(x, **fmt)
    linear = ref.unswizzle_scales(columnwise).block_scale.view(torch.uint8)
    assert_bits_equal(unpack(columnwise.qdata), unpack(row_op.qdata).T, "codes")
    assert_bits_equal(linear[::16], row_op.block_scale.view(torch.uint8)[::16].T, "tile scales")
    assert_same_operand(ref.transpose(ref.quantize(x, layout=layout, **fmt)), columnwise)
    back = ref.transpose(columnwise)
    assert_same_operand(back, ref.quantize(x, layout=layout, **fmt))
    for field in ("qdata", "block_scale", "amax"):
        assert getattr(back, field).data_ptr() != getattr(columnwise, field).data_ptr()


def test_plain_tiles_of_the_transpose_agree() -> None:
    x = data(48, 80)
    columnwise = ref.quantize(x, block=(16, 16), orientation="columnwise")
    assert_same_operand(rowwise(columnwise), ref.quantize(x.T, block=(16, 16)))


@pytest.mark.parametrize("fmt", FORMATS, ids=str)
def test_quantize_both_is_two_calls(fmt: dict[str, Any]) -> None:
    x = data(32, 48, dtype=torch.bfloat16)
    row_op, column_op = ref.quantize_both(x, **fmt)
    assert_same_operand(row_op, ref.quantize(x, **fmt))
    assert_same_operand(column_op, ref.quantize(x, orientation="columnwise", **fmt))


def test_quantize_both_with_given_amaxes() -> None:
    x = data(32, 48)
    both = ref.quantize_both(x, amax=3.0)
    assert [float(op.amax) for op in both] == [3.0, 3.0]
    assert [float(op.amax) for op in ref.quantize_both(x, amax=3.0, columnwise_amax=5.0)] == [3.0, 5.0]
    rows, columns = torch.rand(32) + 1, torch.rand(48) + 1
    row_op, column_op = ref.quantize_both(x, scaling="row", amax=rows, columnwise_amax=columns)
    assert_same_operand(row_op, ref.quantize(x, scaling="row", amax=rows))
    assert_same_operand(column_op, ref.quantize(x, scaling="row", amax=columns, orientation="columnwise"))
    with pytest.raises(ValueError, match="quantize_both: columnwise_amax must be None"):
        ref.quantize_both(x, block=(16, 16), columnwise_amax=1.0)


@pytest.mark.parametrize("fmt", [{}, {"e4m3_max": 256}, {"four_over_six": "mse"}], ids=str)
def test_row_scaling_is_each_row_alone(fmt: dict[str, Any]) -> None:
    x = data(9, 64)
    x[4] = 0
    x[7, 5] = NAN
    op = ref.quantize(x, scaling="row", **fmt)
    for m in range(len(x)):
        alone = ref.quantize(x[m : m + 1], **fmt)
        assert_bits_equal(op.qdata[m : m + 1], alone.qdata, f"codes of row {m}")
        assert_bits_equal(op.block_scale[m : m + 1], alone.block_scale, f"scales of row {m}")
        assert_bits_equal(op.amax[m], alone.amax, f"amax of row {m}")


@pytest.mark.parametrize("m", [1, 16, 17, 31])
@pytest.mark.parametrize("measure", [None, "mae", "mse"])
def test_short_tile_is_one_with_rows_of_zeros(m: int, measure: Any) -> None:
    x = data(m, 48)
    full = torch.zeros(32, 48)
    full[:m] = x
    op, padded = (ref.quantize(v, block=(16, 16), four_over_six=measure) for v in (x, full))
    assert_bits_equal(op.qdata, padded.qdata[:m], "codes")
    assert_bits_equal(op.block_scale, padded.block_scale[:m], "scales")


def test_tile_scale_is_that_of_its_largest_element() -> None:
    x = data(32, 64)
    tiles = x.view(2, 16, 4, 16).abs().amax(dim=(1, 3))
    op = ref.quantize(x, block=(16, 16))
    from_maxima = ref.quantize(tiles.repeat_interleave(16, dim=1), amax=op.amax)
    assert_bits_equal(op.block_scale.view(torch.uint8)[::16], from_maxima.block_scale.view(torch.uint8), "tile scales")
    assert_bits_equal(op.block_scale[3], op.block_scale[0], "rows of a tile")


@pytest.mark.parametrize("value", [NAN, INF, -INF])
@pytest.mark.parametrize("fmt", [fmt for fmt in FORMATS if fmt.get("scaling") != "row"], ids=str)
def test_non_finite_value_stays_in_its_block(fmt: dict[str, Any], value: float) -> None:
    x = data(32, 64)
    clean = ref.dequantize(ref.quantize(x, amax=100.0, **fmt))
    x[18, 20] = value
    op = ref.quantize(x, amax=100.0, **fmt)
    y = ref.dequantize(op)
    rows = slice(16, 32) if is_tiled(fmt) else slice(18, 19)
    assert y[rows, 16:32].isnan().all()
    assert (unpack(op.qdata)[rows, 16:32] == 7).all()
    y[rows, 16:32] = clean[rows, 16:32]
    assert_bits_equal(y, clean, "other blocks")


@pytest.mark.parametrize("fmt", FORMATS, ids=str)
@pytest.mark.parametrize("value", [NAN, INF])
def test_own_amax_carries_a_non_finite_value_to_everything_it_scales(fmt: dict[str, Any], value: float) -> None:
    x = data(32, 64)
    x[18, 20] = value
    op = ref.quantize(x, **fmt)
    y = ref.dequantize(op)
    hit = torch.zeros(32, 64, dtype=torch.bool)
    hit[18 if fmt.get("scaling") == "row" else slice(None)] = True
    assert torch.equal(y.isnan(), hit)
    assert not y.isinf().any()


@pytest.mark.parametrize("fmt", FORMATS, ids=str)
def test_power_of_two_moves_into_the_amax(fmt: dict[str, Any]) -> None:
    x = data(32, 64)
    op, moved = ref.quantize(x, **fmt), ref.quantize(x * 2.0**20, **fmt)
    assert_bits_equal(moved.qdata, op.qdata, "codes")
    assert_bits_equal(moved.block_scale, op.block_scale, "scales")
    assert_bits_equal(moved.amax, op.amax * 2.0**20, "amax")


@pytest.mark.parametrize("fmt", FORMATS, ids=str)
@pytest.mark.parametrize("orientation", ["rowwise", "columnwise"])
def test_views_are_as_their_copies(fmt: dict[str, Any], orientation: Any) -> None:
    base = data(64, 130)
    for view in (base[3:35, 1:97], base[::2, 2:50], base[:, ::2][:48, :32].T, base[:1, :32].expand(16, 32)):
        assert not view.is_contiguous()
        op = ref.quantize(view, orientation=orientation, **fmt)
        assert_same_operand(op, ref.quantize(view.contiguous(), orientation=orientation, **fmt))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_16_bit_inputs_are_widened(dtype: torch.dtype) -> None:
    x = data(16, 48, dtype=dtype)
    assert_same_operand(ref.quantize(x), ref.quantize(x.float()))
    tiny = torch.full((1, 16), 2.0**-24 if dtype is torch.float16 else 2.0**-133, dtype=dtype)
    assert_same_operand(ref.quantize(tiny), ref.quantize(tiny.float()))
    assert float(ref.quantize(tiny).amax) > 0


@pytest.mark.parametrize("fmt", FORMATS, ids=str)
def test_leading_sizes_are_rows(fmt: dict[str, Any]) -> None:
    x = data(2, 8, 48)
    op, flat = ref.quantize(x, **fmt), ref.quantize(x.view(16, 48), **fmt)
    assert op.shape == (2, 8, 48)
    assert_bits_equal(op.qdata, flat.qdata, "codes")
    assert_bits_equal(op.block_scale, flat.block_scale, "scales")
    assert_bits_equal(ref.dequantize(op), ref.dequantize(flat).view(2, 8, 48), "dequantize")
    column_op, flat_column_op = (ref.quantize(v, orientation="columnwise", **fmt) for v in (x, x.view(16, 48)))
    assert_same_operand(column_op, flat_column_op)


def test_stored_amax_is_a_copy() -> None:
    x = data(16, 32)
    for given in (torch.tensor(8.0), torch.tensor([8.0])):
        op = ref.quantize(x, amax=given)
        given.fill_(1.0)
        assert op.amax.shape == ()
        assert float(op.amax) == 8.0


def test_amax_of_rows_and_columns() -> None:
    x = data(6, 5)
    x[2, 3], x[4, 1] = NAN, -INF
    rows, columns = ref.amax(x, "row"), ref.amax(x, "column")
    assert [rows.shape, columns.shape, ref.amax(x).shape] == [(6,), (5,), ()]
    assert rows.isnan().nonzero().tolist() == [[2]]
    assert columns.isinf().nonzero().tolist() == [[1]]
    assert_bits_equal(rows[[0, 1, 3, 5]], x.abs().amax(1)[[0, 1, 3, 5]], "rows")
    assert_bits_equal(ref.amax(x.view(2, 3, 5), "row"), rows, "leading sizes")
    for shape in ((0, 32), (32, 0)):
        assert [ref.amax(torch.ones(shape), s).tolist() for s in ("row", "column")] == [[0.0] * n for n in shape]
        assert float(ref.amax(torch.ones(shape))) == 0


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_dequantize_rounds_once_more(dtype: torch.dtype) -> None:
    op = ref.quantize(data(16, 64))
    assert_bits_equal(ref.dequantize(op, dtype), ref.dequantize(op).to(dtype), str(dtype))


def test_dequantize_of_large_and_special_amaxes() -> None:
    qdata = pack(torch.arange(16, dtype=torch.uint8)[None])
    scale = torch.full((1, 1), 0x7E, dtype=torch.uint8)

    def decoded(amax: float, byte: int = 0x7E, dtype: torch.dtype = torch.float32) -> list[float]:
        op = NVFP4Operand(qdata, torch.full_like(scale, byte), torch.tensor(amax), (1, 16))
        return ref.dequantize(op, dtype)[0].tolist()

    assert decoded(3e38)[7] == pytest.approx(3e38, rel=1e-6)  # val(s) * amax alone overflows
    assert decoded(3e38, dtype=torch.float16)[7] == INF
    assert all(value != value for value in decoded(NAN) + decoded(1.0, 0x7F))
    inf = decoded(INF)
    assert inf[1] == INF
    assert inf[9] == -INF
    assert inf[0] != inf[0]
    assert all(value != value for value in decoded(INF, 0x00))


def test_decoded_values_do_not_depend_on_the_layout() -> None:
    x = data(130, 80)
    linear, swizzled = (ref.quantize(x, scaling="row", layout=layout) for layout in ScaleLayout)
    assert_bits_equal(ref.dequantize(swizzled), ref.dequantize(linear), "dequantize")


@pytest.mark.parametrize("measure", ["mae", "mse"])
def test_four_over_six_is_no_worse_than_six(measure: Any) -> None:
    x = data(64, 64)
    amax = ref.amax(x)
    choice = ref.quantize(x, four_over_six=measure, e4m3_max=256)
    six = ref.quantize(x, e4m3_max=256, amax=amax)
    power = 1 if measure == "mae" else 2

    def error(op: NVFP4Operand) -> torch.Tensor:
        return ((ref.dequantize(op) - x).abs().double() ** power).view(64, 4, 16).sum(dim=2)

    assert (error(choice) <= error(six) * (1 + 1e-5)).all()
    assert (error(choice) < error(six)).sum() > 20


def test_raise_names_count_and_first_index() -> None:
    x = torch.ones(4, 32)
    x[2, 7], x[3, 1] = NAN, INF
    with pytest.raises(ValueError, match=r"2 bad of 128 elements, the first nan at \(2, 7\)"):
        ref.quantize(x, nonfinite="raise")
    assert_same_operand(ref.quantize(x[:2], nonfinite="raise"), ref.quantize(x[:2]))


def test_flush_to_zero_of_the_caller_changes_nothing() -> None:
    x = torch.full((1, 16), 1e-40)
    a = torch.full((1, 16), 2.0**-126, dtype=torch.bfloat16)
    one = ref.quantize(torch.full((1, 16), 2.0**-6))

    def run() -> tuple[NVFP4Operand, torch.Tensor, torch.Tensor]:
        op = ref.quantize(x, scaling="row")
        product: Any = ref.gemm(a, one, out_dtype=torch.float32, alpha=1e-39)
        return op, ref.dequantize(op), product

    expected = run()
    assert torch.set_flush_denormal(True)
    try:
        actual = run()
        flushes = bool((torch.full((1,), 2.0**-126) * 0.5 == 0).all())
    finally:
        torch.set_flush_denormal(False)
    assert flushes, "the state of the caller was not put back"
    assert_same_operand(actual[0], expected[0])
    assert expected[0].block_scale.view(torch.uint8).item() == 3
    for left, right in zip(actual[1:], expected[1:], strict=True):
        assert_bits_equal(left, right, "values")
