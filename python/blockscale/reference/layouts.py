# SPDX-License-Identifier: Apache-2.0
"""Block scales from LINEAR to SWIZZLED_128X4 order and back. numerics, section 10."""

from __future__ import annotations

import torch

from ..errors import type_error
from ..formats import BLOCK, ScaleLayout
from ..operand import NVFP4Operand


def swizzle_scales(op: NVFP4Operand) -> NVFP4Operand:
    """The operand with its block scales in SWIZZLED_128X4 layout; ``op`` itself if they already are.

    Args:
        op: any operand. qdata and amax are shared with the result.

    Raises:
        TypeError: ``op`` is not an NVFP4Operand.
    """
    _check("swizzle_scales", op)
    if op.layout is ScaleLayout.SWIZZLED_128X4:
        return op
    linear = op.block_scale.view(torch.uint8)
    shape = ScaleLayout.SWIZZLED_128X4.shape(op.rows, op.k)
    swizzled = torch.zeros(shape, dtype=torch.uint8, device=op.device)
    swizzled.view(-1)[swizzled_offsets(op.rows, op.k, op.device)] = linear
    return _with_scales(op, swizzled, ScaleLayout.SWIZZLED_128X4)


def unswizzle_scales(op: NVFP4Operand) -> NVFP4Operand:
    """The operand with its block scales in LINEAR layout; ``op`` itself if they already are.

    Args:
        op: any operand. qdata and amax are shared with the result.

    Raises:
        TypeError: ``op`` is not an NVFP4Operand.
    """
    _check("unswizzle_scales", op)
    if op.layout is ScaleLayout.LINEAR:
        return op
    swizzled = op.block_scale.view(torch.uint8).view(-1)
    return _with_scales(op, swizzled[swizzled_offsets(op.rows, op.k, op.device)], ScaleLayout.LINEAR)


def swizzled_offsets(rows: int, k: int, device: torch.device | str = "cpu") -> torch.Tensor:
    """Byte offset of each block scale (r, b) in SWIZZLED_128X4: int64 (rows, K/16).

    ``((r/128) * (C/4) + b/4) * 512 + (r%32) * 16 + ((r%128)/32) * 4 + b%4``, integer division, C = K/16 rounded up to
    a multiple of 4: an atom of 512 bytes holds 128 rows by 4 blocks.
    """
    r = torch.arange(rows, device=device)[:, None]
    b = torch.arange(k // BLOCK, device=device)[None, :]
    atoms_in_row = ScaleLayout.SWIZZLED_128X4.shape(rows, k)[1] // 4
    atom = (r // 128) * atoms_in_row + b // 4
    return atom * 512 + (r % 32) * 16 + (r % 128) // 32 * 4 + b % 4


def _check(op_name: str, op: NVFP4Operand) -> None:
    if not isinstance(op, NVFP4Operand):
        raise type_error(op_name, "op", "an NVFP4Operand", type(op).__name__)


def _with_scales(op: NVFP4Operand, scale_bytes: torch.Tensor, layout: ScaleLayout) -> NVFP4Operand:
    block_scale = scale_bytes.view(torch.float8_e4m3fn)
    return NVFP4Operand(op.qdata, block_scale, op.amax, op.shape, layout, op.format, op.orientation)
