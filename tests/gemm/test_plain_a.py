# SPDX-License-Identifier: Apache-2.0
"""W4A16: a BF16 or FP16 tensor times an NVFP4 weight. numerics, section 11.1."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import blockscale as bs
from blockscale import reference as ref
from tests.bits import assert_bits_equal
from tests.gemm.operands import (
    A_FORMATS,
    DTYPES,
    EPS,
    LINEAR,
    SWIZZLED,
    code_values,
    epilogue,
    exact_operand,
    on,
    operand,
    random_operand,
    true_product,
)

F32 = torch.float32
HALVES = pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
EVERY_WEIGHT = pytest.mark.parametrize("fmt", A_FORMATS.values(), ids=A_FORMATS)


def integers(m: int, k: int, dtype: Any, gen: torch.Generator) -> torch.Tensor:
    return (torch.randint(-8, 9, (m, k), generator=gen) * (torch.rand(m, k, generator=gen) > 0.5)).to(dtype)


@HALVES
@EVERY_WEIGHT
@pytest.mark.parametrize("layout", [LINEAR, SWIZZLED], ids=str)
def test_exact_grid(fmt: dict[str, Any], dtype: Any, layout: Any, device: torch.device, gen: torch.Generator) -> None:
    for m, n, k in ((1, 1, 16), (7, 33, 48), (129, 100, 80), (5, 130, 464), (3, 9, 1040), (4, 5, 2064)):
        a, b = integers(m, k, dtype, gen), exact_operand(n, k, gen, fmt, layout)
        wide_b = code_values(b)
        assert (a.double().abs() @ wide_b.abs().T).max() < 2.0**21
        acc = (a.long() @ (wide_b * 8).long().T).float() / 8
        keywords: dict[str, Any] = {
            "alpha": 0.3,
            "beta": -0.7,
            "c": torch.randn(m, n, generator=gen),
            "bias": torch.randn(n, generator=gen).to(dtype),
            "activation": "relu",
        }
        for out_dtype in DTYPES:
            plain = bs.gemm(on(device, a), on(device, b), out_dtype=out_dtype)
            assert_bits_equal(plain, epilogue(acc, a, b).to(out_dtype), f"{m}x{n}x{k}, {out_dtype}")
            full = bs.gemm(on(device, a), on(device, b), out_dtype=out_dtype, **on(device, keywords))
            assert_bits_equal(full, epilogue(acc, a, b, **keywords).to(out_dtype), f"with all terms, {out_dtype}")


@HALVES
@EVERY_WEIGHT
@pytest.mark.parametrize("k", [16, 80, 1040, 2064])
def test_error_against_fp64(
    fmt: dict[str, Any], dtype: Any, k: int, device: torch.device, gen: torch.Generator
) -> None:
    """On the CPU an FP64 sum rounded once; on a GPU the bound of the accumulator."""
    a, b = torch.randn(21, k, generator=gen).to(dtype), random_operand(34, k, gen, fmt, low=0x20)
    exact, magnitude = true_product(a, b)
    first = 2.0**-24 * (5.01 * exact.abs() + (k if device.type == "cuda" else k * 2.0**-28) * magnitude)
    for out_dtype in DTYPES:
        d = bs.gemm(on(device, a), on(device, b), out_dtype=out_dtype).cpu().double()
        bound = first + EPS[out_dtype] * (exact.abs() + first) + 2.0**-25
        fits = exact.abs() < 65000
        assert ((d - exact).abs() <= bound)[fits].all(), out_dtype


@HALVES
def test_magnitudes_beyond_the_grid_of_operands(dtype: Any, device: torch.device) -> None:
    """The largest, the smallest normal and the smallest subnormal values of `a`, one a row."""
    info = torch.finfo(dtype)
    smallest = info.smallest_normal * (2.0**-7 if dtype is torch.bfloat16 else 2.0**-10)
    values = torch.tensor([info.max, -info.max, info.smallest_normal, smallest, -smallest, 0.0], dtype=torch.float64)
    a = torch.zeros(6, 32, dtype=dtype)
    a[:, 17] = values.to(dtype)
    assert (a[:, 17].double() == values).all()
    b = operand(torch.full((1, 32), 2, dtype=torch.uint8), torch.full((1, 2), 0x38, dtype=torch.uint8))
    d = bs.gemm(on(device, a), on(device, b), out_dtype=F32)
    assert_bits_equal(d[:, 0], values.float(), "one product each")
    scaled = bs.gemm(on(device, a), on(device, b), out_dtype=F32, alpha=2.0**-10)
    assert_bits_equal(scaled[:2, 0], values[:2].float() * 2.0**-10, "scaled")


def test_bfloat16_subnormals_under_the_flush_to_zero_of_the_caller() -> None:
    """numerics, section 0: the caller's flush-to-zero state changes no byte."""
    a = torch.full((1, 16), 2.0**-130, dtype=torch.bfloat16)
    b = operand(torch.full((1, 16), 2, dtype=torch.uint8), torch.full((1, 1), 0x38, dtype=torch.uint8))
    kept = bs.gemm(a, b, alpha=2.0**100, out_dtype=F32)
    assert float(kept) == 2.0**-26
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor has no flush-to-zero mode")
    try:
        flushed = bs.gemm(a, b, alpha=2.0**100, out_dtype=F32)
    finally:
        torch.set_flush_denormal(False)
    assert_bits_equal(flushed, kept, "under flush-to-zero")


