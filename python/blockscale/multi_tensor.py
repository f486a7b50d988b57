# SPDX-License-Identifier: Apache-2.0
"""Primary weights, a list at a time: each stage of `primary.py`, and `transpose`, in one launch for the whole list.

Every item equals its single call. `multi_tensor_*` check and bind their arguments on each call; a training step repeats
the same list, so a `MultiTensorPlan` does that once and its `run()` is one call of the native library.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from . import primary_ops
from ._checks import check_blocks, check_device, check_layout, check_operand, check_out_operand, check_second_level
from ._codes import layout_code
from ._native import _C
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
    per_item,
)
from .errors import value_error
from .formats import BLOCK, Orientation, ScaleLayout
from .fused_scales import FusedScales
from .operand import NVFP4Operand, make_operand
from .primary_ops import FUSED_SCALE, PARTIAL_AMAX, PARTIAL_CAST, TRANSPOSE, tile_shape

_E4M3 = torch.float8_e4m3fn


class MultiTensorPlan:
    """A multi-tensor call with its arguments checked and bound to their addresses; `run()` repeats it.

    Made by `partial_amax`, `fused_scale`, `partial_cast` and `transpose` of this class, whose arguments are those of
    the `multi_tensor_*` functions. The plan holds the tensors. Their storage must stay where it is: `is_current()`
    says whether it has. Making a plan of a very long list (from about 290 items on) on CUDA copies a table to the
    device and waits for that; `run()` never copies nor waits, and may be captured in a CUDA graph.

    Attributes:
        result: what the `multi_tensor_*` function returns; written by each run.
    """

    def __init__(self, stage: int, arguments: tuple[Any, ...], result: Any) -> None:
        self.result = result
        self._stage = stage
        self._arguments = arguments
        self._tensors = [value for value in _flat(arguments) if isinstance(value, Tensor)]
        self._addresses = [tensor.data_ptr() for tensor in self._tensors]
        self._items: _C.PrimaryList = _LISTS[stage](*arguments)
        self._device = self._tensors[0].device if self._tensors else torch.device("cpu")
        self._table = (
            primary_ops.upload_table(self._items, stage, self._device, wait=True) if len(self._items) else None
        )

    @classmethod
    def partial_amax(cls, *args: Any, **keywords: Any) -> MultiTensorPlan:
        """A plan of `multi_tensor_partial_amax`."""
        return cls(PARTIAL_AMAX, *_partial_amax_arguments(*args, **keywords))

    @classmethod
    def fused_scale(cls, *args: Any, **keywords: Any) -> MultiTensorPlan:
        """A plan of `multi_tensor_fused_scale`."""
        return cls(FUSED_SCALE, *_fused_scale_arguments(*args, **keywords))

    @classmethod
    def partial_cast(cls, *args: Any, **keywords: Any) -> MultiTensorPlan:
        """A plan of `multi_tensor_partial_cast`."""
        return cls(PARTIAL_CAST, *_partial_cast_arguments(*args, **keywords))

    @classmethod
    def transpose(cls, *args: Any, **keywords: Any) -> MultiTensorPlan:
        """A plan of `multi_tensor_transpose`."""
        return cls(TRANSPOSE, *_transpose_arguments(*args, **keywords))

    def run(self) -> None:
        """The call, on the current stream of the tensors' device. Nothing is checked again."""
        if not len(self._items):
            return
        if self._table is not None:
            self._table.record_stream(torch.cuda.current_stream(self._device))
        primary_ops.run_items(self._items, self._stage, self._device)

    def is_current(self) -> bool:
        """Whether every tensor still stands where the plan found it."""
        return all(t.data_ptr() == at for t, at in zip(self._tensors, self._addresses, strict=True))


def multi_tensor_partial_amax(
    shards: Sequence[Tensor],
    shapes: Sequence[Sequence[int]],
    starts: Sequence[int],
    *,
    round_to: torch.dtype | None = None,
    out: Sequence[Tensor] | None = None,
    amax: Tensor | None = None,
) -> list[Tensor]:
    """`partial_amax` of many shards.

    Args:
        shards, shapes, starts: one entry a weight, as for `partial_amax`; the shards are on one device.
        round_to: as for `partial_amax`, for the whole list.
        out: float32 (ceil(M/16), K/16) for each; they may be views of one buffer, for a single all-reduce.
        amax: float32 (n,) that receives the maximum of each list entry's tiles, 0 for an empty shard. On CUDA this
            costs a second, small launch.

    Returns:
        The list of tile amaxes: `out`'s tensors if given, else views of one new buffer.

    Raises:
        TypeError, ValueError: as for `partial_amax`, with the index of the entry; lists of different lengths.
    """
    arguments, result = _partial_amax_arguments(shards, shapes, starts, round_to=round_to, out=out, amax=amax)
    if result:
        primary_ops.multi_tensor_partial_amax(*arguments)
    return result


