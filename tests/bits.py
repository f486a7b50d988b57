# SPDX-License-Identifier: Apache-2.0
"""Comparison of bytes, with a message that names the first element that differs."""

from __future__ import annotations

import torch

from blockscale.operand import NVFP4Operand

_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def assert_bits_equal(actual: torch.Tensor, expected: torch.Tensor, what: str, *, nan_equal: bool = False) -> None:
    """Two tensors of one shape and dtype with the same bytes. With nan_equal, any NaN equals any NaN.

    The tensors may be on different devices. Signed zeros differ, and so do NaNs of different bits unless nan_equal.
    """
    assert actual.dtype is expected.dtype, f"{what}: dtype {actual.dtype}, expected {expected.dtype}"
    assert actual.shape == expected.shape, f"{what}: shape {tuple(actual.shape)}, expected {tuple(expected.shape)}"
    left, right = actual.detach().cpu(), expected.detach().cpu()
    differ = _bits(left) != _bits(right)
    if nan_equal and left.dtype.is_floating_point:
        differ &= ~(left.float().reshape(-1).isnan() & right.float().reshape(-1).isnan())
    count = int(differ.sum())
    if count:
        first = int(differ.to(torch.uint8).argmax())
        index = tuple(int(i) for i in torch.unravel_index(torch.tensor(first), left.shape))
        raise AssertionError(
            f"{what}: {count} of {differ.numel()} elements differ, the first at {index}: "
            f"{_show(left, first)}, expected {_show(right, first)}"
        )


def assert_same_operand(p: NVFP4Operand, q: NVFP4Operand) -> None:
    """Every field of two operands is equal: bytes with the padding of the scales, amax bits, shape, layout, format.

    A NaN amax has one pattern of bits, 7FC00000, so it is compared as bits too.
    """
    for field in ("shape", "layout", "format", "orientation"):
        left, right = getattr(p, field), getattr(q, field)
        assert left == right, f"{field}: {left}, expected {right}"
    assert_bits_equal(p.amax, q.amax, "amax")
    assert_bits_equal(p.block_scale, q.block_scale, "block_scale")
    assert_bits_equal(p.qdata, q.qdata, "qdata")


def from_bits(*words: int) -> torch.Tensor:
    """FP32 tensor (len(words),) with these bits."""
    signed = [word - (1 << 32) if word >= 1 << 31 else word for word in words]
    return torch.tensor(signed, dtype=torch.int32).view(torch.float32)


def from_hex(text: str, *shape: int) -> torch.Tensor:
    """uint8 tensor of the bytes of a hex text with blanks, in memory order."""
    return torch.tensor(list(bytes.fromhex(text)), dtype=torch.uint8).view(shape)


def _bits(x: torch.Tensor) -> torch.Tensor:
    return x.contiguous().reshape(-1).view(_BITS[x.element_size()])


def _show(x: torch.Tensor, offset: int) -> str:
    digits = 2 * x.element_size()
    word = int(_bits(x)[offset]) & ((1 << (4 * digits)) - 1)
    flat = x.contiguous().reshape(-1)
    value = flat[offset].float() if x.dtype.is_floating_point else flat[offset]
    return f"0x{word:0{digits}X} ({value.item()})"
