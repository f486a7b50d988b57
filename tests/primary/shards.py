# SPDX-License-Identifier: Apache-2.0
"""Partitions of a weight into shards, and a whole cast by shards as ranks would do it, in one process."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import torch

from blockscale.formats import NVFP4, ScaleLayout
from blockscale.operand import NVFP4Operand
from tests.memory import Guards

TILES = NVFP4(block=(16, 16))

SHAPES = (
    (16, 16), (1, 16), (17, 48), (33, 16), (48, 80), (128, 64), (130, 208), (16, 1040), (129, 144), (40, 528),
    (272, 32),
)  # fmt: skip
"""Edges of tiles, of the swizzle's 4 and 128, of a CPU patch (1024 columns) and of a warp's strip (16 x 128)."""


def partition(total: int, cuts: int, gen: torch.Generator, unit: int = 1) -> list[int]:
    """Boundaries of cuts + 1 shards, multiples of unit; some shards are empty, some hold one element."""
    inner = (torch.randint(0, total // unit + 1, (cuts,), generator=gen) * unit).tolist()
    if unit == 1 and inner:
        inner += [inner[0], min(inner[0] + 1, total)]  # an empty shard and one of a single element
    return [0, *sorted(int(cut) for cut in inner), total]


def fragment_bytes(start: int, length: int) -> int:
    """Bytes that hold elements start .. start + length - 1, two to a byte."""
    return len({element // 2 for element in range(start, start + length)})


def reduced(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    """all_reduce(MAX) of amaxes on their int32 view, which keeps NaN and inf."""
    return torch.stack([part.view(torch.int32) for part in parts]).amax(0).view(torch.float32)


def cast_by_shards(
    api: Any,
    master: torch.Tensor,
    bounds: Sequence[int],
    *,
    round_to: torch.dtype | None = None,
    layout: ScaleLayout = ScaleLayout.LINEAR,
    e4m3_max: int = 448,
    guards: Guards | None = None,
) -> NVFP4Operand:
    """The operand that ranks with the shards between `bounds` make of a weight, every stage by `api`."""
    guards = guards or Guards()
    shape, flat, device = tuple(master.shape), master.flatten(), master.device
    ranges = [(a, b - a) for a, b in itertools.pairwise(bounds)]
    shards = [flat[start : start + length].clone() for start, length in ranges]
    tiles = [
        api.partial_amax(shard, shape, start, round_to=round_to)
        for shard, (start, _) in zip(shards, ranges, strict=True)
    ]
    tile_amax = reduced(tiles)
    amax = reduced([api.amax(tile) for tile in tiles])
    scales = api.fused_scale(tile_amax, amax, shape, layout=layout, e4m3_max=e4m3_max)
    fragments = []
    for shard, (start, length) in zip(shards, ranges, strict=True):
        fragment = guards.empty((fragment_bytes(start, length),), torch.uint8, device, fill=0x5A)
        api.partial_cast(shard, fragment, scales.tile_scales, amax, shape, start, round_to=round_to, e4m3_max=e4m3_max)
        fragments.append(fragment)
    starts, lengths = [start for start, _ in ranges], [length for _, length in ranges]
    qdata = api.merge_fragments(fragments, starts, lengths, shape)
    fmt = NVFP4(block=(16, 16), e4m3_max=e4m3_max)
    return NVFP4Operand(qdata, scales.block_scale, scales.amax, shape, layout, fmt)
