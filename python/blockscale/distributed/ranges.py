# SPDX-License-Identifier: Apache-2.0
"""Ranges of a flattened weight, with their unit in the type: elements, or packed bytes of two codes."""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import type_error, value_error


@dataclass(frozen=True)
class ElementRange:
    """Elements ``start`` to ``stop - 1`` of a flattened weight."""

    start: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.start


@dataclass(frozen=True)
class PackedRange:
    """Bytes ``start`` to ``stop - 1`` of a weight's flattened qdata."""

    start: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.start


def shard_range(numel: int, rank: int, world_size: int) -> ElementRange:
    """The elements of one of `world_size` equal shards of a flattened weight.

    Every shard has ``ceil(numel / 2 / world_size) * 2`` elements, the last ones fewer or none, so that all boundaries
    are even and no byte has two owners: a plain all-gather of bytes is right.

    Raises:
        ValueError: numel that is negative or odd; a rank that is not in 0..world_size - 1.
    """
    if numel < 0 or numel % 2:
        raise value_error("shard_range", "numel", "even and not negative, K being a multiple of 16", numel)
    if world_size < 1 or not 0 <= rank < world_size:
        raise value_error("shard_range", "rank", f"in 0..{world_size - 1}", rank)
    size = -(-numel // 2 // world_size) * 2
    return ElementRange(min(rank * size, numel), min((rank + 1) * size, numel))


def packed_range(elements: ElementRange) -> PackedRange:
    """The bytes that hold the codes of elements: start >> 1 to (stop + 1) >> 1, none for an empty range.

    At an odd boundary the byte belongs to two ranges: see `merge_fragments`.

    Raises:
        TypeError: not an ElementRange; a PackedRange above all.
    """
    if not isinstance(elements, ElementRange):
        raise type_error("packed_range", "elements", "an ElementRange", type(elements).__name__)
    start = elements.start >> 1
    return PackedRange(start, (elements.stop + 1) >> 1 if len(elements) else start)
