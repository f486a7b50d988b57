# SPDX-License-Identifier: Apache-2.0
"""The checks at the door of the primary-weight functions; docs/numerics.md section 13 has the rules."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ._checks import check_blocks, check_device, check_float_tensor
from ._codes import DTYPE_CODE, FLOAT_INPUTS
from .errors import type_error, value_error
from .formats import BLOCK, ScaleLayout
from .primary_ops import AS_IT_IS, tile_shape

_SCALE_DTYPES = (torch.float8_e4m3fn, torch.uint8)


@dataclass(frozen=True)
class Shard:
    """A checked shard: `data` (length,) of the elements start .. start + length - 1 of an (m, k) weight."""

    data: Tensor
    m: int
    k: int
    start: int


def check_shape(op: str, arg: str, shape: object) -> tuple[int, int]:
    """A weight's shape (..., K) as (M, K), K a multiple of 16."""
    if not isinstance(shape, (tuple, list)) or not all(isinstance(size, int) for size in shape):
        raise type_error(op, arg, "a shape (..., K)", type(shape).__name__)
    if len(shape) < 1 or any(size < 0 for size in shape):
        raise value_error(op, arg, "a shape (..., K) of non-negative sizes", tuple(shape))
    check_blocks(op, arg, shape[-1], "K")
    return math.prod(shape[:-1]), shape[-1]


def check_shard(op: str, names: tuple[str, str, str], shard: object, shape: object, start: object) -> Shard:
    """A shard and its place; `names` are those of the three arguments."""
    data = check_float_tensor(op, names[0], shard)
    m, k = check_shape(op, names[1], shape)
    if not isinstance(start, int) or isinstance(start, bool):
        raise type_error(op, names[2], "an int, the shard's first element", type(start).__name__)
    if not data.is_contiguous():
        raise value_error(op, names[0], "contiguous", f"strides {data.stride()}", "Call .contiguous().")
    length = data.numel()
    if start < 0 or start + length > m * k:
        rule = f"so that {names[0]} lies within the {m * k} elements of {names[1]}"
        raise value_error(op, names[2], rule, f"{start} for a shard of {length}", "Offsets count elements, not bytes.")
    return Shard(data.detach() if data.requires_grad else data, m, k, start)


def check_round_to(op: str, round_to: object) -> int:
    """The code of the dtype that masters are rounded to; that of float32 for None."""
    if round_to is None:
        return AS_IT_IS
    if not isinstance(round_to, torch.dtype) or round_to not in FLOAT_INPUTS:
        raise type_error(op, "round_to", "None, torch.float32, torch.bfloat16 or torch.float16", round_to)
    return DTYPE_CODE[round_to]


def check_e4m3_max(op: str, e4m3_max: object, arg: str = "e4m3_max") -> int:
    """448 or 256."""
    if not isinstance(e4m3_max, int) or isinstance(e4m3_max, bool):
        raise type_error(op, arg, "an int, 448 or 256", type(e4m3_max).__name__)
    if e4m3_max not in (448, 256):
        raise value_error(op, arg, "448 or 256", e4m3_max)
    return e4m3_max


def check_kind(op: str, arg: str, tensor: object) -> Tensor:
    """A tensor."""
    if not isinstance(tensor, Tensor):
        raise type_error(op, arg, "a torch.Tensor", type(tensor).__name__)
    return tensor


def check_buffer(
    op: str, arg: str, tensor: object, dtypes: tuple[torch.dtype, ...], shape: tuple[int, ...], device: torch.device
) -> Tensor:
    """A contiguous tensor of one of the dtypes, of this shape, on this device."""
    tensor = check_kind(op, arg, tensor)
    if tensor.dtype not in dtypes:
        raise type_error(op, arg, " or ".join(str(dtype) for dtype in dtypes), tensor.dtype)
    if tuple(tensor.shape) != shape:
        raise value_error(op, arg, f"of shape {shape}", tuple(tensor.shape))
    check_device(op, arg, tensor.device, device)
    if not tensor.is_contiguous():
        raise value_error(op, arg, "contiguous", f"strides {tensor.stride()}", "Call .contiguous().")
    return tensor.detach() if tensor.requires_grad else tensor


