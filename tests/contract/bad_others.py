# SPDX-License-Identifier: Apache-2.0
"""Bad calls of amax, dequantize, transpose, the scale layouts, and of the constructors of formats and operands."""

from __future__ import annotations

from typing import Any

import torch

import blockscale as bs
from blockscale.formats import ScaleLayout

from .table import NAN, TILES, BadCall, misused, ruled

FLOATS = "float32, bfloat16 or float16"
SWIZZLED = ScaleLayout.SWIZZLED_128X4

_amax_kind, _amax_value = ruled("amax", TypeError), ruled("amax", ValueError)
_AMAX: tuple[BadCall, ...] = (
    _amax_kind("x_list", lambda i: bs.amax([1.0]), "x", "a torch.Tensor", "list"),
    _amax_kind("x_operand", lambda i: bs.amax(i.op()), "x", "a torch.Tensor", "NVFP4Operand"),
    _amax_kind("x_int", lambda i: bs.amax(i.x(4, dtype=torch.int64)), "x", FLOATS, "torch.int64"),
    _amax_kind("x_float64", lambda i: bs.amax(i.x(4, dtype=torch.float64)), "x", FLOATS, "torch.float64"),
    _amax_value("x_scalar", lambda i: bs.amax(i.x()), "x", "a matrix (..., K)", "a 0-dimensional tensor"),
    _amax_value(
        "x_strided", lambda i: bs.amax(i.x(4, 8)[:, ::2]), "x", "contiguous in its last dimension", "strides (8, 2)"
    ),
    _amax_value("scaling", lambda i: bs.amax(i.x(4, 16), "block"), "scaling", '"tensor", "row" or "column"', "'block'"),
    _amax_value("scaling_none", lambda i: bs.amax(i.x(4, 16), None), "scaling", '"tensor", "row" or "column"', "None"),
    misused("amax", "nothing", lambda i: bs.amax(), r"amax\(\) missing 1 required positional"),
    misused("amax", "three", lambda i: bs.amax(i.x(4), "row", 1), r"amax\(\) takes from 1 to 2 positional"),
)

_dequantize_kind, _dequantize_value = ruled("dequantize", TypeError), ruled("dequantize", ValueError)
_dequantize_offered = ruled("dequantize", NotImplementedError)


def _into(out: Any) -> Any:
    """dequantize of a (16, 32) operand into what `out` makes."""
    return lambda i: bs.dequantize(i.op(), out=out(i))


_DEQUANTIZE: tuple[BadCall, ...] = (
    _dequantize_kind("tensor", lambda i: bs.dequantize(i.x(4, 16)), "op", "an NVFP4Operand", "Tensor"),
    _dequantize_kind("none", lambda i: bs.dequantize(None), "op", "an NVFP4Operand", "NoneType"),
    _dequantize_kind(
        "float64", lambda i: bs.dequantize(i.op(), torch.float64), "dtype", "torch.float32,...", "torch.float64"
    ),
    _dequantize_kind("text", lambda i: bs.dequantize(i.op(), "float32"), "dtype", "torch.float32,...", "float32"),
    _dequantize_kind("dtype_none", lambda i: bs.dequantize(i.op(), None), "dtype", "torch.float32,...", "None"),
    _dequantize_kind("out_list", _into(lambda i: []), "out", "a torch.Tensor", "list"),
    _dequantize_kind("out_operand", _into(lambda i: i.op()), "out", "a torch.Tensor", "NVFP4Operand"),
    _dequantize_kind("out_int", _into(lambda i: i.x(16, 32).int()), "out", FLOATS, "torch.int32"),
    _dequantize_value("out_shape", _into(lambda i: i.x(32, 16)), "out", "of shape (16, 32)", "(32, 16)"),
    _dequantize_value("out_flat", _into(lambda i: i.x(512)), "out", "of shape (16, 32)", "(512,)"),
    _dequantize_value(
        "out_device", _into(lambda i: i.x(16, 32).to("meta")), "out", "on ..., where the other...", "meta"
    ),
    _dequantize_value(
        "out_strided", _into(lambda i: i.x(32, 16).t()), "out", "contiguous in its last...", "strides (1, 16)"
    ),
    _dequantize_value(
        "out_expanded", _into(lambda i: i.x(1, 32).expand(16, 32)), "out", "free of overlapping rows", "strides..."
    ),
    _dequantize_value(
        "out_overlapping",
        _into(lambda i: i.x(1024).as_strided((16, 32), (16, 1))),
        "out",
        "free of overlapping rows",
        "strides (16, 1)",
    ),
    _dequantize_offered(
        "out_grad",
        _into(lambda i: i.x(16, 32).requires_grad_()),
        "out",
        "free of requires_grad...",
        "requires_grad=True",
    ),
    misused(
        "dequantize", "four", lambda i: bs.dequantize(i.op(), torch.float32, None, 1), r"dequantize\(\) takes from 1"
    ),
)

_transpose_kind, _transpose_value = ruled("transpose", TypeError), ruled("transpose", ValueError)


