# SPDX-License-Identifier: Apache-2.0
"""The two levels of scaling: one second-level factor from the amax, one E4M3 byte and one multiplier from a block.

numerics, sections 2.1 and 6. Each line is one FP32 rounding, in the order that is the contract; other orders, such as
``amax / 6 * factor``, differ in some bytes.
"""

from __future__ import annotations

import torch

from .codes import E4M3_NAN, e4m3, e4m3_value
from .fp32 import FLT_MAX, constant, divide


def encode_scale(amax: torch.Tensor, n: int) -> torch.Tensor:
    """Second-level encode factor ``Se = N / |G|``; 1 for G = 0, at most FLT_MAX, NaN for G inf or NaN.

    Args:
        amax: FP32, any shape; the second level G.
        n: N, `NVFP4.second_level_range`.
    """
    magnitude = amax.abs()
    quotient = torch.fmin(divide(float(n), magnitude), constant(FLT_MAX, amax))
    se = torch.where(magnitude == 0, torch.ones_like(quotient), quotient)
    return torch.where(magnitude.isfinite(), se, torch.full_like(se, float("nan")))


def decode_scale(amax: torch.Tensor, n: int) -> torch.Tensor:
    """Second-level decode factor ``G * (1/N)``, both operations rounded; what a GEMM applies. numerics, 11.2."""
    return amax * divide(1.0, constant(n, amax))


def unrounded_block_scale(block_amax: torch.Tensor, se: torch.Tensor) -> torch.Tensor:
    """``d = min(a * (Se * (1/6)), FLT_MAX)``: the block scale before it is rounded to E4M3. For finite arguments."""
    sixth = divide(1.0, constant(6.0, se))
    m = se * sixth
    return torch.fmin(block_amax * m, constant(FLT_MAX, se))


def block_scale(block_amax: torch.Tensor, se: torch.Tensor) -> torch.Tensor:
    """E4M3 bytes of blocks with maximum ``a``: e4m3(d), or 7F where a or Se is inf or NaN."""
    return non_finite_as_nan(e4m3(unrounded_block_scale(block_amax, se)), block_amax, se)


def non_finite_as_nan(scale: torch.Tensor, block_amax: torch.Tensor, se: torch.Tensor) -> torch.Tensor:
    """``scale`` with 7F for each block whose maximum, or whose second level, is inf or NaN."""
    finite = block_amax.isfinite() & se.isfinite()
    return torch.where(finite, scale, torch.full_like(scale, E4M3_NAN))


def element_scale(scale: torch.Tensor, se: torch.Tensor) -> torch.Tensor:
    """What elements are multiplied by before rounding: ``e = min(1 / (val(s) * (1/Se)), FLT_MAX)``; NaN for 7F."""
    sd = divide(1.0, se)
    e = torch.fmin(divide(1.0, e4m3_value(scale) * sd), constant(FLT_MAX, se))
    return torch.where(scale == E4M3_NAN, torch.full_like(e, float("nan")), e)


def decoded_scale(scale: torch.Tensor, amax: torch.Tensor, n: int) -> torch.Tensor:
    """What a code's value is multiplied by to decode it: ``(val(s) * G) * (1/N)``. numerics, section 6.

    For G >= 1, 2^-10 is moved from G to 1/N, both exactly, so that val(s) * G stays finite.
    """
    inverse_n = divide(1.0, constant(n, amax))
    large = amax >= 1
    g = torch.where(large, amax * 2.0**-10, amax)
    inverse = torch.where(large, inverse_n * 2.0**10, inverse_n)
    t = e4m3_value(scale) * g
    return t * inverse
