# SPDX-License-Identifier: Apache-2.0
"""Weights, masters and ways to cut them, for the tests of several ranks. The same on every rank: seeded by a name."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist

import blockscale as bs
from blockscale import NVFP4Tensor, ScaleLayout
from tests.bits import assert_bits_equal

SHAPES = ((48, 64), (16, 16), (112, 48), (37, 80), (1, 16), (128, 144))
"""K / 16 is 4, 1, 3, 5, 1, 9; M is a multiple of 16 or not, and 1."""


def generator(name: str) -> torch.Generator:
    return torch.Generator().manual_seed(zlib.crc32(name.encode()))


def empty_weights(
    shapes: Sequence[tuple[int, int]] = SHAPES, dtype: torch.dtype = torch.bfloat16,
    layout: ScaleLayout = ScaleLayout.LINEAR, e4m3_max: int = 448, device: torch.device | str = "cpu",
) -> list[NVFP4Tensor]:  # fmt: skip
    """Weights whose bytes are all 0xFF; columnwise is held where M allows it."""
    made = []
    for m, k in shapes:
        zeros = torch.zeros(m, k, dtype=dtype, device=device)
        weight = NVFP4Tensor.quantize(zeros, block=(16, 16), columnwise=m % 16 == 0, layout=layout, e4m3_max=e4m3_max)
        for op in weight._held.operands():
            op.qdata.fill_(0xFF)
            op.block_scale.view(torch.uint8).fill_(0x7F)
            op.amax.fill_(float("nan"))
        made.append(weight)
    return made


def random_masters(name: str, shapes: Sequence[tuple[int, int]] = SHAPES) -> list[torch.Tensor]:
    """FP32 values of very different size in different weights and rows."""
    gen = generator(name)
    return [
        torch.randn(m, k, generator=gen) * torch.exp(torch.randn(m, 1, generator=gen)) * 10.0 ** (i % 3)
        for i, (m, k) in enumerate(shapes)
    ]


Cut = Callable[[int, int, torch.Generator], list[int]]
"""(elements, ranks, generator) -> ranks + 1 boundaries."""


def _even(numel: int, ranks: int, gen: torch.Generator) -> list[int]:
    return [bs.distributed.shard_range(numel, rank, ranks).start for rank in range(ranks)] + [numel]


def _anywhere(numel: int, ranks: int, gen: torch.Generator) -> list[int]:
    inner = torch.randint(0, numel + 1, (ranks - 1,), generator=gen).tolist()
    return [0, *sorted(inner), numel]


def _odd(numel: int, ranks: int, gen: torch.Generator) -> list[int]:
    inner = (torch.randint(0, numel // 2, (ranks - 1,), generator=gen) * 2 + 1).tolist()
    return [0, *sorted(inner), numel]


def _one_element(numel: int, ranks: int, gen: torch.Generator) -> list[int]:
    """Rank 0 owns one element, the last one all others; those between nothing."""
    return [0, *([1] * (ranks - 1)), numel] if ranks > 1 else [0, numel]


def _all_in_one(numel: int, ranks: int, gen: torch.Generator) -> list[int]:
    """The last rank owns nothing: its shard starts behind the last element."""
    return [0, *([numel] * ranks)]


def _in_a_tile(numel: int, ranks: int, gen: torch.Generator) -> list[int]:
    """Boundaries inside of the first tile."""
    return [0, *[min(numel, 3 + 2 * rank) for rank in range(ranks - 1)], numel]


CUTS: dict[str, Cut] = {
    "even": _even,
    "anywhere": _anywhere,
    "odd": _odd,
    "one element": _one_element,
    "all in one": _all_in_one,
    "in a tile": _in_a_tile,
}


def cut_shards(
    masters: Sequence[torch.Tensor], cut: Cut, rank: int, ranks: int, gen: torch.Generator
) -> tuple[list[torch.Tensor | None], list[int | None], list[list[int]]]:
    """This rank's shards, their starts, and the boundaries of all; None where it owns nothing."""
    shards: list[torch.Tensor | None] = []
    starts: list[int | None] = []
    bounds = [cut(master.numel(), ranks, gen) for master in masters]
    for master, edges in zip(masters, bounds, strict=True):
        start, stop = edges[rank], edges[rank + 1]
        shards.append(master.reshape(-1)[start:stop].clone() if stop > start else None)
        starts.append(start if stop > start else None)
    return shards, starts, bounds


def gather_codes(weights: Sequence[NVFP4Tensor], bounds: list[list[int]], group: Any = None) -> None:
    """Every rank's codes into every rank's weights, by the merge rule: boundaries may be odd."""
    rank, ranks = dist.get_rank(group), dist.get_world_size(group)
    for weight, edges in zip(weights, bounds, strict=True):
        op = weight._held.rowwise
        assert op is not None
        start, stop = edges[rank], edges[rank + 1]
        mine = op.qdata.view(-1)[start >> 1 : (stop + 1) >> 1 if stop > start else start >> 1].cpu()
        fragments: list[Any] = [None] * ranks
        dist.all_gather_object(fragments, mine, group=group)
        lengths = [edges[i + 1] - edges[i] for i in range(ranks)]
        op.qdata.copy_(bs.merge_fragments(fragments, edges[:-1], lengths, tuple(weight.shape)))


def assert_equals_full(weights: Sequence[NVFP4Tensor], values: Sequence[torch.Tensor], what: str) -> None:
    """Each weight has the bytes that the oracle gives for the whole of its values, columnwise included."""
    for index, (weight, x) in enumerate(zip(weights, values, strict=True)):
        options = {"block": (16, 16), "layout": weight.scale_layout, "e4m3_max": weight.format.e4m3_max}
        pairs = [(weight.rowwise, bs.reference.quantize(x, **options))]
        if weight.wants_columnwise:
            pairs.append((weight.columnwise, bs.reference.quantize(x, orientation="columnwise", **options)))
        for got, want in pairs:
            place = f"{what}: weight {index} {tuple(weight.shape)} {got.orientation}"
            assert_bits_equal(got.qdata, want.qdata, f"{place} qdata")
            assert_bits_equal(got.block_scale.view(torch.uint8), want.block_scale.view(torch.uint8), f"{place} scales")
            assert_bits_equal(got.amax, want.amax, f"{place} amax")


def bytes_of(weights: Sequence[NVFP4Tensor]) -> list[torch.Tensor]:
    """Copies of every rowwise byte."""
    return [
        t.clone() for w in weights for t in (w._held.rowwise.qdata, w._held.rowwise.block_scale.view(torch.uint8))
    ]  # fmt: skip


def addresses(weights: Sequence[NVFP4Tensor]) -> list[int]:
    return [tensor.data_ptr() for weight in weights for tensor in weight._held.tensors()]