def multi_tensor_fused_scale(
    tile_amaxes: Sequence[Tensor],
    amaxes: Sequence[Tensor] | Tensor,
    shapes: Sequence[Sequence[int]],
    *,
    layout: ScaleLayout | Sequence[ScaleLayout] = ScaleLayout.LINEAR,
    e4m3_max: int | Sequence[int] = 448,
    row_stride: int | Sequence[int | None] | None = None,
    out: Sequence[FusedScales] | None = None,
) -> list[FusedScales]:
    """`fused_scale` of many weights.

    Args:
        tile_amaxes, shapes: one entry a weight, as for `fused_scale`.
        amaxes: a list of second levels, or one float32 tensor (n,).
        layout, e4m3_max, row_stride: one value for all, or a list.
        out: a FusedScales for each.

    Returns:
        The list of scales; `out`'s entries if given.

    Raises:
        TypeError, ValueError: as for `fused_scale`, with the index of the entry; lists of different lengths.
    """
    arguments, result = _fused_scale_arguments(
        tile_amaxes, amaxes, shapes, layout=layout, e4m3_max=e4m3_max, row_stride=row_stride, out=out
    )
    if result:
        primary_ops.multi_tensor_fused_scale(*arguments)
    return result


def multi_tensor_partial_cast(
    shards: Sequence[Tensor],
    outs: Sequence[Tensor],
    tile_scales: Sequence[Tensor],
    amaxes: Sequence[Tensor] | Tensor,
    shapes: Sequence[Sequence[int]],
    starts: Sequence[int],
    *,
    round_to: torch.dtype | None = None,
    e4m3_max: int | Sequence[int] = 448,
) -> list[Tensor]:
    """`partial_cast` of many shards. The fragments are disjoint: no two of them share a byte.

    Args:
        shards, outs, tile_scales, shapes, starts: one entry a weight, as for `partial_cast`.
        amaxes: a list of second levels, or one float32 tensor (n,).
        round_to: as for `partial_cast`, for the whole list.
        e4m3_max: one value for all, or a list.

    Returns:
        `outs` as a list.

    Raises:
        TypeError, ValueError: as for `partial_cast`, with the index of the entry; lists of different lengths;
            fragments that overlap.
    """
    arguments, result = _partial_cast_arguments(
        shards, outs, tile_scales, amaxes, shapes, starts, round_to=round_to, e4m3_max=e4m3_max
    )
    if result:
        primary_ops.multi_tensor_partial_cast(*arguments)
    return result


def multi_tensor_transpose(
    ops: Sequence[NVFP4Operand], out: Sequence[NVFP4Operand] | None = None
) -> list[NVFP4Operand]:
    """`transpose` of many operands.

    Args:
        ops: operands with (16, 16) blocks, rows a multiple of 16, on one device; formats and layouts may differ.
        out: an operand for each, of its transposed shape, its format and its layout, to write into.

    Returns:
        The list of transposed operands; `out`'s entries if given.

    Raises:
        TypeError, ValueError: as for `transpose`, with the index of the entry; lists of different lengths.
    """
    arguments, result = _transpose_arguments(ops, out)
    if result:
        primary_ops.multi_tensor_transpose(*arguments)
    return result


# Arguments of the ops, checked, and what the function returns ---------------------------------------------------------


def _partial_amax_arguments(
    shards: Sequence[Tensor], shapes: Sequence[Sequence[int]], starts: Sequence[int], *,
    round_to: torch.dtype | None = None, out: Sequence[Tensor] | None = None, amax: Tensor | None = None,
) -> tuple[tuple[Any, ...], list[Tensor]]:  # fmt: skip
    name = "multi_tensor_partial_amax"
    count = check_lengths(name, "shards", _given(shards=shards, shapes=shapes, starts=starts, out=out))
    code = check_round_to(name, round_to)
    held = [
        check_shard(name, (f"shards[{i}]", f"shapes[{i}]", f"starts[{i}]"), shards[i], shapes[i], starts[i])
        for i in range(count)
    ]
    device = _one_device(name, "shards", [shard.data for shard in held])
    if amax is not None:
        want = check_kind(name, "amax", amax).device if device is None else device
        amax = check_buffer(name, "amax", amax, (torch.float32,), (count,), want)
    if out is not None:
        result = [
            check_tile_amax(name, f"out[{i}]", out[i], shard.m, shard.k, shard.data.device)
            for i, shard in enumerate(held)
        ]
    else:
        tiles = [tile_shape(shard.m, shard.k) for shard in held]
        sizes = [rows * columns for rows, columns in tiles]
        whole = torch.empty(sum(sizes), dtype=torch.float32, device=device)
        result = [part.view(shape) for part, shape in zip(whole.split(sizes), tiles, strict=True)] if held else []
    data, ms, ks = [s.data for s in held], [s.m for s in held], [s.k for s in held]
    return (data, ms, ks, [s.start for s in held], code, result, amax), result


