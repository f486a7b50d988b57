# SPDX-License-Identifier: Apache-2.0
"""Bad calls of the primary-weight functions, for one weight and for lists. The weight is (16, 32): 512 elements."""

from __future__ import annotations

from typing import Any

import torch

import blockscale as bs
from blockscale.formats import ScaleLayout
from tests.cases.refusals import Inputs

from .table import INF, NAN, TILES, BadCall, misused, ruled

SWIZZLED = ScaleLayout.SWIZZLED_128X4
FLOATS = "float32, bfloat16 or float16"
SHAPE = (16, 32)


def _bytes(i: Inputs, *shape: int) -> torch.Tensor:
    return torch.full(shape, 0x38, dtype=torch.uint8, device=i.device)


def _out(i: Inputs, m: int = 16, k: int = 32, rows: int = 16, stride: int = 2) -> bs.FusedScales:
    return bs.FusedScales(_bytes(i, -(-m // 16), k // 16), _bytes(i, rows, stride), i.x())


# partial_amax, and what a shard is ------------------------------------------------------------------------------------


def _amax(**changes: Any) -> Any:
    """partial_amax of 40 elements from 100 on, with some arguments replaced; functions are called on the inputs."""

    def call(i: Inputs) -> object:
        arguments = {"shard": i.x(40), "shape": SHAPE, "start": 100}
        arguments |= {name: value(i) if callable(value) else value for name, value in changes.items()}
        return bs.partial_amax(**arguments)

    return call


_kind, _value = ruled("partial_amax", TypeError), ruled("partial_amax", ValueError)
_WITHIN = "so that shard lies within the 512 elements of shape"
_PARTIAL_AMAX: tuple[BadCall, ...] = (
    _kind("list", _amax(shard=[1.0]), "shard", "a torch.Tensor", "list"),
    _kind("operand", _amax(shard=lambda i: i.op()), "shard", "a torch.Tensor", "NVFP4Operand"),
    _kind("float64", _amax(shard=lambda i: i.x(40).double()), "shard", FLOATS, "torch.float64"),
    _value("strided", _amax(shard=lambda i: i.x(80)[::2]), "shard", "contiguous", "strides (2,)"),
    _kind("shape_int", _amax(shape=512), "shape", "a shape (..., K)", "int"),
    _kind("shape_floats", _amax(shape=(16.0, 32)), "shape", "a shape (..., K)", "tuple"),
    _value("shape_empty", _amax(shape=()), "shape", "a shape (..., K) of non-negative sizes", "()"),
    _value("shape_negative", _amax(shape=(-1, 32)), "shape", "a shape (..., K) of non-negative sizes", "(-1, 32)"),
    _value("shape_k", _amax(shape=(16, 40)), "shape", "of K a multiple of 16", "40"),
    _kind("start_none", _amax(start=None), "start", "an int, the shard's first element", "NoneType"),
    _kind("start_bool", _amax(start=True), "start", "an int, the shard's first element", "bool"),
    _kind("start_float", _amax(start=1.0), "start", "an int, the shard's first element", "float"),
    _value("start_negative", _amax(start=-1), "start", _WITHIN, "-1 for a shard of 40"),
    _value("start_too_far", _amax(start=473), "start", _WITHIN, "473 for a shard of 40"),
    _value("empty_behind", _amax(shard=lambda i: i.x(0), start=513), "start", _WITHIN, "513 for a shard of 0"),
    _kind("round_to_int", _amax(round_to=torch.int8), "round_to", "None, torch.float32,...", "torch.int8"),
    _kind("round_to_text", _amax(round_to="bfloat16"), "round_to", "None, torch.float32,...", "bfloat16"),
    _kind("out_list", _amax(out=[1.0]), "out", "a torch.Tensor", "list"),
    _kind("out_float64", _amax(out=lambda i: i.x(1, 2).double()), "out", "torch.float32", "torch.float64"),
    _value("out_shape", _amax(out=lambda i: i.x(2)), "out", "of shape (1, 2)", "(2,)"),
    _value("out_strided", _amax(out=lambda i: i.x(1, 4)[:, ::2]), "out", "contiguous", "strides (4, 2)"),
    _value("out_device", _amax(out=torch.empty(1, 2, device="meta")), "out", "on ..., where the other...", "meta"),
    misused("partial_amax", "positional", lambda i: bs.partial_amax(i.x(1), SHAPE, 0, None), r".*takes 3 positional"),
)


# fused_scale ----------------------------------------------------------------------------------------------------------


def _scale(**changes: Any) -> Any:
    def call(i: Inputs) -> object:
        arguments = {"tile_amax": i.x(1, 2), "amax": i.x(), "shape": SHAPE}
        arguments |= {name: value(i) if callable(value) else value for name, value in changes.items()}
        return bs.fused_scale(**arguments)

    return call


_kind, _value = ruled("fused_scale", TypeError), ruled("fused_scale", ValueError)
_SCALES = "a FusedScales (tile_scales, block_scale, amax)"
_FUSED_SCALE: tuple[BadCall, ...] = (
    _kind("tile_amax_list", _scale(tile_amax=[1.0]), "tile_amax", "a torch.Tensor", "list"),
    _kind(
        "tile_amax_half", _scale(tile_amax=lambda i: i.x(1, 2).half()), "tile_amax", "torch.float32", "torch.float16"
    ),
    _value("tile_amax_shape", _scale(tile_amax=lambda i: i.x(2, 2)), "tile_amax", "of shape (1, 2)", "(2, 2)"),
    _value("tile_amax_t", _scale(tile_amax=lambda i: i.x(2, 2).t(), shape=(32, 32)), "tile_amax", "contiguous", "..."),
    _kind("amax_text", _scale(amax="1"), "amax", "a float or a float32 tensor", "str"),
    _kind("amax_float64", _scale(amax=lambda i: i.x().double()), "amax", "float32", "torch.float64"),
    _value("amax_shape", _scale(amax=lambda i: i.x(2)), "amax", "of shape () or (1,)...", "(2,)"),
    _value("amax_negative", _scale(amax=-1.0), "amax", "non-negative", "-1.0"),
    *(_value(f"amax_{value}", _scale(amax=value), "amax", "...", "...") for value in (NAN, INF, 1e-50)),
    _value("shape_k", _scale(shape=(16, 24)), "shape", "of K a multiple of 16", "24"),
    _kind("layout", _scale(layout="linear"), "layout", "a ScaleLayout", "str"),
    _kind("e4m3_max_float", _scale(e4m3_max=448.0), "e4m3_max", "an int, 448 or 256", "float"),
    _value("e4m3_max", _scale(e4m3_max=240), "e4m3_max", "448 or 256", "240"),
    _kind("row_stride_float", _scale(row_stride=4.0), "row_stride", "None or an int", "float"),
    _value("row_stride_short", _scale(row_stride=1), "row_stride", "at least K/16 = 2", "1"),
    _value(
        "row_stride_swizzled", _scale(row_stride=4, layout=SWIZZLED), "row_stride", "None with layout SWIZZLED...", "4"
    ),
    _kind("out_operand", _scale(out=lambda i: i.op()), "out", _SCALES, "NVFP4Operand"),
    _kind("out_pair", _scale(out=lambda i: tuple(_out(i)[:2])), "out", _SCALES, "tuple"),
    _kind(
        "out_tile_scales",
        _scale(out=lambda i: _out(i)._replace(tile_scales=i.x(1, 2))),
        "out.tile_scales",
        "torch.float8_e4m3fn or torch.uint8",
        "torch.float32",
    ),
    _value("out_rows", _scale(out=lambda i: _out(i, rows=15)), "out.block_scale", "of at least 16 rows of 2...", "..."),
    _value(
        "out_stride", _scale(out=lambda i: _out(i, stride=1)), "out.block_scale", "of at least 16 rows...", "(16, 1)"
    ),
    _value(
        "out_other_stride",
        _scale(out=lambda i: _out(i, stride=8), row_stride=4),
        "out.block_scale",
        "of shape (16, 4)",
        "(16, 8)",
    ),
    _value(
        "out_layout", _scale(out=lambda i: _out(i), layout=SWIZZLED), "out.block_scale", "of shape (128, 4)", "(16, 2)"
    ),
    _value("out_amax", _scale(out=lambda i: _out(i)._replace(amax=i.x(1))), "out.amax", "of shape ()", "(1,)"),
    misused("fused_scale", "positional", lambda i: bs.fused_scale(i.x(1, 2), 1.0, SHAPE, SWIZZLED), r".*takes 3 pos"),
)


# partial_cast ---------------------------------------------------------------------------------------------------------


def _cast(**changes: Any) -> Any:
    def call(i: Inputs) -> object:
        arguments = {
            "shard": i.x(40), "out": _bytes(i, 21), "tile_scales": _bytes(i, 1, 2), "amax": i.x(), "shape": SHAPE,
            "start": 101,
        }  # fmt: skip
        arguments |= {name: value(i) if callable(value) else value for name, value in changes.items()}
        return bs.partial_cast(**arguments)

    return call


_kind, _value = ruled("partial_cast", TypeError), ruled("partial_cast", ValueError)
_SCALE_KINDS = "torch.float8_e4m3fn or torch.uint8"
_PARTIAL_CAST: tuple[BadCall, ...] = (
    _kind("float64", _cast(shard=lambda i: i.x(40).double()), "shard", FLOATS, "torch.float64"),
    _value("start", _cast(start=500), "start", _WITHIN, "500 for a shard of 40"),
    _kind("round_to", _cast(round_to=torch.float64), "round_to", "None,...", "torch.float64"),
    _value("e4m3_max", _cast(e4m3_max=0), "e4m3_max", "448 or 256", "0"),
    _kind("out_none", _cast(out=None), "out", "a torch.Tensor", "NoneType"),
    _kind("out_float", _cast(out=lambda i: i.x(21)), "out", "uint8 (two codes a byte)", "torch.float32"),
    *(
        _value(f"out_{size}", _cast(out=lambda i, n=size: _bytes(i, n)), "out", "of 21 bytes for elements 101 to 141",
               f"{size} bytes")
        for size in (0, 20, 22, 256)
    ),
    _value("out_strided", _cast(out=lambda i: _bytes(i, 42)[::2]), "out", "contiguous", "strides (2,)"),
    _value("out_device", _cast(out=torch.empty(21, dtype=torch.uint8, device="meta")), "out", "on ...", "meta"),
    _kind("scales_float", _cast(tile_scales=lambda i: i.x(1, 2)), "tile_scales", _SCALE_KINDS, "torch.float32"),
    _value("block_scale", _cast(tile_scales=lambda i: _bytes(i, 16, 2)), "tile_scales", "of shape (1, 2)", "(16, 2)"),
    _kind("amax_float64", _cast(amax=lambda i: i.x().double()), "amax", "float32", "torch.float64"),
    _value("amax_two", _cast(amax=lambda i: i.x(2)), "amax", "of shape () or (1,)...", "(2,)"),
    misused("partial_cast", "two", lambda i: bs.partial_cast(i.x(1), _bytes(i, 1)), r".*missing 4 required positional"),
)  # fmt: skip


# merge_fragments ------------------------------------------------------------------------------------------------------

_kind, _value = ruled("merge_fragments", TypeError), ruled("merge_fragments", ValueError)


def _merge(fragments: Any, starts: Any, lengths: Any, shape: Any = (1, 16), out: Any = None) -> Any:
    """Fragments are given by their sizes in bytes."""

    def call(i: Inputs) -> object:
        made = [_bytes(i, size) for size in fragments] if isinstance(fragments, list) else fragments
        return bs.merge_fragments(made, starts, lengths, shape, out=out(i) if callable(out) else out)

    return call


_MERGE: tuple[BadCall, ...] = (
    _kind("fragments", _merge(8, [0], [16]), "fragments", "a list", "int"),
    _value("lists", _merge([8], [0], [16, 0]), "lengths", "of 1 entries, as fragments", "2"),
    _value("nothing", _merge([], [], []), "fragments", "at least one, or out given", "an empty list"),
    _kind("start", _merge([8], [0.0], [16]), "starts[0]", "an int", "float"),
    _value("length", _merge([8], [0], [-1]), "lengths[0]", "non-negative", "-1"),
    _value(
        "range", _merge([8], [1], [16]), "starts[0]", "so that the shard lies within the 16...", "1 for 16 elements"
    ),
    _value("size", _merge([7], [0], [16]), "fragments[0]", "of shape (8,)", "(7,)"),
    _value(
        "overlap", _merge([3, 4], [0, 4], [5, 8]), "starts[1]", "at least 5, where the shard of fragments[0] ends", "4"
    ),
    _kind("out", _merge([8], [0], [16], out=lambda i: i.x(1, 8)), "out", "torch.uint8", "torch.float32"),
    _value("out_shape", _merge([8], [0], [16], out=lambda i: _bytes(i, 8)), "out", "of shape (1, 8)", "(8,)"),
    _value("shape", _merge([8], [0], [16], (1, 8)), "shape", "of K a multiple of 16", "8"),
)


# lists ----------------------------------------------------------------------------------------------------------------

_kind, _value = ruled("multi_tensor_partial_amax", TypeError), ruled("multi_tensor_partial_amax", ValueError)
_multi = bs.multi_tensor_partial_amax
_LIST_AMAX: tuple[BadCall, ...] = (
    _kind("int", lambda i: _multi(1, [], []), "shards", "a list", "int"),
    _kind("second", lambda i: _multi([i.x(512), 1.0], [SHAPE] * 2, [0, 0]), "shards[1]", "a torch.Tensor", "float"),
    _value("shapes", lambda i: _multi([i.x(512)], [SHAPE] * 2, [0]), "shapes", "of 1 entries, as shards", "2"),
    _value("start", lambda i: _multi([i.x(512)] * 2, [SHAPE] * 2, [0, 1]), "starts[1]", "so that...", "1 ..."),
    _value(
        "devices",
        lambda i: _multi([i.x(512), torch.empty(512, device="meta")], [SHAPE] * 2, [0, 0]),
        "shards[1]",
        "on ..., where the other arguments are",
        "meta",
    ),
    _value("out", lambda i: _multi([i.x(512)], [SHAPE], [0], out=[i.x(2)]), "out[0]", "of shape (1, 2)", "(2,)"),
    _value("outs", lambda i: _multi([i.x(512)], [SHAPE], [0], out=[]), "out", "of 1 entries, as shards", "0"),
    _value("amax", lambda i: _multi([i.x(512)], [SHAPE], [0], amax=i.x()), "amax", "of shape (1,)", "()"),
    _kind("amax_float", lambda i: _multi([i.x(512)], [SHAPE], [0], amax=1.0), "amax", "a torch.Tensor", "float"),
)  # fmt: skip

_kind, _value = ruled("multi_tensor_fused_scale", TypeError), ruled("multi_tensor_fused_scale", ValueError)
_LIST_SCALE: tuple[BadCall, ...] = (
    _kind("none", lambda i: bs.multi_tensor_fused_scale(None, [], []), "tile_amaxes", "a list", "NoneType"),
    _value(
        "amaxes",
        lambda i: bs.multi_tensor_fused_scale([i.x(1, 2)], i.x(2), [SHAPE]),
        "amaxes",
        "of 1 entries, as tile_amaxes",
        "2",
    ),
    _value(
        "tile_amax",
        lambda i: bs.multi_tensor_fused_scale([i.x(1, 2), i.x(1, 3)], i.x(2), [SHAPE] * 2),
        "tile_amaxes[1]",
        "of shape (1, 2)",
        "(1, 3)",
    ),
    _kind(
        "layout",
        lambda i: bs.multi_tensor_fused_scale([i.x(1, 2)], i.x(1), [SHAPE], layout=["linear"]),
        "layout",
        "a ScaleLayout",
        "str",
    ),
    _value(
        "e4m3_max",
        lambda i: bs.multi_tensor_fused_scale([i.x(1, 2)], i.x(1), [SHAPE], e4m3_max=[448, 256]),
        "e4m3_max",
        "of 1 entries, as tile_amaxes",
        "2",
    ),
    _kind(
        "out", lambda i: bs.multi_tensor_fused_scale([i.x(1, 2)], i.x(1), [SHAPE], out=[None]), "out[0]", _SCALES, "..."
    ),
)

_kind, _value = ruled("multi_tensor_partial_cast", TypeError), ruled("multi_tensor_partial_cast", ValueError)


def _casts(i: Inputs, **changes: Any) -> object:
    """Two shards, of the two halves of a weight."""
    arguments: dict[str, Any] = {
        "shards": [i.x(256)] * 2, "outs": [_bytes(i, 128) for _ in range(2)], "tile_scales": [_bytes(i, 1, 2)] * 2,
        "amaxes": i.x(2), "shapes": [SHAPE] * 2, "starts": [0, 256],
    }  # fmt: skip
    return bs.multi_tensor_partial_cast(**(arguments | changes))


_LIST_CAST: tuple[BadCall, ...] = (
    _value("starts", lambda i: _casts(i, starts=[0]), "starts", "of 2 entries, as shards", "1"),
    _value(
        "out", lambda i: _casts(i, outs=[_bytes(i, 128), _bytes(i, 127)]), "outs[1]", "of 128 bytes...", "127 bytes"
    ),
    _value("same", lambda i: _casts(i, outs=[_bytes(i, 128)] * 2), "outs[1]", "disjoint from outs[0]", "a common byte"),
    _value("amaxes", lambda i: _casts(i, amaxes=[i.x(), i.x(2)]), "amaxes[1]", "of shape () or (1,)...", "(2,)"),
    _kind("amaxes_double", lambda i: _casts(i, amaxes=i.x(2).double()), "amaxes", "torch.float32", "torch.float64"),
    _kind("scales", lambda i: _casts(i, tile_scales=[i.x(1, 2)] * 2), "tile_scales[0]", _SCALE_KINDS, "torch.float32"),
    _value("e4m3_max", lambda i: _casts(i, e4m3_max=[448, 300]), "e4m3_max", "448 or 256", "300"),
)

_kind, _value = ruled("multi_tensor_transpose", TypeError), ruled("multi_tensor_transpose", ValueError)
_tiles = bs.multi_tensor_transpose
_LIST_TRANSPOSE: tuple[BadCall, ...] = (
    _kind("operand", lambda i: _tiles(i.op(**TILES)), "ops", "a list", "NVFP4Operand"),
    _kind("tensor", lambda i: _tiles([i.op(**TILES), i.x(16, 16)]), "ops[1]", "an NVFP4Operand", "Tensor"),
    _value("blocks", lambda i: _tiles([i.op(**TILES), i.op()]), "ops[1]", "of block (16, 16)", "(1, 16)"),
    _value("rows", lambda i: _tiles([i.op(17, **TILES)]), "ops[0]", "of M a multiple of 16", "17"),
    _value("outs", lambda i: _tiles([i.op(**TILES)], []), "out", "of 1 entries, as ops", "0"),
    _value("out", lambda i: _tiles([i.op(**TILES)], [i.op(**TILES)]), "out[0].shape", "(32, 16)", "(16, 32)"),
)

PRIMARY_CALLS: tuple[BadCall, ...] = (
    _PARTIAL_AMAX + _FUSED_SCALE + _PARTIAL_CAST + _MERGE + _LIST_AMAX + _LIST_SCALE + _LIST_CAST + _LIST_TRANSPOSE
)
