# SPDX-License-Identifier: Apache-2.0
"""The scale functions of the reference: constants, golden intermediate values, and a second derivation in numpy."""

import ml_dtypes
import numpy as np
import pytest
import torch

from blockscale import reference
from blockscale.formats import NVFP4
from blockscale.reference.fp32 import FLT_MAX, constant, divide, magnitude_bits, max_magnitude
from blockscale.reference.scales import (
    block_scale,
    decode_scale,
    element_scale,
    encode_scale,
    unrounded_block_scale,
)
from tests.bits import assert_bits_equal, from_bits
from tests.cases import VECTOR_CASES, CastCase

INF = float("inf")
NAN = float("nan")


@pytest.mark.parametrize(
    ("value", "bits"),
    [
        (divide(1.0, torch.tensor(6.0)), 0x3E2AAAAB),
        (divide(1.0, torch.tensor(2688.0)), 0x39C30C31),
        (divide(1.0, torch.tensor(1536.0)), 0x3A2AAAAB),
        (torch.tensor(FLT_MAX), 0x7F7FFFFF),
        (torch.tensor(float(NVFP4().second_level_range)), 0x45280000),
        (torch.tensor(float(NVFP4(e4m3_max=256).second_level_range)), 0x44C00000),
    ],
)
def test_constants(value: torch.Tensor, bits: int) -> None:
    assert_bits_equal(value, from_bits(bits).view(()), hex(bits))


@pytest.mark.parametrize("case", [case for case in VECTOR_CASES if case.steps], ids=str)
def test_steps_of_the_vectors(case: CastCase) -> None:
    n = NVFP4(**case.format).second_level_range
    se = encode_scale(from_bits(*case.amax), n)
    assert_bits_equal(se, from_bits(case.steps["Se"]), "Se")
    if "d" in case.steps:
        block_amax = reference.amax(case.x()).view(1)
        assert_bits_equal(unrounded_block_scale(block_amax, se), from_bits(case.steps["d"]), "d")
        scale = block_scale(block_amax, se)
        assert bytes(scale.tolist()).hex().upper() == case.scales
        assert_bits_equal(element_scale(scale, se), from_bits(case.steps["e"]), "e")


@pytest.mark.parametrize("n", [2688, 1536])
def test_scales_against_numpy(n: int) -> None:
    gen = torch.Generator().manual_seed(n)
    # Any positive finite bits, a never above G; then pairs within a factor of 2^12, where scales are not 0.
    g = torch.randint(1, 0x7F800000, (40_000,), generator=gen, dtype=torch.int32).view(torch.float32)
    near = g * torch.rand(g.shape, generator=gen) ** 6
    a = torch.cat((torch.minimum(g, g.flip(0)), near))
    g = g.repeat(2)
    with np.errstate(over="ignore", divide="ignore", under="ignore"):
        f = np.float32
        a_np, g_np, largest = a.numpy(), g.numpy(), np.finfo(f).max
        se_np = np.minimum(f(n) / g_np, largest)
        d_np = np.minimum(a_np * (se_np * f(1 / 6)), largest)
        s_np = np.minimum(d_np, f(448)).astype(ml_dtypes.float8_e4m3fn)
        e_np = np.minimum(f(1) / (s_np.astype(f) * (f(1) / se_np)), largest)
    se = encode_scale(g, n)
    scale = block_scale(a, se)
    assert len(set(scale.tolist())) > 100
    assert_bits_equal(se, torch.from_numpy(se_np), "Se")
    assert_bits_equal(scale, torch.from_numpy(s_np.view(np.uint8)), "s")
    assert_bits_equal(element_scale(scale, se), torch.from_numpy(e_np), "e")


@pytest.mark.parametrize(("n", "byte"), [(2688, 0x7E), (1536, 0x78)])
def test_block_with_the_amax_gets_the_top_byte(n: int, byte: int) -> None:
    step = 997
    g = torch.arange(0x05280001, 0x7F800000, step, dtype=torch.int32).view(torch.float32)
    assert (block_scale(g, encode_scale(g, n)) == byte).all()


def test_second_level_edges() -> None:
    g = torch.tensor([0.0, -0.0, 1e-45, -8.0, INF, -INF, NAN])
    se = encode_scale(g, 2688)
    assert se.tolist()[:4] == [1.0, 1.0, FLT_MAX, 336.0]
    assert se[4:].isnan().all()
    one = torch.ones(1)
    assert block_scale(torch.tensor([NAN, INF, 1.0]), one).tolist()[:2] == [0x7F, 0x7F]
    assert block_scale(one, torch.tensor([NAN])).item() == 0x7F
    assert element_scale(torch.tensor([0x7F], dtype=torch.uint8), one).isnan().all()
    assert element_scale(torch.tensor([0], dtype=torch.uint8), one).item() == FLT_MAX


def test_decode_scale_is_a_product_with_the_rounded_reciprocal() -> None:
    assert_bits_equal(decode_scale(torch.tensor(8.0), 2688), from_bits(0x3B430C31).view(()), "8")
    assert_bits_equal(decode_scale(torch.tensor(100.0), 2688), from_bits(0x3D186186).view(()), "100")


def test_division_is_one_rounding() -> None:
    q = torch.arange(1, 20_000, dtype=torch.float32)
    expected = torch.from_numpy(np.float32(2688) / q.numpy())
    assert_bits_equal(divide(2688.0, q), expected, "2688 / q")
    assert ((constant(2688.0, q) * q.reciprocal()) != expected).any()  # the trap that `divide` avoids


def test_maxima_keep_nan_and_inf() -> None:
    x = torch.tensor([[1.0, -NAN, INF], [-INF, 3.0, 3e38], [-0.0, -2.0, 1e-45], [0.0, -0.0, 0.0]])
    assert_bits_equal(max_magnitude(x, (1,)), from_bits(0x7FC00000, 0x7F800000, 0x40000000, 0), "rows")
    assert magnitude_bits(torch.tensor([-1e-45, -0.0])).tolist() == [1, 0]