def _fused_scale_arguments(
    tile_amaxes: Sequence[Tensor], amaxes: Sequence[Tensor] | Tensor, shapes: Sequence[Sequence[int]], *,
    layout: ScaleLayout | Sequence[ScaleLayout] = ScaleLayout.LINEAR, e4m3_max: int | Sequence[int] = 448,
    row_stride: int | Sequence[int | None] | None = None, out: Sequence[FusedScales] | None = None,
) -> tuple[tuple[Any, ...], list[FusedScales]]:  # fmt: skip
    name = "multi_tensor_fused_scale"
    lists = _given(tile_amaxes=tile_amaxes, amaxes=amaxes, shapes=shapes, out=out)
    lists |= {
        arg: value
        for arg, value in (("layout", layout), ("e4m3_max", e4m3_max), ("row_stride", row_stride))
        if isinstance(value, (list, tuple))
    }
    count = check_lengths(name, "tile_amaxes", lists)
    layouts, e4m3_maxes, strides = (per_item(value, count) for value in (layout, e4m3_max, row_stride))
    for i in range(count):
        check_layout(name, layouts[i])
        check_e4m3_max(name, e4m3_maxes[i])
    sizes = [check_shape(name, f"shapes[{i}]", shapes[i]) for i in range(count)]
    tiles = [check_kind(name, f"tile_amaxes[{i}]", tile_amaxes[i]) for i in range(count)]
    device = _one_device(name, "tile_amaxes", tiles)
    seconds = _second_levels(name, amaxes, count, device)
    result: list[FusedScales] = []
    parts: list[tuple[Tensor, Tensor, Tensor]] = []
    for i, (m, k) in enumerate(sizes):
        tiles[i] = check_tile_amax(name, f"tile_amaxes[{i}]", tiles[i], m, k, tiles[i].device)
        stride = check_row_stride(name, strides[i], layouts[i], k)
        if out is not None:
            parts.append(check_out_scales(name, f"out[{i}]", out[i], m, k, layouts[i], stride, tiles[i].device))
            result.append(out[i])
            continue
        shape = (m, stride) if stride is not None else layouts[i].shape(m, k)
        scales, block_scale = (tiles[i].new_empty(s, dtype=torch.uint8) for s in (tile_shape(m, k), shape))
        parts.append((scales, block_scale, tiles[i].new_empty(())))
        result.append(FusedScales(scales.view(_E4M3), block_scale.view(_E4M3), parts[i][2]))
    codes = [layout_code(one) for one in layouts]
    ms, ks = [m for m, _ in sizes], [k for _, k in sizes]
    columns = ([part[j] for part in parts] for j in range(3))
    return (tiles, seconds, ms, ks, codes, list(e4m3_maxes), *columns), result


def _partial_cast_arguments(
    shards: Sequence[Tensor], outs: Sequence[Tensor], tile_scales: Sequence[Tensor],
    amaxes: Sequence[Tensor] | Tensor, shapes: Sequence[Sequence[int]], starts: Sequence[int], *,
    round_to: torch.dtype | None = None, e4m3_max: int | Sequence[int] = 448,
) -> tuple[tuple[Any, ...], list[Tensor]]:  # fmt: skip
    name = "multi_tensor_partial_cast"
    lists = _given(shards=shards, outs=outs, tile_scales=tile_scales, amaxes=amaxes, shapes=shapes, starts=starts)
    if isinstance(e4m3_max, (list, tuple)):
        lists["e4m3_max"] = e4m3_max
    count = check_lengths(name, "shards", lists)
    code = check_round_to(name, round_to)
    e4m3_maxes = [check_e4m3_max(name, value) for value in per_item(e4m3_max, count)]
    held = [
        check_shard(name, (f"shards[{i}]", f"shapes[{i}]", f"starts[{i}]"), shards[i], shapes[i], starts[i])
        for i in range(count)
    ]
    device = _one_device(name, "shards", [shard.data for shard in held])
    fragments = [check_fragment(name, f"outs[{i}]", outs[i], shard) for i, shard in enumerate(held)]
    scales = [
        check_tile_scales(name, f"tile_scales[{i}]", tile_scales[i], shard.m, shard.k, shard.data.device)
        for i, shard in enumerate(held)
    ]
    seconds = _second_levels(name, amaxes, count, device)
    data, ms, ks = [s.data for s in held], [s.m for s in held], [s.k for s in held]
    starts = [s.start for s in held]
    _check_disjoint(name, fragments)
    return (data, fragments, scales, seconds, ms, ks, starts, code, e4m3_maxes), fragments


