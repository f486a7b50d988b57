# SPDX-License-Identifier: Apache-2.0
"""Plain FP32 arithmetic out of torch: constants, true division, magnitudes as integers, and no flushing to zero.

numerics, section 0. Two habits of torch are avoided here: ``number / tensor`` is a reciprocal and a product (two
roundings), and float maxima do not order NaN and inf.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

FLT_MAX = 3.4028234663852886e38
"""The largest finite FP32 value, bits 7F7FFFFF."""

_MAGNITUDE_BITS = 0x7FFFFFFF
_INF_BITS = 0x7F800000
_CANONICAL_NAN_BITS = 0x7FC00000


def constant(value: float, like: torch.Tensor) -> torch.Tensor:
    """``value`` as an FP32 tensor of shape () on the device of ``like``."""
    return torch.tensor(value, dtype=torch.float32, device=like.device)


def divide(p: torch.Tensor | float, q: torch.Tensor) -> torch.Tensor:
    """p / q, one correctly rounded FP32 division."""
    numerator = p if isinstance(p, torch.Tensor) else torch.full_like(q, p)
    return torch.div(numerator, q)


def magnitude_bits(x: torch.Tensor) -> torch.Tensor:
    """The bits of ``|x|`` as int32: they order as the magnitudes do, with NaN above inf above every finite value."""
    return x.contiguous().view(torch.int32) & _MAGNITUDE_BITS


def stored_amax(bits: torch.Tensor) -> torch.Tensor:
    """FP32 values of magnitude bits; every NaN becomes the canonical one, bits 7FC00000."""
    canonical = torch.where(bits > _INF_BITS, torch.full_like(bits, _CANONICAL_NAN_BITS), bits)
    return canonical.view(torch.float32)


def max_magnitude(x: torch.Tensor, dim: int | tuple[int, ...]) -> torch.Tensor:
    """max ``|x|`` over ``dim`` with NaN and inf kept; 0 over nothing."""
    bits = magnitude_bits(x)
    if bits.numel() == 0:
        return bits.sum(dim=dim, dtype=torch.int32).view(torch.float32)
    return stored_amax(bits.amax(dim=dim))


@contextmanager
def ieee_subnormals() -> Iterator[None]:
    """Compute with subnormals whatever the caller's flush-to-zero state is; the state is put back.

    One thread does the work: torch's other CPU threads keep the state that they were started in, out of reach.
    """
    threads = torch.get_num_threads()
    half_of_smallest_normal = torch.full((1,), 2.0**-126).mul_(0.5)
    flushing = int(half_of_smallest_normal.view(torch.int32)) == 0
    torch.set_num_threads(1)
    if flushing:
        torch.set_flush_denormal(False)
    try:
        yield
    finally:
        if flushing:
            torch.set_flush_denormal(True)
        torch.set_num_threads(threads)
