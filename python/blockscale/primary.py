# SPDX-License-Identifier: Apache-2.0
"""Primary weights, one weight at a time: from shards of high-precision masters to an NVFP4 weight with (16, 16) blocks.

A rank holds any contiguous range of a weight's elements. `partial_amax` finds the maxima of the tiles that it sees, an
all-reduce of them makes those of the weight, `fused_scale` turns these into scales on every rank, `partial_cast` writes
the codes of the rank's own elements. What comes together equals `quantize(weight, block=(16, 16))`, bit for bit:
docs/numerics.md section 13. `multi_tensor.py` has the same for lists of weights, in one launch a stage.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch
from torch import Tensor

from . import primary_ops
from ._checks import check_layout, check_second_level
from ._codes import layout_code
from ._primary_checks import (
    check_buffer,
    check_e4m3_max,
    check_fragment,
    check_kind,
    check_lengths,
    check_out_scales,
    check_round_to,
    check_row_stride,
    check_shape,
    check_shard,
    check_tile_amax,
    check_tile_scales,
)
from .errors import type_error, value_error
from .formats import BLOCK, ScaleLayout
from .fused_scales import FusedScales

_E4M3 = torch.float8_e4m3fn
_SHARD_NAMES = ("shard", "shape", "start")


def partial_amax(
    shard: Tensor,
    shape: Sequence[int],
    start: int,
    *,
    round_to: torch.dtype | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """The largest magnitude of each 16 x 16 tile of a weight over the elements that a shard holds.

    Args:
        shard: float32, bfloat16 or float16, contiguous: elements start .. start + shard.numel() - 1 of the weight in
            row-major order. It may be empty, and may begin and end anywhere.
        shape: the whole weight's shape (..., K), K a multiple of 16; M is the product of the other sizes.
        start: the shard's first element.
        round_to: None, or the dtype to which each element is rounded (nearest even) before it counts.
        out: float32 (ceil(M/16), K/16) to write into.

    Returns:
        float32 (ceil(M/16), K/16); 0 where the shard holds nothing of a tile, so that an all-reduce (MAX, on the
        int32 view, which keeps NaN) over the ranks gives those of the weight. `out` itself if given.

    Raises:
        TypeError, ValueError: a wrong type, dtype, shape, range or device.
    """
    name = "partial_amax"
    held = check_shard(name, _SHARD_NAMES, shard, shape, start)
    code = check_round_to(name, round_to)
    arguments = (held.data, held.m, held.k, held.start, code)
    if out is None:
        result: Tensor = primary_ops.partial_amax(*arguments)
        return result
    primary_ops.partial_amax_out(*arguments, check_tile_amax(name, "out", out, held.m, held.k, held.data.device))
    return out


def fused_scale(
    tile_amax: Tensor,
    amax: Tensor | float,
    shape: Sequence[int],
    *,
    layout: ScaleLayout = ScaleLayout.LINEAR,
    e4m3_max: int = 448,
    row_stride: int | None = None,
    out: FusedScales | None = None,
) -> FusedScales:
    """The scales of a weight from the maxima of its tiles: ``s = e4m3(tile_amax * (Se * (1/6)))``, Se = N / amax.

    Args:
        tile_amax: float32 (ceil(M/16), K/16) of the whole weight.
        amax: the second level G: float32 () or (1,), or a Python float.
        shape: the weight's shape (..., K).
        layout: where the block scales stand.
        e4m3_max: 448 or 256; N = 6 * e4m3_max.
        row_stride: bytes from a row of block scales to the next, at least K/16, which is the default. LINEAR only.
        out: tensors to write into. In the linear layout out.block_scale may have more than M rows and more than K/16
            columns, which are written as zero; row_stride is then its second size.

    Returns:
        The E4M3 scales of the tiles, the block scales of the operand with zero in every padding byte, and |G|.

    Raises:
        TypeError, ValueError: a wrong type, dtype, shape, stride or device.
    """
    name = "fused_scale"
    m, k = check_shape(name, "shape", shape)
    check_layout(name, layout)
    check_e4m3_max(name, e4m3_max)
    device = check_kind(name, "tile_amax", tile_amax).device
    tiles = check_tile_amax(name, "tile_amax", tile_amax, m, k, device)
    second = check_second_level(name, "amax", amax, "tensor", 0, device)
    stride = check_row_stride(name, row_stride, layout, k)
    if out is None:
        arguments = (tiles, second, m, k, layout_code(layout), e4m3_max, k // BLOCK if stride is None else stride)
        scales, block_scale, stored = primary_ops.fused_scale(*arguments)
        return FusedScales(scales.view(_E4M3), block_scale.view(_E4M3), stored)
    parts = check_out_scales(name, "out", out, m, k, layout, stride, device)
    arguments = (tiles, second, m, k, layout_code(layout), e4m3_max, parts[1].shape[1])
    primary_ops.fused_scale_out(*arguments, *parts)
    return out


def partial_cast(
    shard: Tensor,
    out: Tensor,
    tile_scales: Tensor,
    amax: Tensor | float,
    shape: Sequence[int],
    start: int,
    *,
    round_to: torch.dtype | None = None,
    e4m3_max: int = 448,
) -> Tensor:
    """The codes of a shard, into its fragment of the weight's packed codes.

    Element i goes to byte ``(i >> 1) - (start >> 1)`` of `out`, to the low nibble if i is even. A nibble of an element
    that the shard does not hold keeps its value: with an odd start or end the first or last byte is shared with a
    neighbour. Calls that share a byte must be ordered by the caller.

    Args:
        shard, shape, start, round_to: as for `partial_amax`.
        out: uint8, contiguous, of the ``((start + length + 1) >> 1) - (start >> 1)`` bytes of the fragment.
        tile_scales: float8_e4m3fn (or its bytes) (ceil(M/16), K/16) of the whole weight, from `fused_scale`.
        amax: the second level G, as given to `fused_scale`.
        e4m3_max: 448 or 256, as given to `fused_scale`.

    Returns:
        `out`.

    Raises:
        TypeError, ValueError: a wrong type, dtype, shape, range or device.
    """
    name = "partial_cast"
    held = check_shard(name, _SHARD_NAMES, shard, shape, start)
    code = check_round_to(name, round_to)
    check_e4m3_max(name, e4m3_max)
    fragment = check_fragment(name, "out", out, held)
    device = held.data.device
    scales = check_tile_scales(name, "tile_scales", tile_scales, held.m, held.k, device)
    second = check_second_level(name, "amax", amax, "tensor", 0, device)
    primary_ops.partial_cast(held.data, fragment, scales, second, held.m, held.k, held.start, code, e4m3_max)
    return out


def merge_fragments(
    fragments: Sequence[Tensor],
    starts: Sequence[int],
    lengths: Sequence[int],
    shape: Sequence[int],
    *,
    out: Tensor | None = None,
) -> Tensor:
    """The packed codes of a weight from the fragments that `partial_cast` wrote for its shards.

    Where a shard begins or ends on an odd element, two fragments have a copy of the same byte, each with one nibble
    that counts: byte j is ``(copy of the shard with element 2j & 0x0F) | (copy of the one with 2j + 1 & 0xF0)``.

    Args:
        fragments: uint8, contiguous; fragment i holds the elements starts[i] .. starts[i] + lengths[i] - 1.
        starts, lengths: in elements. Shards do not overlap, in any order; empty ones have empty fragments.
        shape: the weight's shape (..., K).
        out: uint8 (M, K/2), contiguous, to write into: nibbles that no shard holds keep their value. Without it they
            are zero.

    Returns:
        uint8 (M, K/2), the operand's qdata; `out` itself if given.

    Raises:
        TypeError, ValueError: a wrong type, dtype, size, range or device; shards that overlap.
    """
    name = "merge_fragments"
    m, k = check_shape(name, "shape", shape)
    lists = {"fragments": fragments, "starts": starts, "lengths": lengths}
    count = check_lengths(name, "fragments", lists)
    bounds = [_bounds(name, i, starts[i], lengths[i], m * k) for i in range(count)]
    if count == 0 and out is None:
        raise value_error(name, "fragments", "at least one, or out given", "an empty list")
    device = out.device if isinstance(out, Tensor) else check_kind(name, "fragments[0]", fragments[0]).device
    for i, (first, last) in enumerate(bounds):
        size = ((last + 1) >> 1) - (first >> 1) if last > first else 0
        check_buffer(name, f"fragments[{i}]", fragments[i], (torch.uint8,), (size,), device)
    order = [(first, last, i) for i, (first, last) in enumerate(bounds) if last > first]
    if any(p[0] > q[0] for p, q in itertools.pairwise(order)):  # torch.compile cannot sort sizes that are symbols
        order.sort()
    for (_, end, before), (begin, _, after) in itertools.pairwise(order):
        if begin < end:
            raise value_error(
                name, f"starts[{after}]", f"at least {end}, where the shard of fragments[{before}] ends", begin
            )
    if out is None:
        out = torch.zeros((m, k // 2), dtype=torch.uint8, device=device)
    else:
        check_buffer(name, "out", out, (torch.uint8,), (m, k // 2), device)
    flat = out.view(-1)
    for first, last, i in order:
        _merge_one(flat[first >> 1 : (last + 1) >> 1], fragments[i], first % 2 == 1, last % 2 == 1)
    return out


def _merge_one(target: Tensor, fragment: Tensor, shared_first: bool, shared_last: bool) -> None:
    """A fragment into its bytes; of a shared first byte the high nibble, of a shared last byte the low one."""
    size = fragment.numel()
    if shared_first:
        target[0] = (target[0] & 0x0F) | (fragment[0] & 0xF0)
    if shared_last:
        target[size - 1] = (target[size - 1] & 0xF0) | (fragment[size - 1] & 0x0F)
    target[int(shared_first) : size - int(shared_last)] = fragment[int(shared_first) : size - int(shared_last)]


def _bounds(name: str, i: int, start: object, length: object, total: int) -> tuple[int, int]:
    for arg, value in ((f"starts[{i}]", start), (f"lengths[{i}]", length)):
        if not isinstance(value, int) or isinstance(value, bool):
            raise type_error(name, arg, "an int", type(value).__name__)
        if value < 0:
            raise value_error(name, arg, "non-negative", value)
    first, count = int(start), int(length)  # type: ignore[call-overload]
    if first + count > total:
        rule = f"so that the shard lies within the {total} elements of shape"
        raise value_error(name, f"starts[{i}]", rule, f"{first} for {count} elements")
    return first, first + count
