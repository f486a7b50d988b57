# SPDX-License-Identifier: Apache-2.0
"""relu to the bit; silu and the two gelus within 2^-21 of |t|; NaN and infinities. numerics, section 11.2."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import blockscale as bs
from tests.bits import assert_bits_equal, from_bits
from tests.gemm.operands import DTYPES, EPS, activated, epilogue, exact_accumulator, exact_operand, on, operand

F32 = torch.float32
INF, NAN = float("inf"), float("nan")
SMOOTH = pytest.mark.parametrize("name", ["silu", "gelu", "gelu_tanh"])


def through_bias(t: torch.Tensor, device: torch.device, **keywords: Any) -> torch.Tensor:
    """activation(t): a product of zeros plus t as the bias."""
    zeros = torch.zeros(1, 16, dtype=torch.uint8), torch.zeros(1, 1, dtype=torch.uint8)
    b = torch.zeros(len(t), 16, dtype=torch.uint8), torch.zeros(len(t), 1, dtype=torch.uint8)
    d: torch.Tensor = bs.gemm(on(device, operand(*zeros)), on(device, operand(*b)), bias=t.to(device), **keywords)
    return d[0].cpu()


def points() -> torch.Tensor:
    """Every sign and magnitude, dense where the functions bend, and the edges of FP32."""
    powers = 2.0 ** torch.arange(-149, 128, dtype=torch.float64)
    dense = torch.cat((torch.linspace(-120, 120, 9601), torch.linspace(-8, 8, 4001), torch.linspace(-1, 1, 999)))
    edges = torch.tensor([3.4028234663852886e38, 87.5, 88.8, 103.9, 104.1, 5.4, 5.6, 13.2, 37.6])
    t = torch.cat((powers.float(), dense, edges))
    return torch.cat((t, -t))


@SMOOTH
def test_error_is_within_2_to_the_minus_21(name: str, device: torch.device) -> None:
    t = points()
    d = through_bias(t, device, out_dtype=F32, activation=name)
    exact = activated(t.double(), name)
    rounding = 2.0**-24 * exact.abs() + 2.0**-150
    assert ((d.double() - exact).abs() <= 2.0**-21 * t.double().abs() + rounding).all()


@SMOOTH
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_output_is_rounded_after_the_activation(name: str, dtype: Any, device: torch.device) -> None:
    t = points()[::7]
    t = t[t.abs() < 60000]
    wide = through_bias(t, device, out_dtype=F32, activation=name)
    assert_bits_equal(through_bias(t, device, out_dtype=dtype, activation=name), wide.to(dtype), "rounded once")


@SMOOTH
def test_not_finite(name: str, device: torch.device) -> None:
    d = through_bias(torch.tensor([INF, -INF, NAN, -NAN]), device, out_dtype=F32, activation=name)
    assert d[0] == INF
    assert d[1] == 0 or d[1].isnan()
    assert d[2].isnan()
    assert d[3].isnan()


def test_relu_to_the_bit(device: torch.device) -> None:
    t = torch.cat((points(), torch.tensor([0.0, -0.0, INF, -INF]), from_bits(1, 0x80000001)))
    d = through_bias(t, device, out_dtype=F32, activation="relu")
    assert_bits_equal(d, torch.where(t > 0, t, torch.zeros(())), "relu")  # -0 and negatives give +0
    assert through_bias(torch.tensor([NAN, -NAN]), device, out_dtype=F32, activation="relu").isnan().all()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@SMOOTH
def test_after_every_other_line(name: str, dtype: Any, device: torch.device, gen: torch.Generator) -> None:
    """The activation is the last line: on alpha * product + beta * C + bias."""
    a, b = exact_operand(33, 80, gen, {"scaling": "row"}), exact_operand(65, 80, gen)
    keywords: dict[str, Any] = {
        "alpha": 0.02,
        "beta": -0.6,
        "c": torch.randn(33, 65, generator=gen),
        "bias": torch.randn(65, generator=gen),
    }
    t = epilogue(exact_accumulator(a, b), a, b, **keywords).double()
    exact = activated(t, name)
    d = bs.gemm(on(device, a), on(device, b), out_dtype=dtype, activation=name, **on(device, keywords))
    error = (d.cpu().double() - exact).abs()
    tolerance = 2.0**-21 * t.abs()
    smallest = 2.0**-25 if dtype is torch.float16 else 0.0
    assert (error <= tolerance + EPS[dtype] * (exact.abs() + tolerance) + smallest).all()
    assert (t < -1).any() and (t > 1).any(), "both tails are tested"
