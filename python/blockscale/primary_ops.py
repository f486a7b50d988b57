# SPDX-License-Identifier: Apache-2.0
"""The primary-weight ops under `torch.ops.blockscale`: one weight, and lists of weights. docs/numerics.md section 13.

As in `ops.py`: tensors and plain values only, every check of an argument is made above, in `primary.py` and
`multi_tensor.py`. A list is given as parallel lists; `..._list` makes the native items of it, which a plan keeps.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ._codes import DTYPE_CODE, LAYOUTS
from ._library import register_op
from ._native import _C, backend_of, launch_on
from .errors import not_offered
from .formats import BLOCK
from .ops import Parts, operand_of

PARTIAL_AMAX, FUSED_SCALE, PARTIAL_CAST, TRANSPOSE = range(4)
_NAMES = ("partial_amax", "fused_scale", "partial_cast", "transpose")

AS_IT_IS = DTYPE_CODE[torch.float32]
"""`round_to` of a master that is not rounded."""


def tile_shape(m: int, k: int) -> tuple[int, int]:
    """Rows and columns of 16 x 16 tiles of an (m, k) weight."""
    return -(-m // BLOCK), k // BLOCK


# lists ---------------------------------------------------------------------------------------------------------------


def partial_amax_list(
    shards: Sequence[Tensor], ms: Sequence[int], ks: Sequence[int], starts: Sequence[int], round_to: int,
    tile_amaxes: Sequence[Tensor], amax: Tensor | None,
) -> _C.PrimaryList:  # fmt: skip
    """Native items of `multi_tensor_partial_amax`; amax float32 (n,) or None."""
    items = _C.PrimaryList(PARTIAL_AMAX)
    for i, shard in enumerate(shards):
        amax_address = 0 if amax is None else amax.data_ptr() + 4 * i
        items.add_partial_amax(
            shard.data_ptr(), DTYPE_CODE[shard.dtype], round_to, ms[i], ks[i], starts[i], shard.numel(),
            tile_amaxes[i].data_ptr(), amax_address,
        )  # fmt: skip
    return items


def fused_scale_list(
    tile_amaxes: Sequence[Tensor], amaxes: Sequence[Tensor], ms: Sequence[int], ks: Sequence[int],
    layouts: Sequence[int], e4m3_maxes: Sequence[int], tile_scales: Sequence[Tensor], block_scales: Sequence[Tensor],
    stored: Sequence[Tensor],
) -> _C.PrimaryList:  # fmt: skip
    """Native items of `multi_tensor_fused_scale`."""
    items = _C.PrimaryList(FUSED_SCALE)
    for i, tile_amax in enumerate(tile_amaxes):
        scale_rows, row_stride = block_scales[i].shape
        items.add_fused_scale(
            tile_amax.data_ptr(), amaxes[i].data_ptr(), ms[i], ks[i], tile_scales[i].data_ptr(),
            block_scales[i].data_ptr(), stored[i].data_ptr(), scale_rows, row_stride, layouts[i], e4m3_maxes[i],
        )  # fmt: skip
    return items


def partial_cast_list(
    shards: Sequence[Tensor], outs: Sequence[Tensor], tile_scales: Sequence[Tensor], amaxes: Sequence[Tensor],
    ms: Sequence[int], ks: Sequence[int], starts: Sequence[int], round_to: int, e4m3_maxes: Sequence[int],
) -> _C.PrimaryList:  # fmt: skip
    """Native items of `multi_tensor_partial_cast`."""
    items = _C.PrimaryList(PARTIAL_CAST)
    for i, shard in enumerate(shards):
        items.add_partial_cast(
            shard.data_ptr(), DTYPE_CODE[shard.dtype], round_to, ms[i], ks[i], starts[i], shard.numel(),
            tile_scales[i].data_ptr(), amaxes[i].data_ptr(), outs[i].data_ptr(), e4m3_maxes[i],
        )  # fmt: skip
    return items


def transpose_list(
    qdata: Sequence[Tensor], block_scales: Sequence[Tensor], amaxes: Sequence[Tensor], layouts: Sequence[int],
    e4m3_maxes: Sequence[int], qdata_out: Sequence[Tensor], block_scales_out: Sequence[Tensor],
    amaxes_out: Sequence[Tensor],
) -> _C.PrimaryList:  # fmt: skip
    """Native items of `multi_tensor_transpose`."""
    items = _C.PrimaryList(TRANSPOSE)
    for i, source in enumerate(qdata):
        fields = (layouts[i], 0, e4m3_maxes[i])
        items.add_transpose(
            operand_of((source, block_scales[i], amaxes[i]), *fields),
            operand_of((qdata_out[i], block_scales_out[i], amaxes_out[i]), *fields),
        )
    return items


def needs_table(items: _C.PrimaryList, stage: int, device: torch.device) -> int:
    """Bytes of device memory that the items need; 0 for the CPU, and for a list that a kernel's parameters hold."""
    return backend_of(_NAMES[stage], device).primary_table_bytes(items)