@HALVES
def test_not_finite(dtype: Any, device: torch.device) -> None:
    inf, nan = float("inf"), float("nan")
    a = torch.ones(4, 16, dtype=dtype)
    a[1, 3], a[2, 0], a[3, 2], a[3, 9] = inf, nan, inf, -inf
    codes = torch.full((2, 16), 2, dtype=torch.uint8)
    codes[1] = 10
    b = operand(codes, torch.full((2, 1), 0x38, dtype=torch.uint8))
    expected = torch.tensor([[16.0, -16.0], [inf, -inf], [nan, nan], [nan, nan]])
    assert_bits_equal(bs.gemm(on(device, a), on(device, b), out_dtype=F32), expected, "d", nan_equal=True)


def test_strided_and_empty_a(device: torch.device, gen: torch.Generator) -> None:
    wide = torch.randn(12, 100, generator=gen).bfloat16().to(device)
    b = on(device, exact_operand(33, 64, gen))
    for view in (wide[:, 3:67], wide[::2, 10:74], wide[:0, :64], wide[:1, :64].as_strided((1, 64), (1, 1))):
        assert_bits_equal(bs.gemm(view, b), bs.gemm(view.contiguous(), b), "view")
    with pytest.raises(ValueError, match=r"^gemm: a must be contiguous in its last dimension"):
        bs.gemm(torch.ones(64, 4, dtype=torch.bfloat16, device=device).t(), b)
    with pytest.raises(ValueError, match=r"^gemm: a must be of K a multiple of 16; got 40"):
        bs.gemm(torch.ones(4, 40, dtype=torch.bfloat16, device=device), b)
    with pytest.raises(ValueError, match=r"^gemm: b must be of the K of a, 48; got 64"):
        bs.gemm(torch.ones(4, 48, dtype=torch.bfloat16, device=device), b)


@pytest.mark.parametrize("dtype", [F32, torch.float64, torch.int32, torch.uint8, torch.float8_e4m3fn], ids=str)
def test_other_dtypes_are_refused(dtype: Any, device: torch.device, gen: torch.Generator) -> None:
    a = torch.zeros(4, 64, device=device).to(dtype)
    with pytest.raises(
        TypeError, match=f"^gemm: a must be an NVFP4Operand, or a bfloat16 or float16 tensor; got {dtype}"
    ):
        bs.gemm(a, on(device, exact_operand(33, 64, gen)))


@HALVES
def test_an_a_that_requires_grad_is_refused(dtype: Any, device: torch.device, gen: torch.Generator) -> None:
    """The graph is never cut without a word."""
    a, b = integers(3, 64, dtype, gen).to(device), on(device, exact_operand(33, 64, gen))
    wants_grad = a.clone().requires_grad_()
    with pytest.raises(NotImplementedError, match=r"^gemm: a must be free of requires_grad.*requires_grad=True"):
        bs.gemm(wants_grad, b)
    with torch.no_grad():
        assert_bits_equal(bs.gemm(wants_grad, b), bs.gemm(a, b), "d")


@HALVES
def test_nvfp4_output_of_a_plain_a(dtype: Any, device: torch.device, gen: torch.Generator) -> None:
    a, b = integers(7, 64, dtype, gen), exact_operand(48, 64, gen, {"block": (16, 16)})
    acc = (a.long() @ (code_values(b) * 8).long().T).float() / 8
    t = epilogue(acc, a, b)
    op, r = bs.gemm(on(device, a), on(device, b), out_format=bs.NVFP4(e4m3_max=256), out_amax=9.0, return_amax="tensor")
    want = ref.quantize(t, amax=9.0, e4m3_max=256, layout=SWIZZLED)
    assert_bits_equal(op.qdata, want.qdata, "qdata")
    assert_bits_equal(op.block_scale, want.block_scale, "block_scale")
    assert_bits_equal(r, t.abs().max(), "amax")
