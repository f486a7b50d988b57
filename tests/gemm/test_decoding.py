# SPDX-License-Identifier: Apache-2.0
"""The bits of decoded values: the order of the operations of dequantize, and the exact decode that gemm multiplies."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import blockscale as bs
from blockscale import reference as ref
from tests.bits import assert_bits_equal, from_bits
from tests.gemm.operands import A_FORMATS, DTYPES, LINEAR, SWIZZLED, code_values, on, operand, random_operand

RECIPROCAL = {448: 0x39C30C31, 256: 0x3A2AAAAB}
AMAXES = (0.0, 1e-40, 3e-36, 0.37, 0.99999994, 1.0, 1.0000001, 2687.9, 3e4, 7.7e35, 3.4e38)


def by_lines(scale: torch.Tensor, code: torch.Tensor, amax: float, e4m3_max: int) -> torch.Tensor:
    """numerics, section 6, each product in FP64 and rounded to FP32: ((val(s) * G') * k'), then val(c) * t."""
    level, factor = torch.tensor(amax).double(), from_bits(RECIPROCAL[e4m3_max]).double()
    if amax >= 1:
        level, factor = level * 2.0**-10, factor * 2.0**10
    t = (scale * level).float().double()
    t = (t * factor).float().double()
    return (code * t).float()


@pytest.mark.parametrize("layout", [LINEAR, SWIZZLED], ids=str)
@pytest.mark.parametrize("e4m3_max", [448, 256])
@pytest.mark.parametrize("amax", AMAXES)
def test_dequantize_in_the_order_of_the_lines(amax: float, e4m3_max: int, layout: Any, device: torch.device) -> None:
    """Every code under every scale byte but 7F: other orders of the three factors differ in last bits."""
    codes = torch.arange(16, dtype=torch.uint8).expand(127, 16).contiguous()
    scales = torch.arange(127, dtype=torch.uint8)[:, None]
    op = on(device, operand(codes, scales, amax, {"e4m3_max": e4m3_max}, layout))
    values = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6], dtype=torch.float64)
    code = torch.cat((values, -values))
    scale = scales.view(torch.float8_e4m3fn).double()
    expected = by_lines(scale, code, amax, e4m3_max)
    for dtype in DTYPES:
        assert_bits_equal(bs.dequantize(op, dtype), expected.to(dtype), f"amax {amax}, {dtype}")


@pytest.mark.parametrize("fmt", A_FORMATS.values(), ids=A_FORMATS)
@pytest.mark.parametrize(("m", "k"), [(1, 16), (17, 48), (130, 464), (5, 4112)])
def test_dequantize_equals_the_reference(
    m: int, k: int, fmt: dict[str, Any], device: torch.device, gen: torch.Generator
) -> None:
    op = random_operand(m, k, gen, fmt, SWIZZLED, top=0x80)
    for dtype in DTYPES:
        got = bs.dequantize(on(device, op), dtype)
        assert_bits_equal(got, ref.dequantize(op, dtype), f"{dtype}", nan_equal=True)


@pytest.mark.parametrize("fmt", A_FORMATS.values(), ids=A_FORMATS)
def test_gemm_reads_codes_times_scales_exactly(fmt: dict[str, Any], device: torch.device, gen: torch.Generator) -> None:
    """An identity on the right picks each value; its second level and that of the left are 1."""
    tiles = {key: value for key, value in fmt.items() if key == "block"}
    op = random_operand(70, 144, gen, tiles, SWIZZLED)
    plain = bs.NVFP4Operand(op.qdata, op.block_scale, torch.tensor(2688.0), op.shape, op.layout, op.format)
    eye = operand(torch.eye(144, dtype=torch.uint8) * 2, torch.full((144, 9), 0x38, dtype=torch.uint8))
    d = bs.gemm(on(device, plain), on(device, eye), out_dtype=torch.float32)
    assert_bits_equal(d, code_values(op).float() + 0.0, "values")
