# SPDX-License-Identifier: Apache-2.0
"""Wrong values of GEMMs in other NVFP4 libraries, as right values here. Numbers are those of the bug list."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch

import blockscale as bs
from tests.bits import assert_bits_equal, assert_same_operand
from tests.gemm.operands import A_FORMATS, DTYPES, LINEAR, SWIZZLED, code_values

F32 = torch.float32
INF, NAN = float("inf"), float("nan")
EVERY_FORMAT = pytest.mark.parametrize("fmt", A_FORMATS.values(), ids=A_FORMATS)
EVERY_DTYPE = pytest.mark.parametrize("dtype", DTYPES, ids=str)
LAYOUTS = pytest.mark.parametrize("layout", [LINEAR, SWIZZLED], ids=str)


@EVERY_FORMAT
@LAYOUTS
def test_bug_01_a_tensor_of_zeros(fmt: dict[str, Any], layout: Any, device: torch.device) -> None:
    q = bs.quantize(torch.zeros(32, 64, dtype=torch.bfloat16, device=device), layout=layout, **fmt)
    w = bs.quantize(torch.randn(16, 64, device=device), layout=layout)
    for dtype in DTYPES:
        bias = torch.ones(16, device=device)
        assert_bits_equal(bs.gemm(q, w, bias=bias, out_dtype=dtype), torch.ones(32, 16, dtype=dtype), "bias alone")
        assert_bits_equal(bs.gemm(w, q, out_dtype=dtype), torch.zeros(16, 32, dtype=dtype), "as b")
    op = bs.gemm(q, w, out_format=bs.NVFP4(), out_amax=torch.zeros((), device=device))
    assert not op.qdata.any()


@LAYOUTS
def test_bug_02_a_row_of_zeros(layout: Any, device: torch.device) -> None:
    x = torch.zeros(3, 16, device=device)
    x[0], x[2] = 1.0, -4.0
    q = bs.quantize(x, scaling="row", layout=layout)
    w = bs.quantize(torch.ones(8, 16, device=device), scaling="row", layout=layout)
    bias = torch.arange(8.0, device=device)
    d = bs.gemm(q, w, bias=bias, out_dtype=F32).cpu()
    assert_bits_equal(d, torch.tensor([[16.0], [0.0], [-64.0]]) + torch.arange(8.0), "a")
    d = bs.gemm(w, q, out_dtype=F32)
    assert_bits_equal(d, torch.tensor([16.0, 0.0, -64.0]).expand(8, 3).contiguous(), "b")
    c = torch.full((3, 8), 5.0, device=device)
    assert (bs.gemm(q, w, c=c, beta=2.0, bias=bias, activation="relu")[1].cpu() == 10 + torch.arange(8.0)).all()


@LAYOUTS
def test_bug_05_an_underflowing_block_contributes_nothing(layout: Any, device: torch.device) -> None:
    """Codes are +-6 under a block scale of 0; a row above the half step contributes its small values."""
    x = torch.zeros(2, 32)
    x[:, 16] = 1.0
    x[0, :2] = torch.tensor([2.0e-6, -1.0e-6])
    x[1, :2] = torch.tensor([2.2e-6, -1.1e-6])
    q = bs.quantize(x.to(device), amax=torch.tensor(1.0, device=device), layout=layout)
    assert (q.qdata[0, 0].item(), q.qdata[1, 0].item()) == (0xF7, 0xB5)
    picks = torch.zeros(3, 32)
    picks[0, 0], picks[1, 1], picks[2, 16] = 1.0, 1.0, 1.0
    w = bs.quantize(picks.to(device), layout=layout)
    d = bs.gemm(q, w, out_dtype=F32).cpu()
    assert_bits_equal(d[0], torch.tensor([0.0, 0.0, 1.0]), "below")
    torch.testing.assert_close(d[1], torch.tensor([2.1798e-6, -1.0899e-6, 1.0]), rtol=1e-4, atol=0)
    assert_bits_equal(bs.gemm(w, q, out_dtype=F32)[:, 0], torch.tensor([0.0, 0.0, 1.0]), "as b")


@pytest.mark.parametrize("k", [16, 64, 1040])
def test_bug_19_float16_is_rounded_last(k: int, device: torch.device) -> None:
    """The unscaled accumulator is 2688^2 K; neither it, nor a product with one factor, fits FP16."""
    for left in ({}, {"scaling": "row"}):
        a = bs.quantize(torch.ones(64, k, device=device), **left)
        b = bs.quantize(torch.ones(64, k, device=device))
        d = bs.gemm(a, b, out_dtype=torch.float16)
        assert_bits_equal(d, torch.full((64, 64), float(k), dtype=torch.float16), "d")
        bias = torch.full((64,), 60000.0, device=device)
        halves = bs.gemm(a, b, out_dtype=torch.float16, alpha=-1000.0, bias=bias, c=torch.ones(64, 64, device=device))
        exact = -1000.0 * k + 60001.0
        assert_bits_equal(halves, torch.full((64, 64), exact).to(torch.float16), "terms that cancel")


@EVERY_DTYPE
def test_bug_61_alpha_and_beta_reach_every_path(dtype: Any, device: torch.device) -> None:
    ones = torch.ones(8, 16, device=device)
    for left, right in (({"scaling": "row"}, {}), ({}, {"scaling": "row"}), ({}, {"block": (16, 16)})):
        a, w = bs.quantize(ones[:4], **left), bs.quantize(ones, **right)
        plain = ones[:4].bfloat16()
        for x in (a, plain):
            d = bs.gemm(x, w, alpha=0.5, beta=2.0, c=torch.full((4, 8), 3.0, device=device), out_dtype=dtype)
            assert_bits_equal(d, torch.full((4, 8), 14.0, dtype=dtype), "alpha and beta")
            e = bs.gemm(x, w, alpha=1.0, beta=0.0, c=torch.full((4, 8), NAN, device=device), out_dtype=dtype)
            assert_bits_equal(e, torch.full((4, 8), 16.0, dtype=dtype), "beta 0")
            residual = torch.full((4, 8), 3.0, dtype=dtype, device=device)
            bs.gemm(x, w, c=residual, out=residual)
            assert_bits_equal(residual, torch.full((4, 8), 19.0, dtype=dtype), "in place")
    with pytest.raises(ValueError, match=r"^gemm: beta must be 0 without c; got 1\.0"):
        bs.gemm(a, w, beta=1.0)


@pytest.mark.parametrize("bias_dtype", DTYPES, ids=str)
@EVERY_DTYPE
def test_bug_62_the_row_scale_does_not_touch_the_bias(dtype: Any, bias_dtype: Any, device: torch.device) -> None:
    x = torch.tensor([[1.0], [4.0]], device=device).expand(2, 16).contiguous()
    row, w = bs.quantize(x, scaling="row"), bs.quantize(torch.ones(8, 16, device=device))
    bias = torch.full((8,), 10.0, device=device).to(bias_dtype)
    expected = torch.tensor([[26.0], [74.0]]).expand(2, 8).contiguous()
    assert_bits_equal(bs.gemm(row, w, bias=bias, out_dtype=dtype), expected.to(dtype), "rows")
    both = bs.gemm(w, row, bias=bias[:2], out_dtype=dtype)
    assert_bits_equal(both, expected.T.contiguous().to(dtype), "row-scaled b")
    # Added in FP32, not in the dtype of the output: 256 + 1 + 256 is 513 in FP32, and 512 in BF16 either way round.
    wide = bs.quantize(torch.full((1, 16), 16.0, device=device))
    odd = torch.tensor([1.0], device=device).to(bias_dtype)
    c = torch.full((1, 1), 256.0, device=device)
    d = bs.gemm(wide, bs.quantize(torch.ones(1, 16, device=device)), bias=odd, c=c, out_dtype=F32)
    assert float(d) == 513.0


@pytest.mark.parametrize("scaling", ["tensor", "row"])
def test_bug_76_the_scale_of_a_quantized_output_is_used(scaling: Any, device: torch.device, gen: Any) -> None:
    a = bs.quantize(torch.randn(33, 64, generator=gen).to(device), scaling="row")
    w = bs.quantize(torch.randn(48, 64, generator=gen).to(device))
    d, am = bs.gemm(a, w, out_dtype=F32, return_amax=scaling)
    form = bs.NVFP4(scaling=scaling)
    q = bs.gemm(a, w, out_format=form, out_amax=am)
    assert_same_operand(q, bs.quantize(d, scaling=scaling, amax=am, layout=SWIZZLED))
    other = bs.gemm(a, w, out_format=form, out_amax=8 * am)
    assert_bits_equal(other.amax, 8 * am, "its own amax")
    assert (other.block_scale.view(torch.uint8) != q.block_scale.view(torch.uint8)).any()
    largest = d.abs().unflatten(1, (3, 16)).amax(dim=2).repeat_interleave(16, dim=1)
    assert ((bs.dequantize(other) - d).abs() <= largest / 4).all(), "half a step of 2 in 6, and of a scale's 1 in 8"
    # Eight times the product under eight times the level: the same codes and scales, another amax.
    eight = bs.gemm(a, w, alpha=8.0, out_format=form, out_amax=8 * am)
    assert_bits_equal(eight.qdata, q.qdata, "qdata")
    assert_bits_equal(eight.block_scale, q.block_scale, "block_scale")


def test_bug_78_floats_are_checked_as_float32(device: torch.device) -> None:
    a = bs.quantize(torch.ones(4, 16, device=device))
    w = bs.quantize(torch.ones(16, 16, device=device))
    c = torch.ones(4, 16, device=device)
    out = {"out_format": bs.NVFP4()}
    for value in (1e-50, 1e300, NAN, INF, -INF, -1e39):
        for name, others in (("alpha", {}), ("beta", {"c": c}), ("out_amax", out)):
            rule = "representable in float32" if abs(value) < INF else "a finite float"
            with pytest.raises(ValueError, match=r"^" + re.escape(f"gemm: {name} must be {rule}; got {value}.")):
                bs.gemm(a, w, **{name: value}, **others)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"^gemm: out_amax must be non-negative; got -1\.0"):
        bs.gemm(a, w, out_amax=-1.0, **out)
    with pytest.raises(TypeError, match=r"^gemm: alpha must be a float or a float32 tensor; got bool"):
        bs.gemm(a, w, alpha=True)
    assert (bs.gemm(a, w, alpha=0.0) == 0).all()
    assert (bs.gemm(a, w, alpha=-1.0) == -16).all()
    assert (bs.gemm(a, w, alpha=1e-40, out_dtype=F32) > 0).all()
    assert (bs.gemm(a, w, beta=-1, c=c) == 15).all()


def test_bug_79_alpha_on_the_device_and_its_life(device: torch.device, gen: torch.Generator) -> None:
    a = bs.quantize(torch.randn(33, 64, generator=gen).to(device))
    w = bs.quantize(torch.randn(48, 64, generator=gen).to(device))
    alpha = torch.tensor([0.5], device=device)
    first = bs.gemm(a, w, alpha=alpha)
    alpha.fill_(100.0)  # on the same stream, after the kernel
    assert_bits_equal(first, bs.gemm(a, w, alpha=0.5), "the value when it ran")
    for _ in range(20):  # a temporary whose memory is taken again at once
        d = bs.gemm(a, w, alpha=torch.tensor([0.25], device=device) * 2)
        junk = [torch.full((1,), NAN, device=device) for _ in range(8)]
        del junk
        assert_bits_equal(d, first, "a temporary")
    for dtype in (torch.bfloat16, torch.float64):
        with pytest.raises(TypeError, match=f"^gemm: alpha must be float32; got {dtype}"):
            bs.gemm(a, w, alpha=alpha.to(dtype))


def test_values_of_an_operand_are_what_gemm_multiplies(device: torch.device, gen: torch.Generator) -> None:
    """The bridge between casts and gemm: identity rows pick every value that dequantize gives, up to one rounding."""
    op = bs.quantize(torch.randn(40, 64, generator=gen).to(device), scaling="row", layout=SWIZZLED)
    eye = bs.quantize(torch.eye(64, device=device), block=(16, 16), layout=SWIZZLED)
    d = bs.gemm(op, eye, out_dtype=F32).cpu().double()
    exact = code_values(op) * (op.amax.cpu().double() / 2688)[:, None]
    assert ((d - exact).abs() <= 5 * 2.0**-24 * exact.abs()).all()
    assert ((bs.dequantize(op).cpu().double() - exact).abs() <= 4 * 2.0**-24 * exact.abs()).all()