def check_tile_amax(op: str, arg: str, tile_amax: object, m: int, k: int, device: torch.device) -> Tensor:
    """Float32 (T, K/16)."""
    return check_buffer(op, arg, tile_amax, (torch.float32,), tile_shape(m, k), device)


def check_tile_scales(op: str, arg: str, tile_scales: object, m: int, k: int, device: torch.device) -> Tensor:
    """E4M3 (T, K/16), or the same as uint8, as bytes."""
    return check_buffer(op, arg, tile_scales, _SCALE_DTYPES, tile_shape(m, k), device).view(torch.uint8)


def check_row_stride(op: str, row_stride: object, layout: ScaleLayout, k: int) -> int | None:
    """None, or a stride of linear block scales of at least K/16 bytes."""
    if row_stride is None:
        return None
    if not isinstance(row_stride, int) or isinstance(row_stride, bool):
        raise type_error(op, "row_stride", "None or an int", type(row_stride).__name__)
    if layout is not ScaleLayout.LINEAR:
        raise value_error(op, "row_stride", f"None with layout {layout.name}", row_stride)
    if row_stride < k // BLOCK:
        raise value_error(op, "row_stride", f"at least K/16 = {k // BLOCK}", row_stride)
    return row_stride


def check_out_scales(
    op: str, arg: str, out: object, m: int, k: int, layout: ScaleLayout, row_stride: int | None, device: torch.device
) -> tuple[Tensor, Tensor, Tensor]:
    """The tensors of a FusedScales to write into, scales as bytes."""
    if not isinstance(out, tuple) or len(out) != 3:
        raise type_error(op, arg, "a FusedScales (tile_scales, block_scale, amax)", type(out).__name__)
    tile_scales = check_tile_scales(op, f"{arg}.tile_scales", out[0], m, k, device)
    block_scale = check_kind(op, f"{arg}.block_scale", out[1])
    shape = layout.shape(m, k)
    if layout is ScaleLayout.LINEAR and block_scale.dim() == 2:
        rows, stride = block_scale.shape
        if rows < m or stride < (k // BLOCK if row_stride is None else row_stride):
            rule = f"of at least {m} rows of {row_stride or k // BLOCK} bytes"
            raise value_error(op, f"{arg}.block_scale", rule, (rows, stride))
        shape = (rows, stride) if row_stride is None else (rows, row_stride)
    block_scale = check_buffer(op, f"{arg}.block_scale", block_scale, _SCALE_DTYPES, shape, device)
    stored = check_buffer(op, f"{arg}.amax", out[2], (torch.float32,), (), device)
    return tile_scales, block_scale.view(torch.uint8), stored


def check_fragment(op: str, arg: str, out: object, shard: Shard) -> Tensor:
    """The uint8 bytes that hold the codes of the shard."""
    length = shard.data.numel()
    size = ((shard.start + length + 1) >> 1) - (shard.start >> 1) if length else 0
    out = check_kind(op, arg, out)
    if out.dtype is not torch.uint8:
        raise type_error(op, arg, "uint8 (two codes a byte)", out.dtype)
    if out.numel() != size:
        hint = "It is the shard's fragment: bytes start >> 1 to (start + length + 1) >> 1."
        raise value_error(op, arg, f"of {size} bytes for elements {shard.start} to {shard.start + length}",
                          f"{out.numel()} bytes", hint)  # fmt: skip
    check_device(op, arg, out.device, shard.data.device)
    if not out.is_contiguous():
        raise value_error(op, arg, "contiguous", f"strides {out.stride()}")
    return out


def check_lengths(op: str, first: str, lists: dict[str, Any]) -> int:
    """Parallel lists have one length, that of `first`; their number of items.

    A tensor counts as the list of its entries.
    """
    for arg, values in lists.items():
        if not isinstance(values, (list, tuple, Tensor)):
            raise type_error(op, arg, "a list", type(values).__name__)
    count = len(lists[first])
    for arg, values in lists.items():
        if len(values) != count:
            raise value_error(op, arg, f"of {count} entries, as {first}", len(values))
    return count


def per_item(values: Any, count: int) -> Sequence[Any]:
    """One value for all items, or a list of one for each."""
    return values if isinstance(values, (list, tuple)) else [values] * count
