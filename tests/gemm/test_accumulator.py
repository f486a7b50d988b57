# SPDX-License-Identifier: Apache-2.0
"""The accumulator for any codes and scales: on the CPU the exact sum rounded once; elsewhere a derived bound."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import blockscale as bs
from blockscale import reference as ref
from tests.bits import assert_bits_equal
from tests.gemm.operands import (
    A_FORMATS,
    DTYPES,
    EPS,
    PAIRS,
    SWIZZLED,
    code_values,
    on,
    operand,
    random_operand,
    true_product,
)

F32 = torch.float32
CPU = torch.device("cpu")
K_VALUES = (16, 48, 80, 464, 1024, 1040, 2064, 5008)


def rounded_sum(units: int) -> float:
    """An integer in units of 2^-20 as the nearest FP32 value, ties to even, by integer arithmetic alone."""
    magnitude, drop = abs(units), max(0, abs(units).bit_length() - 24)
    kept, rest = magnitude >> drop, magnitude & ((1 << drop) - 1)
    half = 1 << (drop - 1) if drop else 1
    kept += rest > half or (rest == half and drop > 0 and kept & 1)
    return float(-kept if units < 0 else kept) * 2.0**drop * 2.0**-20


@pytest.mark.parametrize("k", K_VALUES)
def test_cpu_sum_is_exact_and_rounded_once(k: int, gen: torch.Generator) -> None:
    """Against Python integers, with every scale byte and with small ones, whose sums cancel less."""
    for low, top in ((0, 0x7F), (0, 0x10), (0x70, 0x7F)):
        a, b = random_operand(5, k, gen, low=low, top=top), random_operand(6, k, gen, low=low, top=top)
        a, b = (bs.NVFP4Operand(o.qdata, o.block_scale, torch.tensor(2688.0), o.shape) for o in (a, b))
        units_a, units_b = (np.array((code_values(o) * 2**10).long().tolist(), dtype=object) for o in (a, b))
        sums = units_a @ units_b.T
        expected = torch.tensor([[rounded_sum(int(v)) for v in row] for row in sums], dtype=F32)
        assert_bits_equal(bs.gemm(a, b, out_dtype=F32), expected, f"k {k}, scales {low}..{top}")


@pytest.mark.parametrize("m", [1, 37, 129])
@pytest.mark.parametrize(("left", "right"), PAIRS)
def test_cpu_equals_the_reference(left: str, right: str, m: int, gen: torch.Generator) -> None:
    for k in (48, 1040):
        a = random_operand(m, k, gen, A_FORMATS[left], SWIZZLED)
        b = random_operand(50, k, gen, A_FORMATS[right])
        keywords: dict[str, Any] = {"bias": torch.randn(50, generator=gen), "alpha": 1.3, "activation": "relu"}
        for dtype in DTYPES:
            d = bs.gemm(a, b, out_dtype=dtype, **keywords)
            assert_bits_equal(d, ref.gemm(a, b, out_dtype=dtype, **keywords), f"{dtype}, k {k}")


@pytest.mark.parametrize("k", K_VALUES)
@pytest.mark.parametrize(("left", "right"), PAIRS)
def test_error_against_fp64(left: str, right: str, k: int, device: torch.device, gen: torch.Generator) -> None:
    """|d - exact| <= half a unit of the output + the roundings of the epilogue (+ K 2^-24 sum |a||b| on a GPU).

    In units of 2^-24: acc 1, each decode factor 2 (its reciprocal, its product), each product with one 1, alpha 1.
    """
    a = random_operand(40, k, gen, A_FORMATS[left], SWIZZLED, low=0x20)
    b = random_operand(24, k, gen, A_FORMATS[right], low=0x20)
    exact, magnitude = true_product(a, b)
    c, bias = torch.randn(40, 24, generator=gen), torch.randn(24, generator=gen)
    u, wide_bias = 0.5 * c.double(), bias.double()
    first = 2.0**-24 * (8.01 * exact.abs() + (0.0 if device == CPU else k) * magnitude)
    for dtype in DTYPES:
        d = bs.gemm(on(device, a), on(device, b), out_dtype=dtype).cpu().double()
        assert d.isfinite().all() or dtype is torch.float16
        bound = first + EPS[dtype] * (exact.abs() + first) + 2.0**-25
        fits = exact.abs() < 65000
        assert ((d - exact).abs() <= bound)[fits].all(), dtype
        full = bs.gemm(
            on(device, a), on(device, b), out_dtype=dtype, alpha=-0.75, c=c.to(device), beta=0.5, bias=bias.to(device)
        )
        with_terms = -0.75 * exact + u + wide_bias
        size = exact.abs() + u.abs() + wide_bias.abs()
        bound = first + 2.0**-24 * 3.01 * size + EPS[dtype] * (with_terms.abs() + first) + 2.0**-25
        fits = size < 65000
        assert ((full.cpu().double() - with_terms).abs() <= bound)[fits].all(), dtype
    assert (exact.abs() > 10 * first).any(), "the bound says nothing here"


def test_sum_is_not_rounded_twice(device: torch.device) -> None:
    """2^56 + 2^32 + 1 units lies just above the middle of two FP32 values: an FP64 sum of all of K would lose the 1."""
    k = 2**16 + 32
    codes = torch.full((1, k), 6, dtype=torch.uint8)
    scales = torch.full((1, k // 16), 0x78, dtype=torch.uint8)
    codes[0, -32:] = 0
    codes[0, -32], scales[0, -2] = 4, 0x60  # (2 * 32)^2 = 2^12 = 2^32 units
    codes[0, -16], scales[0, -1] = 1, 0x01  # (2^-1 * 2^-9)^2 = 1 unit
    op = on(device, operand(codes, scales))
    above = float(bs.gemm(op, op, out_dtype=F32))
    codes[0, -16] = 0
    op = on(device, operand(codes, scales))
    at = float(bs.gemm(op, op, out_dtype=F32))
    if device == CPU:
        assert above == (2**56 + 2**33) / 2**20
        assert at == 2**56 / 2**20
    else:
        assert abs(above - 2.0**36) <= k * 2.0**-24 * 2.0**36


def test_largest_k_and_largest_sum(device: torch.device) -> None:
    k = 2**20
    full = operand(torch.full((1, k), 7, dtype=torch.uint8), torch.full((1, k // 16), 0x7E, dtype=torch.uint8))
    minus = operand(torch.full((1, k), 15, dtype=torch.uint8), torch.full((1, k // 16), 0x7E, dtype=torch.uint8))
    d = bs.gemm(on(device, full), on(device, minus), out_dtype=F32)
    assert float(d) == -(2688.0**2) * k


@pytest.mark.parametrize("k", [2**20 + 16, 2**21])
def test_k_above_2_20_is_refused(k: int, device: torch.device) -> None:
    long = on(device, operand(torch.zeros(1, k, dtype=torch.uint8), torch.zeros(1, k // 16, dtype=torch.uint8)))
    with pytest.raises(ValueError, match=f"^gemm: K must be at most 1048576; got {k}"):
        bs.gemm(long, long)
    with pytest.raises(ValueError, match=f"^gemm: K must be at most 1048576; got {k}"):
        bs.gemm(torch.zeros(1, k, dtype=torch.bfloat16, device=device), long)


@pytest.mark.parametrize("shape", [(64, 64, 2064), (1, 300, 4096), (300, 1, 1040)])
def test_same_bits_each_time(shape: tuple[int, int, int], device: torch.device, gen: torch.Generator) -> None:
    m, n, k = shape
    a, b = on(device, random_operand(m, k, gen)), on(device, random_operand(n, k, gen))
    first, r = bs.gemm(a, b, out_dtype=F32, return_amax="row")
    for _ in range(5):
        again, other = bs.gemm(a, b, out_dtype=F32, return_amax="row")
        assert_bits_equal(again, first, "d")
        assert_bits_equal(other, r, "amax")