def upload_table(items: _C.PrimaryList, stage: int, device: torch.device, *, wait: bool) -> Tensor | None:
    """The items as a table on the device, in stream order; the caller keeps the tensor for as long as the items.

    With `wait` the host waits for the copy, so that every stream may use the table.
    """
    size = needs_table(items, stage, device)
    if not size:
        return None
    if torch.cuda.is_current_stream_capturing():
        hint = "Make a MultiTensorPlan before the capture and run it there."
        rule = "short enough for the parameters of a kernel under graph capture"
        raise not_offered(f"multi_tensor_{_NAMES[stage]}", "the list", rule, f"{len(items)} items", hint)
    host = torch.empty(size, dtype=torch.uint8, pin_memory=True)
    backend_of(_NAMES[stage], device).pack_primary_table(items, host.data_ptr())
    table = host.to(device, non_blocking=True)  # torch keeps the pinned block until the copy has ended
    if wait:
        torch.cuda.current_stream(device).synchronize()
    items.table = table.data_ptr()
    return table


def run_items(items: _C.PrimaryList, stage: int, device: torch.device) -> None:
    """One call of the native library; the items have their table if they need one."""
    backend_of(_NAMES[stage], device).primary(items, launch_on(device))


def _run(items: _C.PrimaryList, stage: int, device: torch.device) -> None:
    table = upload_table(items, stage, device, wait=False)
    run_items(items, stage, device)
    del table  # freed in stream order


# one weight ----------------------------------------------------------------------------------------------------------


def _partial_amax_out(shard: Tensor, m: int, k: int, start: int, round_to: int, out: Tensor) -> None:
    _run(partial_amax_list([shard], [m], [k], [start], round_to, [out], None), PARTIAL_AMAX, shard.device)


def _partial_amax_fake(shard: Tensor, m: int, k: int, start: int, round_to: int) -> Tensor:
    return shard.new_empty(tile_shape(m, k), dtype=torch.float32)


def _partial_amax(shard: Tensor, m: int, k: int, start: int, round_to: int) -> Tensor:
    out = _partial_amax_fake(shard, m, k, start, round_to)
    _partial_amax_out(shard, m, k, start, round_to, out)
    return out


def _nothing(*_: object) -> None:
    """The fake of an op that only writes into its arguments."""


_PARTIAL_AMAX_ARGS = "Tensor shard, SymInt m, SymInt k, SymInt start, int round_to"
partial_amax = register_op(f"partial_amax({_PARTIAL_AMAX_ARGS}) -> Tensor", _partial_amax, _partial_amax_fake)
partial_amax_out = register_op(
    f"partial_amax_out({_PARTIAL_AMAX_ARGS}, Tensor(a!) out) -> ()", _partial_amax_out, _nothing
)


def _fused_scale_out(
    tile_amax: Tensor, amax: Tensor, m: int, k: int, layout: int, e4m3_max: int, row_stride: int,
    tile_scales: Tensor, block_scale: Tensor, amax_out: Tensor,
) -> None:  # fmt: skip
    items = fused_scale_list(
        [tile_amax], [amax], [m], [k], [layout], [e4m3_max], [tile_scales], [block_scale], [amax_out]
    )
    _run(items, FUSED_SCALE, tile_amax.device)


def _fused_scale_fake(
    tile_amax: Tensor, amax: Tensor, m: int, k: int, layout: int, e4m3_max: int, row_stride: int
) -> Parts:
    shape = LAYOUTS[layout].shape(m, k) if layout else (m, row_stride)
    return (
        tile_amax.new_empty(tile_shape(m, k), dtype=torch.uint8),
        tile_amax.new_empty(shape, dtype=torch.uint8),
        tile_amax.new_empty((), dtype=torch.float32),
    )


def _fused_scale(tile_amax: Tensor, amax: Tensor, m: int, k: int, layout: int, e4m3_max: int, row_stride: int) -> Parts:
    parts = _fused_scale_fake(tile_amax, amax, m, k, layout, e4m3_max, row_stride)
    _fused_scale_out(tile_amax, amax, m, k, layout, e4m3_max, row_stride, *parts)
    return parts


