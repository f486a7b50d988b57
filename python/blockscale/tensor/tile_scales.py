# SPDX-License-Identifier: Apache-2.0
"""Tile scales of (16, 16) blocks: one byte a tile out of a block_scale in either layout, and back.

Offsets are those of numerics, section 10. In SWIZZLED_128X4 the scale of (row r, block b) stands at
[r//128, b//4, r%32, r%128//32, b%4] of the buffer as (R/128, C/4, 32, 4, 4). The sixteen
rows of a tile are one half of the axis of 32.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..formats import BLOCK, ScaleLayout
from ..operand import NVFP4Operand

_ATOM_ROWS = 128
_TILES = _ATOM_ROWS // BLOCK


def gather_tiles(op: NVFP4Operand) -> Tensor:
    """The scale of each tile, uint8 (ceil(rows/16), K/16), contiguous."""
    scales = op.block_scale.view(torch.uint8)
    if op.layout is ScaleLayout.LINEAR:
        return scales[::BLOCK].contiguous()
    tiles, blocks = -(-op.rows // BLOCK), op.k // BLOCK
    first_rows = _atoms(scales)[:, :, :, 0]  # row 0 of each tile
    return first_rows.permute(0, 3, 2, 1, 4).reshape(-1, scales.shape[1])[:tiles, :blocks].contiguous()


def spread_tiles(tiles: Tensor, op: NVFP4Operand) -> None:
    """Writes the block_scale of an operand, padding included, from the scale of each tile."""
    scales = op.block_scale.view(torch.uint8)
    blocks = op.k // BLOCK
    if scales.numel() == 0:
        return
    whole, rest = divmod(op.rows, BLOCK)
    if op.layout is ScaleLayout.LINEAR:
        scales[: whole * BLOCK].view(whole, BLOCK, blocks).copy_(tiles[:whole].unsqueeze(1))
        if rest:
            scales[whole * BLOCK :].copy_(tiles[whole:])
        return
    padded = tiles.new_zeros((scales.shape[0] // BLOCK, scales.shape[1]))
    padded[: tiles.shape[0], :blocks].copy_(tiles)
    atoms = _atoms(scales)
    by_tile = padded.view(-1, 4, 2, scales.shape[1] // 4, 4)
    atoms.copy_(by_tile.permute(0, 3, 2, 1, 4).unsqueeze(3))
    if rest:  # rows of the last tile that do not exist
        atoms[whole // _TILES, :, whole % 2, rest:, whole % _TILES // 2].zero_()


def _atoms(scales: Tensor) -> Tensor:
    """A swizzled buffer (R, C) as [R/128, C/4, half, row in the tile, q = r%128//32, b%4]; its tile is 2 * q + half."""
    return scales.view(scales.shape[0] // _ATOM_ROWS, scales.shape[1] // 4, 2, BLOCK, 4, 4)
