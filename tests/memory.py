# SPDX-License-Identifier: Apache-2.0
"""Buffers that show a write outside of them, or a byte inside that was never written."""

from __future__ import annotations

import math

import torch

from blockscale.formats import NVFP4, Orientation, ScaleLayout
from blockscale.operand import NVFP4Operand

GUARD = 0xA5
STALE = 0x7F
"""What a buffer holds before the call: E4M3's NaN, and as a scale byte still a legal one."""

_MARGIN = 512  # bytes; keeps every alignment that a kernel could ask for


class Guards:
    """Makes tensors inside larger allocations; `check` compares the bytes around them."""

    def __init__(self) -> None:
        self._made: list[tuple[torch.Tensor, int]] = []

    def empty(
        self, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device | str = "cpu", fill: int = STALE
    ) -> torch.Tensor:
        """A contiguous tensor of `fill` bytes with guards around."""
        size = math.prod(shape) * dtype.itemsize
        whole = torch.full((size + 2 * _MARGIN,), GUARD, dtype=torch.uint8, device=device)
        inside = whole[_MARGIN : _MARGIN + size]
        inside.fill_(fill)
        self._made.append((whole, size))
        return inside.view(dtype).view(shape)

    def operand(
        self,
        shape: tuple[int, ...],
        layout: ScaleLayout = ScaleLayout.LINEAR,
        format: NVFP4 | None = None,
        orientation: Orientation = "rowwise",
        device: torch.device | str = "cpu",
        fill: int = STALE,
    ) -> NVFP4Operand:
        """An operand for ``out=`` whose three buffers are guarded and hold `fill`."""
        fmt = format or NVFP4()
        rows, k = math.prod(shape[:-1]), shape[-1]
        return NVFP4Operand(
            self.empty((rows, k // 2), torch.uint8, device, fill),
            self.empty(layout.shape(rows, k), torch.float8_e4m3fn, device, fill),
            self.empty((rows,) if fmt.scaling == "row" else (), torch.float32, device, fill),
            shape,
            layout,
            fmt,
            orientation,
        )

    def check(self) -> None:
        """AssertionError, with the offset, where a guard byte changed."""
        for whole, size in self._made:
            around = torch.cat([whole[:_MARGIN], whole[_MARGIN + size :]]).cpu()
            bad = (around != GUARD).nonzero().flatten().tolist()
            offsets = [at - _MARGIN if at < _MARGIN else at - _MARGIN + size for at in bad[:8]]
            assert not bad, f"{len(bad)} bytes outside of a buffer of {size} were written, at offsets {offsets}"


def addresses(*operands: NVFP4Operand) -> list[int]:
    """Where the bytes of operands stand."""
    return [t.data_ptr() for op in operands for t in (op.qdata, op.block_scale, op.amax)]


def padding_bytes(op: NVFP4Operand) -> torch.Tensor:
    """The bytes of a swizzled block-scale buffer that belong to no block: found by the formula, one by one."""
    assert op.layout is ScaleLayout.SWIZZLED_128X4
    flat = op.block_scale.view(torch.uint8).cpu().flatten()
    blocks, columns = op.k // 16, op.block_scale.shape[1]
    used = torch.zeros(flat.numel(), dtype=torch.bool)
    for r in range(op.rows):
        for b in range(blocks):
            used[((r // 128) * (columns // 4) + b // 4) * 512 + (r % 32) * 16 + (r % 128) // 32 * 4 + b % 4] = True
    assert int(used.sum()) == op.rows * blocks
    return flat[~used]
