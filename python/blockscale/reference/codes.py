# SPDX-License-Identifier: Apache-2.0
"""E2M1 and E4M3 in both directions, and two codes in a byte. numerics, section 1.

Rounding is a comparison with the midpoints between neighbouring values, so nothing is approximated: a midpoint is
exact in FP32, and a value equal to one goes to the even code.
"""

from __future__ import annotations

import itertools

import torch

from .fp32 import constant

E2M1_MAGNITUDES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
"""val(c) of the codes 0..7; bit 3 is the sign."""

E4M3_MAGNITUDES = tuple(
    (byte % 8) * 2.0**-9 if byte < 8 else (8 + byte % 8) * 2.0 ** (byte // 8 - 10) for byte in range(0x7F)
)
"""val(s) of the bytes 0x00..0x7E: 3 bits of fraction, exponent bias 7, steps of 2^-9 below 2^-6; the last is 448."""

E4M3_MAX = 448.0
E4M3_NAN = 0x7F
NAN_CODE = 7
"""The code that is written for a NaN. Its block scale is `E4M3_NAN`, which is what keeps it a NaN."""


def e2m1(y: torch.Tensor) -> torch.Tensor:
    """Nearest E2M1 codes, ties to the even code, of FP32 ``y``: uint8 of the same shape, values 0..15.

    The sign bit of y is kept also where the magnitude rounds to 0; beyond 5, and for inf, the magnitude is 6; NaN of
    either sign is 7. numerics, section 1.1.
    """
    sign = (y.contiguous().view(torch.int32) < 0).to(torch.uint8) * 8
    code = _nearest(y.abs(), E2M1_MAGNITUDES) + sign
    return torch.where(y.isnan(), torch.full_like(code, NAN_CODE), code)


def e2m1_value(codes: torch.Tensor) -> torch.Tensor:
    """val(c): the FP32 values of codes 0..15; code 8 is -0.0. numerics, section 1.1."""
    negative = tuple(-value for value in E2M1_MAGNITUDES)
    return _lookup(E2M1_MAGNITUDES + negative, codes)


def e4m3(d: torch.Tensor) -> torch.Tensor:
    """Nearest E4M3 bytes, ties to the even byte, of ``min(d, 448)`` for FP32 d >= 0 that is not NaN: 0x00..0x7E.

    numerics, section 1.2.
    """
    return _nearest(torch.fmin(d, constant(E4M3_MAX, d)), E4M3_MAGNITUDES)


def e4m3_value(scale_bytes: torch.Tensor) -> torch.Tensor:
    """val(s): the FP32 values of E4M3 bytes. 7F is NaN; so is 80..FF, which no operand may hold.

    numerics, section 1.2.
    """
    invalid = (float("nan"),) * (256 - len(E4M3_MAGNITUDES))
    return _lookup(E4M3_MAGNITUDES + invalid, scale_bytes)


def pack(codes: torch.Tensor) -> torch.Tensor:
    """Codes (rows, K) to bytes (rows, K/2): the even column in bits 0-3. numerics, section 1.1."""
    return codes[:, 0::2] | (codes[:, 1::2] << 4)


def unpack(qdata: torch.Tensor) -> torch.Tensor:
    """Bytes (rows, K/2) to codes (rows, K); the inverse of `pack`."""
    return torch.stack((qdata & 15, qdata >> 4), dim=-1).flatten(1)


def _nearest(magnitude: torch.Tensor, values: tuple[float, ...]) -> torch.Tensor:
    """Index of the nearest of the ascending ``values``; ties to the even index. NaN gives an index of no meaning."""
    midpoints = [(low + high) / 2 for low, high in itertools.pairwise(values)]
    boundaries = torch.tensor(midpoints, dtype=torch.float32, device=magnitude.device)
    below = torch.bucketize(magnitude.contiguous(), boundaries, out_int32=True)  # midpoints < magnitude
    up_to = torch.bucketize(magnitude.contiguous(), boundaries, out_int32=True, right=True)  # midpoints <= magnitude
    # The counts differ by one on a tie, and one of them is even.
    return torch.where(below % 2 == 0, below, up_to).to(torch.uint8)


def _lookup(table: tuple[float, ...], index: torch.Tensor) -> torch.Tensor:
    return torch.tensor(table, dtype=torch.float32, device=index.device)[index.long()]