_FUSED_SCALE_ARGS = "Tensor tile_amax, Tensor amax, SymInt m, SymInt k, int layout, int e4m3_max, SymInt row_stride"
fused_scale = register_op(
    f"fused_scale({_FUSED_SCALE_ARGS}) -> (Tensor, Tensor, Tensor)", _fused_scale, _fused_scale_fake
)
fused_scale_out = register_op(
    f"fused_scale_out({_FUSED_SCALE_ARGS}, Tensor(a!) tile_scales, Tensor(b!) block_scale, Tensor(c!) amax_out) -> ()",
    _fused_scale_out,
    _nothing,
)


def _partial_cast(
    shard: Tensor, out: Tensor, tile_scales: Tensor, amax: Tensor, m: int, k: int, start: int, round_to: int,
    e4m3_max: int,
) -> None:  # fmt: skip
    items = partial_cast_list([shard], [out], [tile_scales], [amax], [m], [k], [start], round_to, [e4m3_max])
    _run(items, PARTIAL_CAST, shard.device)


partial_cast = register_op(
    "partial_cast(Tensor shard, Tensor(a!) out, Tensor tile_scales, Tensor amax, SymInt m, SymInt k, SymInt start, "
    "int round_to, int e4m3_max) -> ()",
    _partial_cast,
    _nothing,
)


# many weights --------------------------------------------------------------------------------------------------------


def _multi_tensor_partial_amax(
    shards: list[Tensor], ms: list[int], ks: list[int], starts: list[int], round_to: int, tile_amaxes: list[Tensor],
    amax: Tensor | None,
) -> None:  # fmt: skip
    items = partial_amax_list(shards, ms, ks, starts, round_to, tile_amaxes, amax)
    _run(items, PARTIAL_AMAX, shards[0].device)


multi_tensor_partial_amax = register_op(
    "multi_tensor_partial_amax(Tensor[] shards, SymInt[] ms, SymInt[] ks, SymInt[] starts, int round_to, "
    "Tensor(a!)[] tile_amaxes, Tensor(b!)? amax) -> ()",
    _multi_tensor_partial_amax,
    _nothing,
)


def _multi_tensor_fused_scale(
    tile_amaxes: list[Tensor], amaxes: list[Tensor], ms: list[int], ks: list[int], layouts: list[int],
    e4m3_maxes: list[int], tile_scales: list[Tensor], block_scales: list[Tensor], stored: list[Tensor],
) -> None:  # fmt: skip
    items = fused_scale_list(tile_amaxes, amaxes, ms, ks, layouts, e4m3_maxes, tile_scales, block_scales, stored)
    _run(items, FUSED_SCALE, tile_amaxes[0].device)


multi_tensor_fused_scale = register_op(
    "multi_tensor_fused_scale(Tensor[] tile_amaxes, Tensor[] amaxes, SymInt[] ms, SymInt[] ks, int[] layouts, "
    "int[] e4m3_maxes, Tensor(a!)[] tile_scales, Tensor(b!)[] block_scales, Tensor(c!)[] stored) -> ()",
    _multi_tensor_fused_scale,
    _nothing,
)


def _multi_tensor_partial_cast(
    shards: list[Tensor], outs: list[Tensor], tile_scales: list[Tensor], amaxes: list[Tensor], ms: list[int],
    ks: list[int], starts: list[int], round_to: int, e4m3_maxes: list[int],
) -> None:  # fmt: skip
    items = partial_cast_list(shards, outs, tile_scales, amaxes, ms, ks, starts, round_to, e4m3_maxes)
    _run(items, PARTIAL_CAST, shards[0].device)


multi_tensor_partial_cast = register_op(
    "multi_tensor_partial_cast(Tensor[] shards, Tensor(a!)[] outs, Tensor[] tile_scales, Tensor[] amaxes, SymInt[] ms, "
    "SymInt[] ks, SymInt[] starts, int round_to, int[] e4m3_maxes) -> ()",
    _multi_tensor_partial_cast,
    _nothing,
)


def _multi_tensor_transpose(
    qdata: list[Tensor], block_scales: list[Tensor], amaxes: list[Tensor], layouts: list[int], e4m3_maxes: list[int],
    qdata_out: list[Tensor], block_scales_out: list[Tensor], amaxes_out: list[Tensor],
) -> None:  # fmt: skip
    items = transpose_list(qdata, block_scales, amaxes, layouts, e4m3_maxes, qdata_out, block_scales_out, amaxes_out)
    _run(items, TRANSPOSE, qdata[0].device)


multi_tensor_transpose = register_op(
    "multi_tensor_transpose(Tensor[] qdata, Tensor[] block_scales, Tensor[] amaxes, int[] layouts, int[] e4m3_maxes, "
    "Tensor(a!)[] qdata_out, Tensor(b!)[] block_scales_out, Tensor(c!)[] amaxes_out) -> ()",
    _multi_tensor_transpose,
    _nothing,
)
