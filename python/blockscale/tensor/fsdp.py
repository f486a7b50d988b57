# SPDX-License-Identifier: Apache-2.0
"""FSDP2's all-gather hooks: packed codes, one scale a tile and one amax travel; the rest is made again on each rank.

A (16, 16) weight costs 0.5 + 1/256 bytes an element on the wire, in place of 2 for bfloat16. numerics, section 14.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.autograd.grad_mode import _unsafe_preserve_version_counter

from ..errors import not_offered, type_error, value_error
from ..formats import BLOCK, NVFP4, ScaleLayout
from ..functional import swizzle_scales, unswizzle_scales
from ..operand import NVFP4Operand, make_operand
from .held import Columnwise, Held, row_major_strides
from .tile_scales import gather_tiles, spread_tiles

if TYPE_CHECKING:
    from .nvfp4_tensor import NVFP4Tensor

_PRE = "fsdp_pre_all_gather"
_POST = "fsdp_post_all_gather"


@dataclass(frozen=True)
class Gathered:
    """What the gathered bytes mean: all but the tensors.

    Attributes:
        format: of the weight.
        shape: logical shape of the whole weight.
        rows, k: the same as a matrix.
        dtype: nominal dtype.
        columnwise: whether the columnwise operand is made after the gather.
        layout: of the block scales after the gather.
    """

    format: NVFP4
    shape: tuple[int, ...]
    rows: int
    k: int
    dtype: torch.dtype
    columnwise: bool
    layout: ScaleLayout


def pre_all_gather(
    shard: NVFP4Tensor, mesh: Any, outer_size: torch.Size, outer_stride: tuple[int, ...]
) -> tuple[tuple[Tensor, Tensor, Tensor], Gathered]:
    """The bytes of this rank's rows.

    Args:
        shard: rows of the weight, (M/W, ...).
        mesh: W is the size of its last dimension; None: 1.
        outer_size, outer_stride: of the whole weight.

    Returns:
        (qdata uint8 (c, K/2), scales uint8, amax float32 (1,)), metadata, with c = M/W. Scales are one for each tile,
        (ceil(c/16), K/16), for block (16, 16), and LINEAR rows (c, K/16) for (1, 16).

    Raises:
        ValueError: rows that W does not divide, or pieces that cut a tile; strides that are not row-major; no rowwise
            data; another number of rows than c; columnwise data wanted of (1, 16) blocks.
        NotImplementedError: scaling="row" or rht.
    """
    held = shard._held
    world_size = 1 if mesh is None else int(mesh.size(mesh.ndim - 1))
    shape = tuple(int(size) for size in outer_size)
    rows, k = math.prod(shape[:-1]), shape[-1]
    pieces = rows // world_size
    _check_format(held)
    _check_whole(shape, tuple(outer_stride), rows, world_size, held)
    if held.rowwise is None:
        raise held._lacks("rowwise")
    if held.k != k or held.rows != pieces:
        raise value_error(_PRE, "the shard", f"of shape ({pieces}, {k}), its part of {shape}", tuple(shard.shape))
    row = held.readable("rowwise")
    gathered = Gathered(held.format, shape, rows, k, shard.dtype, held.wants_columnwise, held.layout)
    return (row.qdata, _scales_to_gather(row), row.amax.view(1)), gathered


def _check_format(held: Held) -> None:
    fmt = held.format
    if fmt.scaling == "row":
        hint = "The row amaxes of other shards are not here. Use scaling='tensor' for weights."
        raise not_offered(_PRE, "scaling", "'tensor'", "'row'", hint)
    for op in held.operands():
        if op.format.rht is not None:
            hint = "Only columnwise data is rotated, and it is made of rowwise data here."
            raise not_offered(_PRE, "rht", "None", hex(op.format.rht), hint)
    if fmt.block == (1, BLOCK) and held.wants_columnwise:
        hint = "Columnwise data cannot be derived from 1x16 blocks. Use (16, 16), or update_usage(columnwise=False)."
        raise value_error(_PRE, "block", "(16, 16) where columnwise data is wanted", fmt.block, hint)


def _check_whole(shape: tuple[int, ...], stride: tuple[int, ...], rows: int, world_size: int, held: Held) -> None:
    """Rules on the whole weight, of facts that every rank shares."""
    row_major = row_major_strides(shape)
    if stride != row_major:
        raise value_error(_PRE, "outer_stride", f"row-major, {row_major}", stride)
    tiled = held.format.block == (BLOCK, BLOCK)
    unit = world_size * BLOCK if tiled and world_size > 1 else world_size
    nearest = f"The nearest numbers of rows that fit are {rows // unit * unit} and {rows // unit * unit + unit}."
    if rows % world_size or shape[0] % world_size:
        hint = f"torch would have to pad packed bytes. {nearest}"
        raise value_error(_PRE, "the number of rows", f"a multiple of the {world_size} ranks", rows, hint)
    piece = rows // world_size
    if tiled and world_size > 1 and piece % BLOCK:
        hint = f"Every piece must start on a multiple of {BLOCK} rows. {nearest}"
        rule = f"a multiple of {BLOCK} on each of {world_size} ranks"
        raise value_error(_PRE, "the number of rows", rule, f"{piece} on each ({rows} in all)", hint)
    if held.wants_columnwise and rows % BLOCK:
        rule = f"a multiple of {BLOCK} where columnwise data is wanted"
        raise value_error(_PRE, "the number of rows", rule, rows, nearest)


def _scales_to_gather(row: NVFP4Operand) -> Tensor:
    if row.format.block == (BLOCK, BLOCK):
        return gather_tiles(row)
    if row.layout is ScaleLayout.LINEAR:
        return row.block_scale.view(torch.uint8)
    return unswizzle_scales(row).block_scale.view(torch.uint8)


def post_all_gather(
    shard: NVFP4Tensor, outputs: tuple[Tensor, ...], gathered: Gathered, param_dtype: torch.dtype | None,
    out: Tensor | None,
) -> tuple[NVFP4Tensor, tuple[Tensor, ...]] | None:  # fmt: skip
    """The whole weight from the pieces of all ranks: the bytes of quantizing it whole with the same amax.

    Args:
        shard: the rows of this rank.
        outputs: what `pre_all_gather` gave, concatenated over ranks; of one rank, the first of them is enough.
        gathered: its metadata.
        param_dtype: nominal dtype of the result; None: that of the shards.
        out: what an earlier call made; its tensors are filled in place, with their version counters as they were.

    Returns:
        (weight, the tensors whose storage FSDP2 frees between uses); None if out is given.

    Raises:
        ValueError: on the CPU, pieces whose amaxes differ. On CUDA the amax then becomes NaN, without waiting for the
            device, and so does every value.
    """
    cls = type(shard)
    qdata, scales, amaxes = outputs if len(outputs) == 3 else _of_one_rank(shard, outputs, gathered)
    if out is None:
        held = _allocated(qdata, gathered)
        _fill(held, scales, amaxes, gathered)
        dtype = gathered.dtype if param_dtype is None else param_dtype
        made = [tensor for tensor in held.tensors() if tensor.data_ptr() != qdata.data_ptr() or not tensor.numel()]
        return cls._around(held, gathered.shape, dtype), (*outputs, *made)
    held = _held_of(cls, out, gathered)
    with _version_counters_kept(held.tensors()):
        row = held.rowwise
        if row is not None and row.qdata.data_ptr() != qdata.data_ptr():
            row.qdata.copy_(qdata)
        _fill(held, scales, amaxes, gathered)
    return None


def _of_one_rank(shard: NVFP4Tensor, outputs: tuple[Tensor, ...], gathered: Gathered) -> tuple[Tensor, Tensor, Tensor]:
    """A mesh of one rank: torch then copies the first input in place of gathering, and leaves the others out."""
    if len(outputs) != 1 or shard._held.rows != gathered.rows:
        raise value_error(_POST, "all_gather_outputs", "(qdata, scales, amax) of all ranks", f"{len(outputs)} tensors")
    row = shard._held.readable("rowwise")
    return outputs[0], _scales_to_gather(row), row.amax.view(1)


def _held_of(cls: type[NVFP4Tensor], out: Tensor, gathered: Gathered) -> Held:
    out = getattr(out, "_local_tensor", out)  # of a DTensor, under tensor parallelism
    if not isinstance(out, cls):
        raise type_error(_POST, "out", "the NVFP4Tensor of an earlier call", type(out).__name__)
    held = out._held
    if (held.rows, held.k, held.format, held.layout) != (gathered.rows, gathered.k, gathered.format, gathered.layout):
        raise value_error(_POST, "out", f"of shape {gathered.shape} and {gathered.format}", out)
    return held


def _allocated(qdata: Tensor, gathered: Gathered) -> Held:
    """A Held around the gathered codes, with new tensors for the rest."""
    rows, k, layout = gathered.rows, gathered.k, gathered.layout
    scales = qdata.new_empty(layout.shape(rows, k)).view(torch.float8_e4m3fn)
    amax = qdata.new_empty((), dtype=torch.float32)
    row = make_operand(qdata.view(rows, k // 2), scales, amax, (rows, k), layout, gathered.format, "rowwise")
    held = Held(row, None, Columnwise.NONE)
    if gathered.columnwise:
        held.columnwise_buffer()
    return held


def _fill(held: Held, scales: Tensor, amaxes: Tensor, gathered: Gathered) -> None:
    """Block scales, amax and the columnwise operand, from what was gathered."""
    row = held.rowwise
    if row is None:
        raise value_error(_POST, "out", "an NVFP4Tensor with rowwise data", "columnwise data only")
    _store_common_amax(row.amax, amaxes)
    if gathered.format.block == (BLOCK, BLOCK):
        spread_tiles(scales, row)
    elif gathered.layout is ScaleLayout.LINEAR:
        row.block_scale.view(torch.uint8).copy_(scales.view(row.block_scale.shape))
    else:
        linear = make_operand(
            row.qdata, scales.view(torch.float8_e4m3fn), row.amax, row.shape, ScaleLayout.LINEAR, row.format, "rowwise"
        )
        row.block_scale.view(torch.uint8).copy_(swizzle_scales(linear).block_scale.view(torch.uint8))
    held.missing = ()
    if held.columnwise is not None:
        held.rebuild_columnwise()


def _store_common_amax(target: Tensor, amaxes: Tensor) -> None:
    """The amax that all pieces share, compared by its bits."""
    bits = amaxes.view(torch.int32)
    differs = (bits != bits[0]).any()
    if amaxes.device.type == "cpu" and not torch.compiler.is_compiling() and bool(differs):
        hint = "Quantize shards with one amax: amax_group of quantize_, or cast_master_weights_to_nvfp4."
        raise value_error(_POST, "amax", "equal on all ranks", amaxes.tolist(), hint)
    target.copy_(torch.where(differs, torch.full_like(amaxes[0], math.nan), amaxes[0]))


@contextlib.contextmanager
def _version_counters_kept(tensors: list[Tensor]) -> Iterator[None]:
    counted = tuple(tensor for tensor in tensors if not tensor.is_inference())
    with torch.no_grad(), _unsafe_preserve_version_counter(counted) if counted else contextlib.nullcontext():
        yield
