# SPDX-License-Identifier: Apache-2.0
"""dequantize against FP64 arithmetic on tables typed here, and its exact edges. numerics, section 6."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

import blockscale as bs
from tests.bits import assert_bits_equal, from_bits
from tests.inputs import DTYPES, FORMATS, LINEAR, SWIZZLED, make

INF = float("inf")
NAN = float("nan")
E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


def exact_values(op: Any) -> torch.Tensor:
    """code * scale * amax / N in FP64, from the bytes in LINEAR order; codes and scales by ml_dtypes."""
    codes = torch.stack([op.qdata & 15, op.qdata >> 4], dim=-1).flatten(1).cpu().numpy()
    scale = bs.unswizzle_scales(op).block_scale.view(torch.uint8).cpu().numpy()
    code_values = torch.from_numpy(codes.view(ml_dtypes.float4_e2m1fn).astype(np.float64))
    scale_values = torch.from_numpy(scale.view(ml_dtypes.float8_e4m3fn).astype(np.float64))
    amax = op.amax.cpu().double().view(-1, 1)
    return code_values * scale_values.repeat_interleave(16, dim=1) * amax / op.format.second_level_range


def every_byte_operand(amax: float, layout: Any, e4m3_max: int = 448) -> Any:
    """All 16 codes under each of the scale bytes 00..7E, one row a scale byte."""
    row = torch.tensor([2 * i | (2 * i + 1) << 4 for i in range(8)], dtype=torch.uint8)
    scale = torch.arange(127, dtype=torch.uint8)[:, None]
    second = from_bits(0).view(()) + amax
    op = bs.NVFP4Operand(row.repeat(127, 1), scale, second, (127, 16), format=bs.NVFP4(e4m3_max=e4m3_max))
    return op if layout is LINEAR else bs.swizzle_scales(op)


@pytest.mark.parametrize("layout", [LINEAR, SWIZZLED], ids=str)
@pytest.mark.parametrize("e4m3_max", [448, 256])
@pytest.mark.parametrize("amax", [0.0, 1e-30, 0.37, 1.0, 2688.0, 3e4, 1e36, 3.4e38])
def test_every_code_under_every_scale(amax: float, e4m3_max: int, layout: Any, device: torch.device) -> None:
    op = every_byte_operand(amax, layout, e4m3_max)
    exact = exact_values(op)
    assert exact.isfinite().all()
    for dtype in DTYPES:
        y = bs.dequantize(op.to(device), dtype).cpu()
        # Three FP32 roundings (t, t, y), each half an ulp of what is rounded; then one to the output dtype.
        three = 3 * 2.0**-24 * exact.abs() + 2.0**-149
        lowest, highest = exact - three, exact + three
        narrow_low, narrow_high = (v.to(torch.float32).to(dtype).double() for v in (lowest, highest))
        assert (y.double() >= torch.minimum(narrow_low, narrow_high)).all()
        assert (y.double() <= torch.maximum(narrow_low, narrow_high)).all()
        negative_codes = torch.arange(16).ge(8).expand_as(y)
        assert_bits_equal(y.signbit(), negative_codes, "signs, of zeros too")


@pytest.mark.parametrize("fmt", FORMATS.values(), ids=FORMATS)
def test_random_operands_within_three_half_ulps(
    fmt: dict[str, Any], device: torch.device, gen: torch.Generator
) -> None:
    op = bs.quantize(make("wide", 48, 464, gen).to(device), layout=SWIZZLED, **fmt)
    exact = exact_values(op)
    y = bs.dequantize(op).cpu().double()
    assert ((y - exact).abs() <= 3 * 2.0**-24 * exact.abs() + 2.0**-149).all()
    assert y.abs().max() > 0


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_output_is_rounded_once_from_fp32(dtype: torch.dtype, device: torch.device, gen: torch.Generator) -> None:
    op = bs.quantize(make("wide", 130, 208, gen).to(device), scaling="row")
    assert_bits_equal(bs.dequantize(op, dtype), bs.dequantize(op).to(dtype), "dequantize")


def test_values_do_not_depend_on_the_layout(device: torch.device, gen: torch.Generator) -> None:
    for m, k in ((1, 16), (130, 80), (33, 464)):
        x = make("nonfinite", m, k, gen).to(device)
        linear, swizzled = (bs.quantize(x, scaling="row", layout=layout) for layout in (LINEAR, SWIZZLED))
        assert_bits_equal(bs.dequantize(swizzled), bs.dequantize(linear), "values", nan_equal=True)


def test_quantization_error_is_within_half_a_step(device: torch.device, gen: torch.Generator) -> None:
    """Starts from the high-precision input: the error of an element is below 1/6 + of its block's amax, never more."""
    x = torch.randn(144, 464, generator=gen)
    for fmt in FORMATS.values():
        y = bs.dequantize(bs.quantize(x.to(device), **fmt)).cpu()
        rows = fmt.get("block", (1, 16))[0]
        block = x.abs().view(144 // rows, rows, 29, 16).amax(dim=(1, 3), keepdim=True)
        error = (y - x).abs().view(144 // rows, rows, 29, 16)
        # Step 2 of 6 below the largest code: half is 1/6; the scale is off by at most 1/16 of itself.
        assert (error <= block * (1 / 6 + 1 / 16 + 1e-3)).all()
        assert (error > 0).float().mean() > 0.5


def _one(code: int, byte: int, amax: float) -> Any:
    qdata = torch.full((1, 8), code | code << 4, dtype=torch.uint8)
    return bs.NVFP4Operand(qdata, torch.tensor([[byte]], dtype=torch.uint8), torch.tensor(amax), (1, 16))


@pytest.mark.parametrize(
    ("code", "byte", "amax", "value"),
    [
        (0, 0x38, 2688.0, 0.0),
        (8, 0x38, 2688.0, -0.0),
        (8, 0x7E, 0.0, -0.0),
        (1, 0x38, 2688.0, 0.5),
        (15, 0x38, 2688.0, -6.0),
        (7, 0x7E, 1.0, 1.0),
        (7, 0x00, 3.0e38, 0.0),
        (15, 0x00, 3.0e38, -0.0),
        (7, 0x7F, 1.0, NAN),
        (0, 0x7F, 0.0, NAN),
        (7, 0x7E, NAN, NAN),
        (0, 0x00, NAN, NAN),
        (7, 0x7E, INF, INF),
        (9, 0x01, INF, -INF),
        (0, 0x7E, INF, NAN),
        (7, 0x00, INF, NAN),
        (7, 0x7E, 3.3895313892515355e38, 3.3895313892515355e38),
    ],
)
def test_edges(code: int, byte: int, amax: float, value: float, device: torch.device) -> None:
    y = bs.dequantize(_one(code, byte, amax).to(device))
    assert_bits_equal(y, torch.full((1, 16), value), "value", nan_equal=True)


def test_float16_overflow_is_inf(device: torch.device) -> None:
    # 65520 is the first value that rounds to inf.
    for amax, value in ((65504.0, 65504.0), (65519.0, 65504.0), (65536.0, INF), (1e6, INF)):
        for code, sign in ((7, 1.0), (15, -1.0)):
            y = bs.dequantize(_one(code, 0x7E, amax).to(device), torch.float16)
            assert_bits_equal(y, torch.full((1, 16), sign * value, dtype=torch.float16), f"{amax}")


@pytest.mark.parametrize("shape", [(16,), (2, 3, 32), (4, 1, 1, 16), (0, 32), (3, 0)])
def test_logical_shape(shape: tuple[int, ...], device: torch.device) -> None:
    op = bs.quantize(torch.ones(shape, device=device))
    assert op.shape == shape
    assert_bits_equal(bs.dequantize(op), torch.ones(shape), "values")


def test_dequantize_keeps_no_graph(device: torch.device) -> None:
    x = torch.ones(2, 16, device=device, requires_grad=True)
    op = bs.quantize(x)
    assert not op.amax.requires_grad
    assert not bs.dequantize(op).requires_grad
