# SPDX-License-Identifier: Apache-2.0
"""One scale a tile out of a block_scale in either layout, and back with all padding written."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import blockscale as bs
from blockscale.tensor.tile_scales import gather_tiles, spread_tiles
from tests.bits import assert_bits_equal, assert_same_operand

from .samples import LAYOUTS, TILES, random


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("k", [16, 48, 64, 208])
@pytest.mark.parametrize("rows", [0, 1, 16, 17, 33, 112, 128, 144, 259, 384])
def test_gather_and_spread(rows: int, k: int, layout: Any, gen: torch.Generator, device: torch.device) -> None:
    x = random(rows, k, gen=gen) * torch.exp2(torch.arange(rows) % 48 // 16).unsqueeze(1)
    op = bs.quantize(x.to(device), layout=layout, **TILES)
    tiles = gather_tiles(op)
    linear = bs.unswizzle_scales(op).block_scale.view(torch.uint8)
    assert tiles.is_contiguous()
    assert_bits_equal(tiles, linear[::16], "tiles")
    target = op.clone()
    target.block_scale.view(torch.uint8).fill_(0xFF)
    spread_tiles(tiles, target)
    assert_same_operand(target, op)