def _transpose_arguments(
    ops: Sequence[NVFP4Operand], out: Sequence[NVFP4Operand] | None = None
) -> tuple[tuple[Any, ...], list[NVFP4Operand]]:
    name = "multi_tensor_transpose"
    count = check_lengths(name, "ops", _given(ops=ops, out=out))
    result: list[NVFP4Operand] = []
    for i in range(count):
        op = check_operand(name, f"ops[{i}]", ops[i])
        if op.format.block != (BLOCK, BLOCK):
            hint = "Scales of (1, 16) blocks cannot be moved: quantize with orientation='columnwise' instead."
            raise value_error(name, f"ops[{i}]", "of block (16, 16)", op.format.block, hint)
        check_blocks(name, f"ops[{i}]", op.rows, "M")
        check_device(name, f"ops[{i}]", op.device, ops[0].device)
        orientation: Orientation = "columnwise" if op.orientation == "rowwise" else "rowwise"
        fields = ((op.k, op.rows), op.layout, op.format, orientation)
        if out is not None:
            result.append(check_out_operand(name, out[i], *fields, op.device, f"out[{i}]"))
            continue
        qdata = op.qdata.new_empty((op.k, op.rows // 2))
        scales = op.qdata.new_empty(op.layout.shape(op.k, op.rows))
        result.append(make_operand(qdata, scales.view(_E4M3), op.amax.new_empty(()), *fields))
    codes = [layout_code(op.layout) for op in ops]
    return (*_columns(ops), codes, [op.format.e4m3_max for op in ops], *_columns(result)), result


def _columns(ops: Sequence[NVFP4Operand]) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
    return [op.qdata for op in ops], [op.block_scale.view(torch.uint8) for op in ops], [op.amax for op in ops]


def _given(**lists: Any) -> dict[str, Any]:
    return {arg: values for arg, values in lists.items() if arg != "out" or values is not None}


def _one_device(name: str, arg: str, tensors: Sequence[Tensor]) -> torch.device | None:
    for i, tensor in enumerate(tensors):
        check_device(name, f"{arg}[{i}]", tensor.device, tensors[0].device)
    return tensors[0].device if tensors else None


def _second_levels(
    name: str, amaxes: Sequence[Tensor] | Tensor, count: int, device: torch.device | None
) -> list[Tensor]:
    if device is None:
        return []
    if isinstance(amaxes, Tensor):
        return list(check_buffer(name, "amaxes", amaxes, (torch.float32,), (count,), device).unbind())
    return [check_second_level(name, f"amaxes[{i}]", amax, "tensor", 0, device) for i, amax in enumerate(amaxes)]


def _check_disjoint(name: str, fragments: Sequence[Tensor]) -> None:
    """No two fragments share a byte: one thread owns a byte in a launch. The native library checks it again."""
    if torch.compiler.is_compiling():
        return  # no addresses; the native library's check remains
    spans = sorted((f.data_ptr(), f.numel(), i) for i, f in enumerate(fragments) if f.numel() and not f.is_meta)
    for (at, size, before), (following, _, after) in itertools.pairwise(spans):
        if at + size > following:
            first, second = sorted((before, after))
            hint = "Cast them in two calls, one after the other."
            raise value_error(name, f"outs[{second}]", f"disjoint from outs[{first}]", "a common byte", hint)


def _flat(values: Any) -> list[Any]:
    return [one for value in values for one in (value if isinstance(value, list) else [value])]


_LISTS: dict[int, Callable[..., _C.PrimaryList]] = {
    PARTIAL_AMAX: primary_ops.partial_amax_list,
    FUSED_SCALE: primary_ops.fused_scale_list,
    PARTIAL_CAST: primary_ops.partial_cast_list,
    TRANSPOSE: primary_ops.transpose_list,
}