def _tiles(i: Any, rows: int = 16, k: int = 32, **fields: Any) -> Any:
    op = i.op(rows, k, **TILES)
    return bs.NVFP4Operand(op.qdata, op.block_scale, op.amax, op.shape, format=op.format, **fields)


def _transposed_into(out: Any) -> Any:
    """transpose of a (16, 32) rowwise operand of tiles into what `out` makes."""
    return lambda i: bs.transpose(_tiles(i), out(i))


_TRANSPOSE: tuple[BadCall, ...] = (
    _transpose_kind("tensor", lambda i: bs.transpose(i.x(16, 16)), "op", "an NVFP4Operand", "Tensor"),
    _transpose_value("blocks", lambda i: bs.transpose(i.op()), "op", "of block (16, 16)", "(1, 16)"),
    _transpose_value("row", lambda i: bs.transpose(i.op(scaling="row")), "op", "of block (16, 16)", "(1, 16)"),
    _transpose_value("rht", lambda i: bs.transpose(i.op(rht=0xD7E8)), "op", "of block (16, 16)", "(1, 16)"),
    _transpose_value("rows", lambda i: bs.transpose(i.op(17, **TILES)), "op", "of M a multiple of 16", "17"),
    _transpose_kind("out_tensor", _transposed_into(lambda i: i.x(32, 16)), "out", "an NVFP4Operand", "Tensor"),
    _transpose_value("out_shape", _transposed_into(_tiles), "out.shape", "(32, 16)", "(16, 32)"),
    _transpose_value(
        "out_orientation", _transposed_into(lambda i: _tiles(i, 32, 16)), "out.orientation", "columnwise", "rowwise"
    ),
    _transpose_value(
        "out_format",
        _transposed_into(lambda i: i.op(32, 16, block=(16, 16), e4m3_max=256)),
        "out.format",
        "...448...",
        "...256...",
    ),
    _transpose_value(
        "out_layout",
        _transposed_into(lambda i: bs.swizzle_scales(_tiles(i, 32, 16, orientation="columnwise"))),
        "out.layout",
        "...LINEAR",
        "...SWIZZLED_128X4",
    ),
)

_LAYOUTS: tuple[BadCall, ...] = (
    *(
        ruled(name, TypeError)(
            f"of_{kind}", lambda i, n=name, m=make: getattr(bs, n)(m(i)), "op", "an NVFP4Operand", kind
        )
        for name in ("swizzle_scales", "unswizzle_scales")
        for kind, make in (("Tensor", lambda i: i.x(4, 4)), ("NoneType", lambda i: None), ("list", lambda i: [i.op()]))
    ),
    misused("swizzle_scales", "nothing", lambda i: bs.swizzle_scales(), r"swizzle_scales\(\) missing 1"),
    misused("unswizzle_scales", "two", lambda i: bs.unswizzle_scales(i.op(), 1), r"unswizzle_scales\(\) takes 1"),
)

_op_kind, _op_value = ruled("NVFP4Operand", TypeError), ruled("NVFP4Operand", ValueError)
_index_kind, _index_value = ruled("NVFP4Operand", TypeError), ruled("NVFP4Operand", ValueError)


def _operand(**changes: Any) -> Any:
    """An NVFP4Operand of (16, 32) with some fields made otherwise."""

    def call(i: Any) -> object:
        op = i.op()
        fields: dict[str, Any] = {
            "qdata": op.qdata, "block_scale": op.block_scale, "amax": op.amax, "shape": op.shape,
        }  # fmt: skip
        fields.update({name: value(i, op) if callable(value) else value for name, value in changes.items()})
        return bs.NVFP4Operand(**fields)

    return call


def _scale_with(byte: int) -> Any:
    def make(i: Any, op: Any) -> torch.Tensor:
        scale = op.block_scale.view(torch.uint8).clone()
        scale[3, 1] = byte
        return scale

    return make


