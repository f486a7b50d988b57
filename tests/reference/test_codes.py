# SPDX-License-Identifier: Apache-2.0
"""E2M1 and E4M3 codecs of the reference: every 16-bit input and every byte, against ml_dtypes."""

import math

import ml_dtypes
import numpy as np
import pytest
import torch

from blockscale.reference.codes import (
    E2M1_MAGNITUDES,
    E4M3_MAGNITUDES,
    e2m1,
    e2m1_value,
    e4m3,
    e4m3_value,
    pack,
    unpack,
)
from tests.bits import assert_bits_equal, from_hex

INF = float("inf")
NAN = float("nan")


def every(dtype: torch.dtype) -> torch.Tensor:
    """All 65,536 values of a 16-bit float, widened to FP32."""
    return torch.arange(-(2**15), 2**15, dtype=torch.int16).view(dtype).float()


def neighbours(values: torch.Tensor) -> torch.Tensor:
    """The values with the FP32 values just below and above them."""
    below, above = (torch.nextafter(values, torch.full_like(values, end)) for end in (-INF, INF))
    return torch.cat((below, values, above))


def ml_bytes(values: torch.Tensor, dtype: type) -> torch.Tensor:
    return torch.from_numpy(values.numpy().astype(dtype).view(np.uint8))


def midpoints(values: tuple[float, ...]) -> torch.Tensor:
    table = torch.tensor(values)
    return (table[1:] + table[:-1]) / 2


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_e2m1_of_every_16_bit_value(dtype: torch.dtype) -> None:
    x = every(dtype)
    number = x[~x.isnan()]
    assert_bits_equal(e2m1(number), ml_bytes(number, ml_dtypes.float4_e2m1fn), "e2m1")
    assert (e2m1(x[x.isnan()]) == 7).all()
    assert x.isnan().sum() > 100


def test_e2m1_around_every_boundary() -> None:
    points = torch.cat((midpoints(E2M1_MAGNITUDES), torch.tensor(E2M1_MAGNITUDES), torch.tensor([100.0, 3e38, 1e-45])))
    x = neighbours(torch.cat((points, -points)))
    assert_bits_equal(e2m1(x), ml_bytes(x, ml_dtypes.float4_e2m1fn), "e2m1")


def test_e2m1_table() -> None:
    ties = torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0])
    assert e2m1(ties).tolist() == [0, 2, 2, 4, 4, 6, 6]
    assert e2m1(-ties).tolist() == [8, 10, 10, 12, 12, 14, 14]
    assert e2m1(torch.tensor([0.0, -0.0, -0.1, INF, -INF, NAN, -NAN, -1e-45])).tolist() == [0, 8, 8, 7, 15, 7, 7, 8]


def test_e2m1_value_of_every_code() -> None:
    codes = torch.arange(16, dtype=torch.uint8)
    expected = codes.numpy().view(ml_dtypes.float4_e2m1fn).astype(np.float32)
    assert_bits_equal(e2m1_value(codes), torch.from_numpy(expected), "e2m1_value")
    assert math.copysign(1, float(e2m1_value(codes)[8])) == -1
    assert_bits_equal(e2m1(e2m1_value(codes)), codes, "round trip")


def test_e4m3_value_of_every_byte() -> None:
    scale_bytes = torch.arange(256, dtype=torch.uint8)
    expected = torch.from_numpy(scale_bytes.numpy().view(ml_dtypes.float8_e4m3fn).astype(np.float32))
    assert_bits_equal(e4m3_value(scale_bytes)[:0x80], expected[:0x80], "e4m3_value", nan_equal=True)
    assert e4m3_value(scale_bytes)[0x7F:].isnan().all()
    assert_bits_equal(e4m3(expected[:0x7F]), scale_bytes[:0x7F], "round trip")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_e4m3_of_every_16_bit_magnitude(dtype: torch.dtype) -> None:
    x = every(dtype)
    d = x[~x.isnan() & ~x.signbit()]
    assert d.numel() > 30_000
    assert_bits_equal(e4m3(d), ml_bytes(d.clamp(max=448), ml_dtypes.float8_e4m3fn), "e4m3")


def test_e4m3_around_every_boundary() -> None:
    points = torch.cat((midpoints(E4M3_MAGNITUDES), torch.tensor(E4M3_MAGNITUDES[1:]), torch.tensor([432.0, 464.0])))
    d = torch.cat((neighbours(points), torch.tensor([0.0, 1e-45, 1e-38, 3e38, INF])))
    clamped = d.clamp(max=448)
    assert_bits_equal(e4m3(d), ml_bytes(clamped, ml_dtypes.float8_e4m3fn), "e4m3 and ml_dtypes")
    assert_bits_equal(e4m3(d), clamped.to(torch.float8_e4m3fn).view(torch.uint8), "e4m3 and torch")


def test_e4m3_table() -> None:
    tiny = 2.0**-10
    d = torch.tensor([0.0, tiny, tiny * (1 + 2.0**-23), 3 * tiny, 431.9, 432.0, INF, 1.0, 256.0])
    assert e4m3(d).tolist() == [0x00, 0x00, 0x01, 0x02, 0x7D, 0x7E, 0x7E, 0x38, 0x78]


def test_pack_of_every_byte() -> None:
    every_byte = torch.arange(256, dtype=torch.uint8).view(2, 128)
    codes = unpack(every_byte)
    assert_bits_equal(pack(codes), every_byte, "pack(unpack)")
    assert codes.shape == (2, 256)
    assert (codes[0, 0::2] == torch.arange(128) % 16).all()  # the even column is the low nibble
    assert_bits_equal(pack(e2m1(torch.tensor([[6.0, -0.5]]))), from_hex("97", 1, 1), "6, -0.5")
