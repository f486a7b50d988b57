# SPDX-License-Identifier: Apache-2.0
"""What has gone wrong with values in other NVFP4 libraries, as right values here. Numbers are those of the bug list."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import blockscale as bs
from tests.bits import assert_bits_equal, assert_same_operand, from_bits, from_hex
from tests.inputs import DTYPES, FORMATS, LINEAR, SWIZZLED

NAN, INF = float("nan"), float("inf")
NAN_AMAX = from_bits(0x7FC00000).view(())
LAYOUTS = pytest.mark.parametrize("layout", [LINEAR, SWIZZLED], ids=str)
EVERY_FORMAT = pytest.mark.parametrize("fmt", FORMATS.values(), ids=FORMATS)
TENSOR_SCALED = {name: fmt for name, fmt in FORMATS.items() if "scaling" not in fmt}


def scales(op: Any) -> torch.Tensor:
    """Bytes of the block scales, LINEAR, on the CPU."""
    return bs.unswizzle_scales(op).block_scale.view(torch.uint8).cpu()


def casts(x: torch.Tensor, **keywords: Any) -> list[Any]:
    """x in both orientations where its rows allow, alone and in one read."""
    made = [bs.quantize(x, **keywords)]
    if len(x) % 16 == 0:
        made += [bs.quantize(x, orientation="columnwise", **keywords), *bs.quantize_both(x, **keywords)]
    return made


@LAYOUTS
@EVERY_FORMAT
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_bug_01_whole_tensor_is_zero(dtype: Any, fmt: dict[str, Any], layout: Any, device: torch.device) -> None:
    x = torch.zeros(32, 64, dtype=dtype, device=device)
    for q in casts(x, layout=layout, **fmt):
        assert (q.qdata == 0).all()
        assert (q.block_scale.view(torch.uint8) == 0).all()
        assert_bits_equal(q.amax, torch.zeros(q.amax.shape), "amax")
        assert_bits_equal(bs.dequantize(q), torch.zeros(q.shape), "values")
    w = bs.quantize(torch.randn(16, 64, device=device), **fmt)
    d = bs.gemm(bs.quantize(x, layout=layout, **fmt), w, bias=torch.ones(16, device=device))
    assert_bits_equal(d, torch.ones(32, 16, dtype=torch.bfloat16), "d is exactly the bias")


@LAYOUTS
@pytest.mark.parametrize("e4m3_max", [448, 256])
def test_bug_02_one_zero_row(e4m3_max: int, layout: Any, device: torch.device) -> None:
    x = torch.zeros(3, 16)
    x[0], x[2] = 1, -3
    q = bs.quantize(x.to(device), scaling="row", e4m3_max=e4m3_max, layout=layout)
    assert_bits_equal(q.amax, torch.tensor([1.0, 0.0, 3.0]), "amax")
    assert scales(q).flatten().tolist() == ([0x7E, 0, 0x7E] if e4m3_max == 448 else [0x78, 0, 0x78])
    assert_bits_equal(bs.dequantize(q), x, "values")
    w = bs.quantize(torch.ones(4, 16, device=device))
    d = bs.gemm(q, w, bias=torch.arange(4.0, device=device), out_dtype=torch.float32)
    assert_bits_equal(d[1], torch.arange(4.0), "the zero row is the bias")
    tall = torch.zeros(16, 48)
    tall[:, 0], tall[:, 2] = 1, -3
    column = bs.quantize(tall.to(device), scaling="row", orientation="columnwise", e4m3_max=e4m3_max, layout=layout)
    assert_bits_equal(bs.dequantize(column), tall.T.contiguous(), "columnwise values")


@pytest.mark.parametrize("value", [1e-3, 1e-30, 3e38, 1.0])
@pytest.mark.parametrize("fmt", TENSOR_SCALED.values(), ids=TENSOR_SCALED)
def test_bug_03_zero_block_in_a_tensor(fmt: dict[str, Any], value: float, device: torch.device) -> None:
    x = torch.zeros(16, 32)
    x[:, 16:] = value
    for q in casts(x.to(device), **fmt):
        y = bs.dequantize(q).cpu()
        y = y.T if q.orientation == "columnwise" else y
        assert_bits_equal(y[:, :16].contiguous(), x[:, :16].contiguous(), "the zero block")
        torch.testing.assert_close(y[:, 16:], x[:, 16:], rtol=2.0**-22, atol=0)
        assert set(scales(q).flatten().tolist()) == {0, 0x78 if fmt.get("e4m3_max") == 256 else 0x7E}


@LAYOUTS
def test_bug_05_block_scale_underflows(layout: Any, device: torch.device) -> None:
    x = torch.zeros(2, 32)
    x[:, 16] = 1.0
    x[0, :2] = torch.tensor([2.0e-6, -1.0e-6])
    x[1, :2] = torch.tensor([2.2e-6, -1.1e-6])
    q = bs.quantize(x.to(device), amax=torch.tensor(1.0, device=device), layout=layout)
    assert scales(q).tolist() == [[0x00, 0x7E], [0x01, 0x7E]]
    codes = from_hex("F7" + "00" * 7 + "07" + "00" * 7 + "B5" + "00" * 7 + "07" + "00" * 7, 2, 16)
    assert_bits_equal(q.qdata, codes, "qdata")
    y = bs.dequantize(q).cpu()
    assert (y[0, :16] == 0).all()
    torch.testing.assert_close(y[1, :2], torch.tensor([2.1798e-6, -1.0899e-6]), rtol=1e-4, atol=0)
    assert_bits_equal(y[:, 16:].contiguous(), x[:, 16:].contiguous(), "block 1")
    w = torch.zeros(8, 32)
    w[:, :16] = 1.0
    d = bs.gemm(q, bs.quantize(w.to(device)), out_dtype=torch.float32).cpu()
    assert_bits_equal(d[0], torch.zeros(8), "a block of scale 00 contributes nothing")
    torch.testing.assert_close(d[1], torch.full((8,), 1.0899e-6), rtol=1e-4, atol=0)


@LAYOUTS
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("value", [NAN, -NAN, INF, -INF])
@pytest.mark.parametrize("fmt", TENSOR_SCALED.values(), ids=TENSOR_SCALED)
def test_bug_09_10_own_amax_takes_the_tensor(
    fmt: dict[str, Any], value: float, dtype: Any, layout: Any, device: torch.device
) -> None:
    x = torch.ones(16, 32, dtype=dtype, device=device)
    x[0, 3] = value
    for q in casts(x, layout=layout, **fmt):
        assert_bits_equal(q.amax, torch.tensor(abs(value)) if abs(value) == INF else NAN_AMAX, "amax")
        assert (scales(q) == 0x7F).all()
        assert (q.qdata == 0x77).all()
        for out in DTYPES:
            assert bs.dequantize(q, out).isnan().all()


@LAYOUTS
@pytest.mark.parametrize("value", [NAN, INF, -INF])
@pytest.mark.parametrize("rows", [1, 16])
def test_bug_09_10_given_amax_takes_the_block(rows: int, value: float, layout: Any, device: torch.device) -> None:
    x = torch.ones(32, 32, device=device)
    x[0, 3] = value
    q = bs.quantize(x, block=(rows, 16), amax=torch.tensor(1.0, device=device), layout=layout)
    expected = torch.ones(32, 32)
    expected[:rows, :16] = NAN
    assert_bits_equal(bs.dequantize(q), expected, "values", nan_equal=True)
    assert_bits_equal(q.amax, torch.tensor(1.0), "amax")
    wanted = torch.full((32, 2), 0x7E, dtype=torch.uint8)
    wanted[:rows, 0] = 0x7F
    assert_bits_equal(scales(q), wanted, "block_scale")
    assert (q.qdata == 0x77).all()


@LAYOUTS
@pytest.mark.parametrize("value", [NAN, INF, -INF])
def test_bug_09_10_row_scaling_takes_the_row(value: float, layout: Any, device: torch.device) -> None:
    x = torch.ones(16, 32, device=device)
    x[0, 3] = value
    q = bs.quantize(x, scaling="row", layout=layout)
    expected = torch.ones(16, 32)
    expected[0] = NAN
    assert scales(q).tolist() == [[0x7F] * 2] + [[0x7E] * 2] * 15
    assert (q.qdata == 0x77).all()
    assert_bits_equal(bs.dequantize(q), expected, "values", nan_equal=True)
    column = bs.quantize(x, scaling="row", orientation="columnwise", layout=layout)
    expected = torch.ones(32, 16)
    expected[3] = NAN
    assert_bits_equal(bs.dequantize(column), expected, "columnwise values", nan_equal=True)
    d = bs.gemm(q, bs.quantize(torch.ones(8, 32, device=device)), out_dtype=torch.float32).cpu()
    assert d[0].isnan().all()
    assert (d[1:] == 32).all()


@EVERY_FORMAT
@pytest.mark.parametrize("value", [NAN, INF, -INF])
def test_bug_09_nonfinite_raise(value: float, fmt: dict[str, Any], device: torch.device) -> None:
    x = torch.ones(16, 32, device=device)
    assert_same_operand(bs.quantize(x, nonfinite="raise", **fmt), bs.quantize(x, **fmt))
    x[2, 5] = value
    x[9, 31] = value
    for name, call in (("quantize", bs.quantize), ("quantize_both", bs.quantize_both)):
        message = rf"^{name}: x must be finite with nonfinite='raise'; got 2 .*first at \(2, 5\)"
        with pytest.raises(ValueError, match=message):
            call(x, nonfinite="raise", **fmt)


def test_bug_11_ties_go_to_the_even_code(device: torch.device) -> None:
    t = torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, 6.0])
    for fmt in ({}, {"block": (16, 16)}, {"scaling": "row"}):
        for dtype in DTYPES:
            x = torch.zeros(1, 32, dtype=dtype)
            x[0, :8], x[0, 8:16], x[0, 16] = t, -t, 2688.0
            q = bs.quantize(x.to(device), **fmt)
            assert scales(q).tolist() == [[0x38, 0x7E]]
            assert_bits_equal(q.qdata[:, :8], from_hex("20 42 64 76 A8 CA EC FE", 1, 8), "qdata")


def test_bug_13_multiply_by_the_rounded_reciprocal(device: torch.device) -> None:
    x = torch.zeros(1, 32)
    x[0, 16], x[0, 0], x[0, 1] = 2688.0, 0.02392577938735485, 0.08203125
    for fmt in ({}, {"block": (16, 16)}, {"scaling": "row"}):
        q = bs.quantize(x.to(device), **fmt)
        assert scales(q)[0, 0] == 0x07
        assert int(q.qdata[0, 0]) == 0x74  # division would give 73


@EVERY_FORMAT
def test_bug_13_quantized_data_lands_on_boundaries(fmt: dict[str, Any], device: torch.device) -> None:
    """Quantizing what was decoded, with the same amax, changes no value: the grid is a fixed point."""
    gen = torch.Generator().manual_seed(13)
    q = bs.quantize(torch.randn(144, 464, generator=gen).to(device), **fmt)
    y = bs.dequantize(q)
    again = bs.quantize(y, amax=q.amax, **fmt)
    torch.testing.assert_close(bs.dequantize(again), y, rtol=2.0**-22, atol=0)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@EVERY_FORMAT
def test_bug_15_negative_zero(fmt: dict[str, Any], dtype: Any, device: torch.device) -> None:
    x = torch.zeros(16, 16, dtype=dtype)
    x[:, 0], x[:, 1], x[:, 2] = -0.0, -0.01, 1.0
    q = bs.quantize(x.to(device), **fmt)
    assert_bits_equal(q.qdata, from_hex("88 07 00 00 00 00 00 00", 1, 8).repeat(16, 1), "qdata")
    y = bs.dequantize(q).cpu()
    assert (y[:, :2] == 0).all()
    assert y[:, :2].signbit().all()
    assert not y[:, 2:].signbit().any()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64, torch.int32], ids=str)
def test_bug_17_amax_of_another_dtype_is_never_reinterpreted(dtype: Any, device: torch.device) -> None:
    x = torch.randn(32, 64, device=device).bfloat16()
    amax = x.abs().max()
    narrow = f"amax must be float32; got {dtype}"
    with pytest.raises(TypeError, match=f"^quantize: {narrow}"):
        bs.quantize(x, amax=amax.to(dtype))
    with pytest.raises(TypeError, match=f"^quantize_both: {narrow}"):
        bs.quantize_both(x, amax=amax.to(dtype))
    with pytest.raises(TypeError, match=f"^quantize: {narrow}"):
        bs.quantize(x, scaling="row", amax=bs.amax(x, "row").to(dtype))
    with pytest.raises(TypeError, match=rf"^quantize_both: amax\[1\] must be float32; got {dtype}"):
        bs.quantize_both(x, scaling="row", amax=(bs.amax(x, "row"), bs.amax(x, "column").to(dtype)))
    assert_same_operand(bs.quantize(x, amax=amax.float()), bs.quantize(x))


def test_bug_20_stochastic_rounding_is_never_zeros(device: torch.device) -> None:
    x = torch.randn(256, 256, device=device).bfloat16()
    for name, call in (("quantize", bs.quantize), ("quantize_both", bs.quantize_both)):
        for seed in (1, None):
            message = rf'^{name}: rounding must be "nearest" on {device.type}.* got "stochastic"'
            with pytest.raises(NotImplementedError, match=message):
                call(x, rounding="stochastic", seed=seed)


@LAYOUTS
def test_amax_given_as_a_float_is_the_tensor(layout: Any, device: torch.device) -> None:
    x = torch.randn(16, 32, device=device)
    for value in (0.0, 1e-40, 0.7, 1, 3.4e38):
        second = torch.tensor(float(value), device=device)
        assert_same_operand(bs.quantize(x, amax=value, layout=layout), bs.quantize(x, amax=second, layout=layout))
