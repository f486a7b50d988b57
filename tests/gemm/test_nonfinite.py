# SPDX-License-Identifier: Apache-2.0
"""NaN and inf through gemm: scale bytes 7F, second levels, C, bias, alpha, and overflow of the output."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import blockscale as bs
from blockscale import reference as ref
from tests.bits import assert_bits_equal
from tests.gemm.operands import DTYPES, LINEAR, SWIZZLED, exact_operand, on, operand

F32 = torch.float32
INF, NAN = float("inf"), float("nan")
LAYOUTS = pytest.mark.parametrize("layout", [LINEAR, SWIZZLED], ids=str)


def ones_operand(rows: int) -> Any:
    """(rows, 16) of ones."""
    return operand(torch.full((rows, 16), 7, dtype=torch.uint8), torch.full((rows, 1), 0x7E, dtype=torch.uint8), 1.0)


def marked(op: Any, places: list[tuple[int, int]], layout: Any) -> Any:
    """The operand with a block scale 7F in some (row, block) places."""
    scales = op.block_scale.view(torch.uint8).clone()
    for row, block in places:
        scales[row, block] = 0x7F
    made = bs.NVFP4Operand(op.qdata, scales, op.amax, op.shape, format=op.format)
    return made if layout is LINEAR else ref.swizzle_scales(made)


@LAYOUTS
@pytest.mark.parametrize("k", [16, 80, 1040, 2064])
@pytest.mark.parametrize("out_dtype", DTYPES, ids=str)
def test_scale_7f_is_nan_in_its_row_and_column_alone(
    k: int, out_dtype: Any, layout: Any, device: torch.device, gen: torch.Generator
) -> None:
    last = k // 16 - 1
    plain_a, plain_b = exact_operand(36, k, gen, {"scaling": "row"}), exact_operand(140, k, gen)
    a = marked(plain_a, [(0, 0), (7, last), (35, last // 2)], layout)
    b = marked(plain_b, [(1, last), (128, 0), (139, last)], layout)
    expected = ref.gemm(plain_a, plain_b, out_dtype=out_dtype)
    expected[[0, 7, 35]] = NAN
    expected[:, [1, 128, 139]] = NAN
    d = bs.gemm(on(device, a), on(device, b), out_dtype=out_dtype)
    assert_bits_equal(d, expected, "d", nan_equal=True)


@LAYOUTS
@pytest.mark.parametrize("k", [16, 48, 1040])
def test_scale_7f_against_zeros(k: int, layout: Any, device: torch.device) -> None:
    """Also where every code, and every scale of the other operand, is zero; in A and in B; never as 480."""
    codes, scales = torch.zeros(3, k, dtype=torch.uint8), torch.zeros(3, k // 16, dtype=torch.uint8)
    zeros = operand(codes, scales)
    a = marked(zeros, [(1, k // 16 - 1)], layout)
    expected = torch.zeros(3, 3)
    expected[1] = NAN
    d = bs.gemm(on(device, a), on(device, zeros), out_dtype=F32)
    assert_bits_equal(d, expected, "in a", nan_equal=True)
    d = bs.gemm(on(device, zeros), on(device, a), out_dtype=F32)
    assert_bits_equal(d, expected.T.contiguous(), "in b", nan_equal=True)
    plain = torch.zeros(3, k, dtype=torch.bfloat16, device=device)
    assert_bits_equal(bs.gemm(plain, on(device, a), out_dtype=F32), expected.T.contiguous(), "W4A16", nan_equal=True)
    assert bs.gemm(on(device, a), on(device, zeros), alpha=0.0)[1].isnan().all()
    assert bs.gemm(on(device, a), on(device, zeros), activation="relu")[1].isnan().all()


def test_foreign_scale_7f(device: torch.device, gen: torch.Generator) -> None:
    """Bytes made elsewhere, through from_parts, in both layouts."""
    source = exact_operand(130, 80, gen)
    scales = source.block_scale.view(torch.uint8).clone()
    scales[129, 4] = 0x7F
    for layout in (LINEAR, SWIZZLED):
        laid = ref.swizzle_scales(bs.NVFP4Operand(source.qdata, scales, source.amax, source.shape)).block_scale
        given = (scales if layout is LINEAR else laid).to(device)
        a = bs.checkpoint.from_parts(source.qdata.to(device), given, amax=source.amax.to(device), layout=layout)
        d = bs.gemm(a, on(device, source), out_dtype=F32).cpu()
        assert d[129].isnan().all()
        assert d[:129].isfinite().all()


def test_padding_that_holds_7f_is_not_read(device: torch.device, gen: torch.Generator) -> None:
    """A swizzled buffer from elsewhere whose padding holds NaN: from_parts clears it, and the real rows stay finite."""
    source = exact_operand(5, 48, gen, layout=SWIZZLED)
    scales = source.block_scale.view(torch.uint8).clone()
    used = ref.swizzle_scales(
        operand(torch.zeros(5, 48, dtype=torch.uint8), torch.ones(5, 3, dtype=torch.uint8))
    ).block_scale.view(torch.uint8)
    scales[used == 0] = 0x7F
    parts = source.qdata.to(device), scales.to(device)
    a = bs.checkpoint.from_parts(*parts, amax=source.amax.to(device), layout=SWIZZLED)
    b = on(device, exact_operand(9, 48, gen))
    assert_bits_equal(bs.gemm(a, b), bs.gemm(on(device, source), b), "d")


@pytest.mark.parametrize("value", [NAN, INF])
def test_second_level_that_is_not_finite(value: float, device: torch.device) -> None:
    codes, scales = torch.full((3, 16), 7, dtype=torch.uint8), torch.full((3, 1), 0x7E, dtype=torch.uint8)
    ones = on(device, operand(codes, scales, 1.0))
    row = on(device, operand(codes, scales, torch.tensor([1.0, value, 1.0]), {"scaling": "row"}))
    d = bs.gemm(row, ones, out_dtype=F32).cpu()
    assert (d[[0, 2]] == 16).all()
    assert d[1].isnan().all() if value != value else (d[1] == INF).all()
    d = bs.gemm(ones, row, out_dtype=F32).cpu()
    assert (d[:, [0, 2]] == 16).all()
    assert not d[:, 1].isfinite().any()
    zero = on(device, operand(codes * 0, scales, torch.tensor([value] * 3), {"scaling": "row"}))
    assert bs.gemm(zero, ones, out_dtype=F32).isnan().all()  # 0 * inf


@pytest.mark.parametrize("where", ["own amax", "given amax"])
def test_nan_of_the_input_reaches_every_output_it_touches(where: str, device: torch.device) -> None:
    x = torch.ones(4, 32, device=device)
    x[2, 20] = NAN
    w = bs.quantize(torch.ones(5, 32, device=device))
    tensor = bs.quantize(x, amax=1.0) if where == "given amax" else bs.quantize(x, scaling="row")
    d = bs.gemm(tensor, w, out_dtype=F32).cpu()
    assert d[2].isnan().all()
    assert (d[[0, 1, 3]] == 32).all()
    assert bs.gemm(w, tensor, out_dtype=F32)[:, 2].isnan().all()
    assert bs.gemm(bs.quantize(x), w).isnan().all()


@pytest.mark.parametrize("value", [NAN, INF, -INF])
def test_terms_that_are_not_finite(value: float, device: torch.device) -> None:
    ones = on(device, ones_operand(3))
    c, bias = torch.ones(3, 3, device=device), torch.ones(3, device=device)
    c[1, 2], bias[0] = value, value
    expected = torch.full((3, 3), 18.0)
    expected[:, 0], expected[1, 2] = value, value
    for dtype in DTYPES:
        d = bs.gemm(ones, ones, c=c, bias=bias, out_dtype=dtype)
        assert_bits_equal(d, expected.to(dtype), str(dtype), nan_equal=True)
    opposite = bs.gemm(ones, ones, c=-c, bias=bias, alpha=0.0, out_dtype=F32)
    assert opposite[1, 2].isinf() or value != value


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_overflow_of_the_output_gives_inf(sign: float, device: torch.device) -> None:
    """FP16 beyond 65504 + half a unit; BF16 beyond its maximum; and FP32 inside the epilogue."""
    ones = on(device, ones_operand(1))
    half: dict[float, float] = {65504.0: 65504.0, 65519.0: 65504.0, 65520.0: INF, 1e6: INF}
    for value, stored in half.items():
        bias = torch.tensor([sign * value], device=device)
        d = bs.gemm(ones, ones, alpha=0.0, bias=bias, out_dtype=torch.float16)
        assert float(d) == sign * stored
    big = torch.tensor([sign * 3.4e38], device=device)
    assert float(bs.gemm(ones, ones, alpha=0.0, bias=big)) == sign * INF  # bfloat16
    assert float(bs.gemm(ones, ones, alpha=sign * 3e38, out_dtype=F32)) == sign * INF
    kept = bs.gemm(ones, ones, alpha=sign * 2e37, out_dtype=F32)
    assert float(kept) == float(torch.tensor(sign * 2e37) * 16)


def test_subnormal_results_are_kept(device: torch.device) -> None:
    ones = on(device, ones_operand(1))
    for exponent in (-130, -140, -148, -153):
        d = bs.gemm(ones, ones, alpha=torch.tensor(2.0, device=device), out_dtype=F32)
        assert float(d) == 32
        tiny = on(device, operand(torch.full((1, 16), 7, dtype=torch.uint8),
                                  torch.full((1, 1), 0x7E, dtype=torch.uint8), 2688 * 2.0**exponent))  # fmt: skip
        got = bs.gemm(tiny, ones, out_dtype=F32, bias=torch.zeros(1, device=device))
        want = ref.gemm(tiny.to("cpu"), ones.to("cpu"), out_dtype=F32, bias=torch.zeros(1))
        assert_bits_equal(got, want, f"2^{exponent}")
        assert exponent < -150 or float(got) != 0