_SCALE = "block_scale"
_OPERAND: tuple[BadCall, ...] = (
    _op_kind("qdata_list", _operand(qdata=[1]), "qdata", "a torch.Tensor", "list"),
    _op_kind(
        "qdata_int8", _operand(qdata=lambda i, op: op.qdata.view(torch.int8)), "qdata", "uint8 (two...", "torch.int8"
    ),
    *(
        _op_kind(
            f"scale_{dtype}",
            _operand(block_scale=lambda i, op, d=dtype: op.block_scale.float().to(d)),
            _SCALE,
            "float8_e4m3fn, or its bytes as uint8",
            str(dtype),
        )
        for dtype in (torch.float32, torch.int32, torch.bfloat16, torch.float8_e5m2)
    ),
    _op_kind(
        "scale_int8",
        _operand(block_scale=lambda i, op: op.block_scale.view(torch.int8)),
        _SCALE,
        "float8_e4m3fn, or...",
        "torch.int8",
    ),
    _op_kind("amax_float", _operand(amax=1.0), "amax", "a torch.Tensor", "float"),
    _op_kind("amax_none", _operand(amax=None), "amax", "a torch.Tensor", "NoneType"),
    _op_kind("amax_bf16", _operand(amax=lambda i, op: op.amax.bfloat16()), "amax", "float32", "torch.bfloat16"),
    _op_kind("layout", _operand(layout="linear"), "layout", "a ScaleLayout", "str"),
    _op_kind("format", _operand(format="nvfp4"), "format", "an NVFP4", "str"),
    _op_value("orientation", _operand(orientation="both"), "orientation", '"rowwise" or "columnwise"', "'both'"),
    _op_value("shape_empty", _operand(shape=()), "shape", "(..., K)", "()"),
    _op_value("shape_k", _operand(shape=(16, 24)), "shape", "(..., K) with K a multiple of 16", "(16, 24)"),
    _op_value(
        "qdata_shape", _operand(shape=(16, 64)), "qdata", "of shape (16, 32) for logical shape (16, 64)...", "(16, 16)"
    ),
    _op_value(
        "scale_shape",
        _operand(block_scale=lambda i, op: op.block_scale[:, :1].clone()),
        _SCALE,
        "of shape (16, 2) for logical shape (16, 32), LINEAR...",
        "(16, 1)",
    ),
    _op_value(
        "scale_layout", _operand(layout=SWIZZLED), _SCALE, "of shape (128, 4) for...SWIZZLED_128X4...", "(16, 2)"
    ),
    _op_value("amax_shape", _operand(amax=lambda i, op: i.x(1)), "amax", "of shape () for...scaling='tensor'", "(1,)"),
    _op_value("amax_row", _operand(format=bs.NVFP4(scaling="row")), "amax", "of shape (16,) for...scaling='row'", "()"),
    _op_value(
        "qdata_strided",
        _operand(qdata=lambda i, op: op.qdata.repeat(1, 2)[:, ::2]),
        "qdata",
        "contiguous",
        "strides (32, 2)",
    ),
    _op_value("amax_device", _operand(amax=torch.ones((), device="meta")), "amax", "on ..., where qdata is", "meta"),
    _index_kind("index_int", lambda i: i.op()[0], "index", "a slice of rows", "int"),
    _index_kind("index_tuple", lambda i: i.op()[0:16, 0:16], "index", "a slice of rows", "tuple"),
    _index_value("index_step", lambda i: i.op()[::2], "index", "a slice with step 1", "2"),
    _index_value("index_tile", lambda i: i.op(32, **TILES)[8:32], "rows", "bounded by multiples of 16", "8:32"),
    misused("NVFP4Operand", "nothing", lambda i: bs.NVFP4Operand(), r".*__init__\(\) missing 4 required positional"),
)

CPU_ONLY: tuple[BadCall, ...] = tuple(
    _op_value(
        f"scale_byte_{byte:02X}",
        _operand(block_scale=_scale_with(byte)),
        _SCALE,
        "free of bytes above 0x7F",
        f"0x{byte:02X} at offset 7",
    )
    for byte in (0x80, 0xFF)
)
"""The bytes are read only where that costs no wait for a device."""

_nv_kind, _nv_value = ruled("NVFP4", TypeError), ruled("NVFP4", ValueError)
_FORMATS: tuple[BadCall, ...] = (
    _nv_value("scaling", lambda i: bs.NVFP4(scaling="column"), "scaling", '"tensor" or "row"', "'column'"),
    _nv_value("block", lambda i: bs.NVFP4(block=(16, 1)), "block", "(1, 16) or (16, 16)", "(16, 1)"),
    _nv_value("e4m3_max", lambda i: bs.NVFP4(e4m3_max=240), "e4m3_max", "448 or 256", "240"),
    _nv_kind("e4m3_max_nan", lambda i: bs.NVFP4(e4m3_max=NAN), "e4m3_max", "...", "..."),
    _nv_kind("e4m3_max_float", lambda i: bs.NVFP4(e4m3_max=256.0), "e4m3_max", "...", "..."),
    _nv_value("row_tiles", lambda i: bs.NVFP4(scaling="row", block=(16, 16)), "scaling", '"tensor" with...', '"row"'),
    _nv_value("rht_of_tiles", lambda i: bs.NVFP4(rht=0, block=(16, 16)), "rht", "None with block=(16, 16)", "0x0"),
    _nv_kind("rht", lambda i: bs.NVFP4(rht=1.0), "rht", "None or an int", "float"),
    misused("NVFP4", "positional", lambda i: bs.NVFP4("row"), r".*__init__\(\) takes 1 positional argument"),
    misused("NVFP4", "unknown", lambda i: bs.NVFP4(group=16), r".*__init__\(\) got an unexpected keyword"),
    ruled("Recipe", TypeError)("skip", lambda i: bs.Recipe(skip="lm_head"), "skip", "a tuple of names, or a...", "str"),
    ruled("Recipe", ValueError)("e4m3_max", lambda i: bs.Recipe(e4m3_max=1), "e4m3_max", "448 or 256", "1"),
    misused("Recipe", "positional", lambda i: bs.Recipe(True), r".*__init__\(\) takes 1 positional argument"),
)

OTHER_CALLS: tuple[BadCall, ...] = _AMAX + _DEQUANTIZE + _TRANSPOSE + _LAYOUTS + _OPERAND + _FORMATS
