# SPDX-License-Identifier: Apache-2.0
"""Primary weights in plain torch: shards of masters to an NVFP4 weight of 16 x 16 tiles. numerics, section 13.1.

Elements are handled one index at a time: each element of a shard knows its tile and its nibble.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from ..errors import type_error, value_error
from ..formats import BLOCK, NVFP4, ScaleLayout
from ..fused_scales import FusedScales
from ..operand import NVFP4Operand
from .arguments import float_dtype, second_level
from .cast import transpose
from .codes import e2m1
from .fp32 import ieee_subnormals, magnitude_bits, stored_amax
from .layouts import swizzled_offsets
from .scales import block_scale, element_scale, encode_scale


@ieee_subnormals()
def partial_amax(
    shard: torch.Tensor,
    shape: Sequence[int],
    start: int,
    *,
    round_to: torch.dtype | None = None,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """The largest magnitude of each tile over the shard's elements; 0 for a tile of which it has none.

    Args:
        shard: any contiguous part of the weight, from element ``start`` on, float32, bfloat16 or float16.
        shape: the weight's (..., K), K a multiple of 16.
        start: first element.
        round_to: dtype to round to first, or None.
        out: where to write, float32 (ceil(M/16), K/16), or None.

    Raises:
        TypeError, ValueError: a dtype, a shape, or a range outside of the weight.
    """
    x, m, k, at = _shard("partial_amax", shard, shape, start, round_to)
    rows, columns = -(-m // BLOCK), k // BLOCK
    bits = torch.zeros(rows * columns, dtype=torch.int32, device=x.device)
    if len(x):
        bits.scatter_reduce_(0, _tile_of(at, k), magnitude_bits(x), "amax")
    result = stored_amax(bits).view(rows, columns)
    return result if out is None else out.copy_(result)


@ieee_subnormals()
def fused_scale(
    tile_amax: torch.Tensor,
    amax: torch.Tensor | float,
    shape: Sequence[int],
    *,
    layout: ScaleLayout = ScaleLayout.LINEAR,
    e4m3_max: int = 448,
    row_stride: int | None = None,
    out: FusedScales | None = None,
) -> FusedScales:
    """E4M3 scales of the tiles, the operand's block scales, and the stored amax.

    Args:
        tile_amax: float32 (ceil(M/16), K/16).
        amax: the second level, float32 () or (1,), or a number.
        shape: the weight's (..., K).
        layout: of the block scales.
        e4m3_max: 448 or 256.
        row_stride: of linear block scales; None: K/16, or that of ``out``.
        out: tensors to write into; linear block scales may have more rows and columns than the weight.

    Raises:
        TypeError, ValueError: a dtype, a shape, a stride.
    """
    name = "fused_scale"
    m, k = _matrix_shape(name, shape)
    n = NVFP4(block=(BLOCK, BLOCK), e4m3_max=e4m3_max).second_level_range
    if not isinstance(layout, ScaleLayout):
        raise type_error(name, "layout", "a ScaleLayout", type(layout).__name__)
    if not isinstance(tile_amax, torch.Tensor) or tile_amax.dtype is not torch.float32:
        raise type_error(name, "tile_amax", "a float32 tensor", getattr(tile_amax, "dtype", type(tile_amax).__name__))
    if tuple(tile_amax.shape) != (-(-m // BLOCK), k // BLOCK):
        raise value_error(name, "tile_amax", f"of shape {(-(-m // BLOCK), k // BLOCK)}", tuple(tile_amax.shape))
    if row_stride is not None and (row_stride < k // BLOCK or layout is not ScaleLayout.LINEAR):
        raise value_error(name, "row_stride", f"None, or at least {k // BLOCK} with linear scales", row_stride)
    g = second_level(name, "amax", amax, "tensor", 0, tile_amax.device)
    scales = block_scale(tile_amax, encode_scale(g, n))
    padded = (m, row_stride) if row_stride is not None else layout.shape(m, k)
    if out is not None and layout is ScaleLayout.LINEAR:
        padded = (out.block_scale.shape[0], out.block_scale.shape[1])
    blocks = torch.zeros(padded, dtype=torch.uint8, device=tile_amax.device)
    repeated = scales.repeat_interleave(BLOCK, dim=0)[:m]
    if layout is ScaleLayout.LINEAR:
        blocks[:m, : k // BLOCK] = repeated
    else:
        blocks.view(-1)[swizzled_offsets(m, k, tile_amax.device)] = repeated
    if out is None:
        return FusedScales(scales.view(torch.float8_e4m3fn), blocks.view(torch.float8_e4m3fn), g)
    out.tile_scales.view(torch.uint8).copy_(scales)
    out.block_scale.view(torch.uint8).copy_(blocks)
    out.amax.copy_(g)
    return out


@ieee_subnormals()
def partial_cast(
    shard: torch.Tensor,
    out: torch.Tensor,
    tile_scales: torch.Tensor,
    amax: torch.Tensor | float,
    shape: Sequence[int],
    start: int,
    *,
    round_to: torch.dtype | None = None,
    e4m3_max: int = 448,
) -> torch.Tensor:
    """The shard's codes, into the nibbles of ``out``: element i into byte (i >> 1) - (start >> 1), low if i is even.

    Args:
        shard, shape, start, round_to: as for `partial_amax`.
        out: uint8, the bytes that hold elements of the shard; other nibbles keep their value.
        tile_scales: E4M3 (ceil(M/16), K/16) of the whole weight.
        amax: its second level.
        e4m3_max: 448 or 256.

    Raises:
        TypeError, ValueError: a dtype, a shape, a range, a fragment of another size.
    """
    name = "partial_cast"
    n = NVFP4(block=(BLOCK, BLOCK), e4m3_max=e4m3_max).second_level_range
    x, m, k, at = _shard(name, shard, shape, start, round_to)
    first = start // 2
    size = (start + len(x) + 1) // 2 - first if len(x) else 0
    if not isinstance(out, torch.Tensor) or out.dtype is not torch.uint8:
        raise type_error(name, "out", "a uint8 tensor", getattr(out, "dtype", type(out).__name__))
    if out.numel() != size:
        raise value_error(name, "out", f"of {size} bytes", out.numel())
    if tuple(tile_scales.shape) != (-(-m // BLOCK), k // BLOCK):
        raise value_error(name, "tile_scales", f"of shape {(-(-m // BLOCK), k // BLOCK)}", tuple(tile_scales.shape))
    if not len(x):
        return out
    se = encode_scale(second_level(name, "amax", amax, "tensor", 0, x.device), n)
    e = element_scale(tile_scales.contiguous().view(torch.uint8).view(-1)[_tile_of(at, k)], se)
    nibbles = torch.stack((out.view(-1) & 15, out.view(-1) >> 4), dim=1).view(-1)
    nibbles[at - 2 * first] = e2m1(x * e)
    out.view(-1).copy_(nibbles[0::2] | (nibbles[1::2] << 4))
    return out


def merge_fragments(
    fragments: Sequence[torch.Tensor],
    starts: Sequence[int],
    lengths: Sequence[int],
    shape: Sequence[int],
    *,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """The weight's packed codes (M, K/2): each nibble from the fragment of the shard that holds its element.

    Args:
        fragments, starts, lengths: one of each for a shard; sizes in elements; no two shards overlap.
        shape: the weight's (..., K).
        out: where to write; nibbles of elements that no shard holds stay. None: they are 0.

    Raises:
        TypeError, ValueError: lists of different lengths, a range, a size, an overlap.
    """
    name = "merge_fragments"
    m, k = _matrix_shape(name, shape)
    if not len(fragments) == len(starts) == len(lengths):
        raise value_error(name, "starts", f"of {len(fragments)} entries, as fragments", len(starts))
    if out is None and not len(fragments):
        raise value_error(name, "fragments", "at least one, or out given", "an empty list")
    device = fragments[0].device if out is None else out.device
    target = torch.zeros(m, k // 2, dtype=torch.uint8, device=device) if out is None else out
    nibbles = torch.stack((target.reshape(-1) & 15, target.reshape(-1) >> 4), dim=1).view(-1)
    owners = torch.zeros(m * k, dtype=torch.int32, device=device)
    for i, (fragment, start, length) in enumerate(zip(fragments, starts, lengths, strict=True)):
        if start < 0 or length < 0 or start + length > m * k:
            raise value_error(name, f"starts[{i}]", f"so that the shard is within {m * k} elements", (start, length))
        size = (start + length + 1) // 2 - start // 2 if length else 0
        if fragment.numel() != size:
            raise value_error(name, f"fragments[{i}]", f"of shape ({size},)", tuple(fragment.shape))
        held = torch.stack((fragment & 15, fragment >> 4), dim=1).view(-1)
        nibbles[start : start + length] = held[start % 2 : start % 2 + length]
        owners[start : start + length] += 1
    if bool((owners > 1).any()):
        first = int((owners > 1).nonzero()[0])
        raise value_error(name, "starts", "of shards that do not overlap", f"two owners of element {first}")
    target.copy_((nibbles[0::2] | (nibbles[1::2] << 4)).view(target.shape))
    return target


def multi_tensor_partial_amax(
    shards: Sequence[torch.Tensor],
    shapes: Sequence[Sequence[int]],
    starts: Sequence[int],
    *,
    round_to: torch.dtype | None = None,
) -> list[torch.Tensor]:
    """`partial_amax` of each."""
    return [partial_amax(*item, round_to=round_to) for item in zip(shards, shapes, starts, strict=True)]


def multi_tensor_fused_scale(
    tile_amaxes: Sequence[torch.Tensor],
    amaxes: Sequence[torch.Tensor] | torch.Tensor,
    shapes: Sequence[Sequence[int]],
    *,
    layout: ScaleLayout = ScaleLayout.LINEAR,
    e4m3_max: int = 448,
) -> list[FusedScales]:
    """`fused_scale` of each."""
    items = zip(tile_amaxes, amaxes, shapes, strict=True)
    return [fused_scale(*item, layout=layout, e4m3_max=e4m3_max) for item in items]


def multi_tensor_partial_cast(
    shards: Sequence[torch.Tensor],
    outs: Sequence[torch.Tensor],
    tile_scales: Sequence[torch.Tensor],
    amaxes: Sequence[torch.Tensor] | torch.Tensor,
    shapes: Sequence[Sequence[int]],
    starts: Sequence[int],
    *,
    round_to: torch.dtype | None = None,
    e4m3_max: int = 448,
) -> list[torch.Tensor]:
    """`partial_cast` of each."""
    items = zip(shards, outs, tile_scales, amaxes, shapes, starts, strict=True)
    return [partial_cast(*item, round_to=round_to, e4m3_max=e4m3_max) for item in items]


def multi_tensor_transpose(ops: Sequence[NVFP4Operand]) -> list[NVFP4Operand]:
    """`transpose` of each."""
    return [transpose(op) for op in ops]


def _matrix_shape(op: str, shape: Sequence[int]) -> tuple[int, int]:
    if not isinstance(shape, (tuple, list)):
        raise type_error(op, "shape", "a shape (..., K)", type(shape).__name__)
    if not len(shape) or any(size < 0 for size in shape) or shape[-1] % BLOCK:
        raise value_error(op, "shape", f"(..., K) with K a multiple of {BLOCK}", tuple(shape))
    return math.prod(shape[:-1]), shape[-1]


def _shard(
    op: str, shard: torch.Tensor, shape: Sequence[int], start: int, round_to: torch.dtype | None
) -> tuple[torch.Tensor, int, int, torch.Tensor]:
    """The shard's FP32 values after rounding, M, K, and the index of each element in the weight."""
    if not isinstance(shard, torch.Tensor):
        raise type_error(op, "shard", "a torch.Tensor", type(shard).__name__)
    float_dtype(op, "shard", shard.dtype)
    m, k = _matrix_shape(op, shape)
    if not isinstance(start, int) or isinstance(start, bool):
        raise type_error(op, "start", "an int", type(start).__name__)
    if start < 0 or start + shard.numel() > m * k:
        raise value_error(op, "start", f"so that the shard is within {m * k} elements", (start, shard.numel()))
    x = shard.detach().reshape(-1)
    if round_to is not None:
        float_dtype(op, "round_to", round_to)
        x = x.to(round_to)
    return x.float(), m, k, torch.arange(start, start + len(x), device=x.device)


def _tile_of(index: torch.Tensor, k: int) -> torch.Tensor:
    """The number of the tile, in row-major order, that holds each element."""
    return index // (k * BLOCK) * (k // BLOCK) + index % k // BLOCK
