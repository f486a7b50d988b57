# SPDX-License-Identifier: Apache-2.0
"""Exact operands: the accumulator is an integer whatever the tile and the order, and so the result is known to the bit.

The accumulator comes from integers, the epilogue from `tests/gemm/operands.py`; `blockscale.reference` agrees as well.
"""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch

import blockscale as bs
from blockscale import reference as ref
from tests.bits import assert_bits_equal
from tests.gemm.operands import (
    A_FORMATS,
    DTYPES,
    LINEAR,
    PAIRS,
    SWIZZLED,
    epilogue,
    exact_accumulator,
    exact_operand,
    on,
)

F32 = torch.float32
SIZES = (0, 1, 7, 16, 100, 127, 128, 129, 257)
EVERY_PAIR = pytest.mark.parametrize(("left", "right"), PAIRS)


def check(a: Any, b: Any, device: torch.device, out_dtype: Any = F32, what: str = "d", **keywords: Any) -> None:
    """gemm on the device against the integer accumulator and the epilogue by lines, and against the reference."""
    t = epilogue(exact_accumulator(a, b), a, b, **keywords)
    d = bs.gemm(on(device, a), on(device, b), out_dtype=out_dtype, **on(device, keywords))
    assert_bits_equal(d, t.to(out_dtype), what)
    assert_bits_equal(ref.gemm(a, b, out_dtype=out_dtype, **keywords), t.to(out_dtype), f"reference, {what}")


@pytest.mark.parametrize("k", [0, 16, 32, 48, 80, 464, 656, 1008, 1024, 1040, 2048, 2064, 3088])
@EVERY_PAIR
def test_every_k(k: int, left: str, right: str, device: torch.device, gen: torch.Generator) -> None:
    """Below, at and beyond one FP64 chunk of 1,024, and K/16 that is no multiple of 4."""
    a = exact_operand(33, k, gen, A_FORMATS[left], SWIZZLED)
    b = exact_operand(40, k, gen, A_FORMATS[right], SWIZZLED)
    if k == 0:  # no scale is applied: amax times nothing is not asked for
        d = bs.gemm(on(device, a), on(device, b), out_dtype=F32)
        assert_bits_equal(d, torch.zeros(33, 40), "d")
        return
    assert exact_accumulator(a, b).count_nonzero() > 0
    check(a, b, device)


@pytest.mark.parametrize("m", SIZES)
def test_every_m_and_n(m: int, device: torch.device, gen: torch.Generator) -> None:
    a = exact_operand(m, 80, gen, {"scaling": "row"}, SWIZZLED)
    for n in SIZES:
        for dtype in DTYPES:
            check(a, exact_operand(n, 80, gen, {"scaling": "row"}), device, dtype, f"n {n}, {dtype}")


@EVERY_PAIR
def test_layouts_give_the_same_bits(left: str, right: str, device: torch.device, gen: torch.Generator) -> None:
    a, b = exact_operand(130, 208, gen, A_FORMATS[left]), exact_operand(258, 208, gen, A_FORMATS[right])
    bias = torch.randn(258, generator=gen)
    expected = epilogue(exact_accumulator(a, b), a, b, bias=bias)
    for p, q in itertools.product((a, ref.swizzle_scales(a)), (b, ref.swizzle_scales(b))):
        d = bs.gemm(on(device, p), on(device, q), out_dtype=F32, bias=bias.to(device))
        assert_bits_equal(d, expected, f"{p.layout.name} times {q.layout.name}")


def options(gen: torch.Generator, m: int, n: int) -> list[dict[str, Any]]:
    """Every combination of alpha, beta, C and bias; each dtype of C with each of bias."""
    alphas: list[Any] = [None, 0.3, -1.7, 0.0, torch.tensor(0.7), torch.tensor([[-2.3]])]
    cs: list[dict[str, Any]] = [{}, {"beta": 0.0}]
    for dtype in DTYPES:
        c = torch.randn(m, n, generator=gen).to(dtype)
        cs += [{"c": c}, {"c": c, "beta": -0.7}, {"c": c, "beta": 0.0}, {"c": c, "beta": 1.0}]
    biases = [None, *(torch.randn(n, generator=gen).to(dtype) for dtype in DTYPES)]
    made = []
    for alpha, c, bias in itertools.product(alphas, cs, biases):
        keywords = dict(c)
        keywords.update({"alpha": alpha} if alpha is not None else {}, **({"bias": bias} if bias is not None else {}))
        made.append(keywords)
    return made


@pytest.mark.parametrize("out_dtype", DTYPES, ids=str)
@pytest.mark.parametrize("activation", [None, "relu"])
@EVERY_PAIR
def test_every_epilogue_option(
    left: str, right: str, activation: Any, out_dtype: Any, device: torch.device, gen: torch.Generator
) -> None:
    m, n = 5, 19
    a = exact_operand(m, 64, gen, A_FORMATS[left], SWIZZLED)
    b = exact_operand(n, 64, gen, A_FORMATS[right])
    acc = exact_accumulator(a, b)
    on_a, on_b = on(device, a), on(device, b)
    for keywords in options(gen, m, n):
        if activation:
            keywords["activation"] = activation
        shown = {key: getattr(value, "dtype", value) for key, value in keywords.items()}
        expected = epilogue(acc, a, b, **keywords).to(out_dtype)
        assert_bits_equal(bs.gemm(on_a, on_b, out_dtype=out_dtype, **on(device, keywords)), expected, str(shown))


@pytest.mark.parametrize("out_dtype", DTYPES, ids=str)
def test_all_options_at_once_against_the_reference(out_dtype: Any, device: torch.device, gen: torch.Generator) -> None:
    a = exact_operand(129, 144, gen, {"scaling": "row"}, SWIZZLED)
    b = exact_operand(65, 144, gen, {"block": (16, 16)}, SWIZZLED)
    for dtype in DTYPES:
        keywords = {
            "alpha": torch.rand((), generator=gen),
            "beta": 0.37,
            "c": torch.randn(129, 65, generator=gen).to(dtype),
            "bias": torch.randn(65, generator=gen).to(dtype),
            "activation": "relu",
        }
        check(a, b, device, out_dtype, str(dtype), **keywords)


@pytest.mark.parametrize("layout", [LINEAR, SWIZZLED], ids=str)
@pytest.mark.parametrize("extra", [16, 32, 48, 1024])
@EVERY_PAIR
def test_zero_codes_and_scales_at_the_end_change_nothing(
    left: str, right: str, extra: int, layout: Any, device: torch.device, gen: torch.Generator
) -> None:
    """The K-extension that kernels with wider K steps rely on."""
    a, b = exact_operand(20, 80, gen, A_FORMATS[left]), exact_operand(36, 80, gen, A_FORMATS[right])

    def extended(op: Any) -> Any:
        longer = bs.NVFP4Operand(
            torch.nn.functional.pad(op.qdata, (0, extra // 2)),
            torch.nn.functional.pad(op.block_scale.view(torch.uint8), (0, extra // 16)),
            op.amax,
            (op.rows, op.k + extra),
            format=op.format,
        )
        return longer if layout is LINEAR else ref.swizzle_scales(longer)

    expected = bs.gemm(on(device, a), on(device, b), out_dtype=F32)
    assert_bits_equal(bs.gemm(on(device, extended(a)), on(device, extended(b)), out_dtype=F32), expected, "d")
