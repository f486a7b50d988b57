# SPDX-License-Identifier: Apache-2.0
"""The cast ops under `torch.ops.blockscale`: schemas, implementations, fakes. Start here below `functional.py`.

Tensors and plain values only: the operand object is unpacked above. `x` is a matrix with unit column stride; block
scales are their bytes (uint8). Every check of an argument is made above, in `functional.py`; the native library checks
again what would be unsafe. `gemm_ops.py` has the GEMM.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ._codes import DTYPE_CODE, LAYOUTS, SCALING_CODE, layout_code
from ._library import register_op
from ._native import _C, backend_of, launch_on, workspace_of
from .formats import ScaleLayout

Parts = tuple[Tensor, Tensor, Tensor]
"""qdata (rows, K/2) uint8, block scales as bytes in their layout, amax float32."""

ROW = SCALING_CODE["row"]
LINEAR = layout_code(ScaleLayout.LINEAR)


def matrix_of(x: Tensor) -> _C.Matrix:
    """The native view of a matrix with unit column stride."""
    rows, cols = x.shape
    return _C.Matrix(x.data_ptr(), DTYPE_CODE[x.dtype], rows, cols, x.stride(0))


def operand_of(parts: Parts, layout: int, scaling: int, e4m3_max: int) -> _C.Operand:
    """The native view of an operand's tensors."""
    qdata, block_scale, amax = parts
    rows, packed = qdata.shape
    return _C.Operand(
        qdata.data_ptr(), block_scale.data_ptr(), amax.data_ptr(), rows, 2 * packed, layout, scaling, e4m3_max
    )


def empty_parts(like: Tensor, rows: int, k: int, layout: int, scaling: int) -> Parts:
    """New tensors for a (rows, k) operand on `like`'s device. Every byte is written by the op that asked for them."""
    return (
        like.new_empty((rows, k // 2), dtype=torch.uint8),
        like.new_empty(LAYOUTS[layout].shape(rows, k), dtype=torch.uint8),
        like.new_empty((rows,) if scaling == ROW else (), dtype=torch.float32),
    )


# amax ----------------------------------------------------------------------------------------------------------------


def _amax_shape(x: Tensor, kind: int) -> tuple[int, ...]:
    return () if kind == 0 else (x.shape[kind - 1],)


def _amax(x: Tensor, kind: int) -> Tensor:
    out = x.new_empty(_amax_shape(x, kind), dtype=torch.float32)
    backend = backend_of("amax", x.device)
    problem = _C.AmaxProblem(matrix_of(x), kind, out.data_ptr())
    workspace = workspace_of(backend.amax_workspace_bytes(problem), x.device)
    backend.amax(problem, launch_on(x.device, workspace))
    return out


def _amax_fake(x: Tensor, kind: int) -> Tensor:
    return x.new_empty(_amax_shape(x, kind), dtype=torch.float32)


amax = register_op("amax(Tensor x, int kind) -> Tensor", _amax, _amax_fake)


# quantize ------------------------------------------------------------------------------------------------------------


def _address(tensor: Tensor | None) -> int:
    return 0 if tensor is None else tensor.data_ptr()


def _run_quantize(x: Tensor, block_rows: int, rowwise_amax: Tensor | None, columnwise_amax: Tensor | None,
                  rowwise: _C.Operand | None, columnwise: _C.Operand | None) -> None:  # fmt: skip
    backend = backend_of("quantize", x.device)
    problem = _C.QuantizeProblem(
        matrix_of(x), block_rows, _address(rowwise_amax), _address(columnwise_amax), rowwise, columnwise
    )
    workspace = workspace_of(backend.quantize_workspace_bytes(problem), x.device)
    backend.quantize(problem, launch_on(x.device, workspace))


def _quantize_out(
    x: Tensor, amax: Tensor | None, scaling: int, block_rows: int, e4m3_max: int, layout: int, columnwise: bool,
    qdata: Tensor, block_scale: Tensor, amax_out: Tensor,
) -> None:  # fmt: skip
    operand = operand_of((qdata, block_scale, amax_out), layout, scaling, e4m3_max)
    if columnwise:
        _run_quantize(x, block_rows, None, amax, None, operand)
    else:
        _run_quantize(x, block_rows, amax, None, operand, None)


def _quantize_parts(x: Tensor, scaling: int, layout: int, columnwise: bool) -> Parts:
    rows, k = (x.shape[1], x.shape[0]) if columnwise else (x.shape[0], x.shape[1])
    return empty_parts(x, rows, k, layout, scaling)


def _quantize(
    x: Tensor, amax: Tensor | None, scaling: int, block_rows: int, e4m3_max: int, layout: int, columnwise: bool
) -> Parts:
    parts = _quantize_parts(x, scaling, layout, columnwise)
    _quantize_out(x, amax, scaling, block_rows, e4m3_max, layout, columnwise, *parts)
    return parts


def _quantize_fake(
    x: Tensor, amax: Tensor | None, scaling: int, block_rows: int, e4m3_max: int, layout: int, columnwise: bool
) -> Parts:
    return _quantize_parts(x, scaling, layout, columnwise)


def _nothing(*_: object) -> None:
    """The fake of an op that only writes into its arguments."""


_QUANTIZE_ARGS = "Tensor x, Tensor? amax, int scaling, int block_rows, int e4m3_max, int layout, bool columnwise"
quantize = register_op(f"quantize({_QUANTIZE_ARGS}) -> (Tensor, Tensor, Tensor)", _quantize, _quantize_fake)
quantize_out = register_op(
    f"quantize_out({_QUANTIZE_ARGS}, Tensor(a!) qdata, Tensor(b!) block_scale, Tensor(c!) amax_out) -> ()",
    _quantize_out,
    _nothing,
)


def _quantize_both_out(
    x: Tensor, rowwise_amax: Tensor | None, columnwise_amax: Tensor | None, scaling: int, block_rows: int,
    e4m3_max: int, layout: int, qdata: Tensor, block_scale: Tensor, amax_out: Tensor, qdata_t: Tensor,
    block_scale_t: Tensor, amax_out_t: Tensor,
) -> None:  # fmt: skip
    rowwise = operand_of((qdata, block_scale, amax_out), layout, scaling, e4m3_max)
    columnwise = operand_of((qdata_t, block_scale_t, amax_out_t), layout, scaling, e4m3_max)
    _run_quantize(x, block_rows, rowwise_amax, columnwise_amax, rowwise, columnwise)


def _quantize_both(
    x: Tensor, rowwise_amax: Tensor | None, columnwise_amax: Tensor | None, scaling: int, block_rows: int,
    e4m3_max: int, layout: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    parts = _quantize_both_fake(x, rowwise_amax, columnwise_amax, scaling, block_rows, e4m3_max, layout)
    _quantize_both_out(x, rowwise_amax, columnwise_amax, scaling, block_rows, e4m3_max, layout, *parts)
    return parts


def _quantize_both_fake(
    x: Tensor, rowwise_amax: Tensor | None, columnwise_amax: Tensor | None, scaling: int, block_rows: int,
    e4m3_max: int, layout: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    return *_quantize_parts(x, scaling, layout, False), *_quantize_parts(x, scaling, layout, True)


_BOTH_ARGS = (
    "Tensor x, Tensor? rowwise_amax, Tensor? columnwise_amax, int scaling, int block_rows, int e4m3_max, int layout"
)
quantize_both = register_op(
    f"quantize_both({_BOTH_ARGS}) -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
    _quantize_both,
    _quantize_both_fake,
)
quantize_both_out = register_op(
    f"quantize_both_out({_BOTH_ARGS}, Tensor(a!) qdata, Tensor(b!) block_scale, Tensor(c!) amax_out, "
    "Tensor(d!) qdata_t, Tensor(e!) block_scale_t, Tensor(f!) amax_out_t) -> ()",
    _quantize_both_out,
    _nothing,
)


# dequantize ----------------------------------------------------------------------------------------------------------


def run_dequantize(
    parts: Parts, layout: int, scaling: int, e4m3_max: int, out: Tensor, start_k: int, stop_k: int, units: bool,
    nan_rows: Tensor | None,
) -> None:  # fmt: skip
    """Decodes columns start_k..stop_k into `out`; see BsDequantizeProblem in kernels/contract/types.h."""
    operand = operand_of(parts, layout, scaling, e4m3_max)
    problem = _C.DequantizeProblem(operand, start_k, stop_k, units, _address(nan_rows), matrix_of(out))
    backend_of("dequantize", out.device).dequantize(problem, launch_on(out.device))


def _dequantize_out(
    qdata: Tensor, block_scale: Tensor, amax: Tensor, scaling: int, e4m3_max: int, layout: int, out: Tensor
) -> None:
    k = 2 * qdata.shape[1]
    run_dequantize((qdata, block_scale, amax), layout, scaling, e4m3_max, out, 0, k, False, None)


def _dequantize(
    qdata: Tensor, block_scale: Tensor, amax: Tensor, scaling: int, e4m3_max: int, layout: int, dtype: torch.dtype
) -> Tensor:
    out = qdata.new_empty((qdata.shape[0], 2 * qdata.shape[1]), dtype=dtype)
    _dequantize_out(qdata, block_scale, amax, scaling, e4m3_max, layout, out)
    return out


def _dequantize_fake(
    qdata: Tensor, block_scale: Tensor, amax: Tensor, scaling: int, e4m3_max: int, layout: int, dtype: torch.dtype
) -> Tensor:
    return qdata.new_empty((qdata.shape[0], 2 * qdata.shape[1]), dtype=dtype)


_OPERAND_ARGS = "Tensor qdata, Tensor block_scale, Tensor amax, int scaling, int e4m3_max, int layout"
dequantize = register_op(f"dequantize({_OPERAND_ARGS}, ScalarType dtype) -> Tensor", _dequantize, _dequantize_fake)
dequantize_out = register_op(f"dequantize_out({_OPERAND_ARGS}, Tensor(a!) out) -> ()", _dequantize_out, _nothing)


# transpose -----------------------------------------------------------------------------------------------------------


def _transpose_out(
    qdata: Tensor, block_scale: Tensor, amax: Tensor, e4m3_max: int, layout: int,
    qdata_out: Tensor, block_scale_out: Tensor, amax_out: Tensor,
) -> None:  # fmt: skip
    source = operand_of((qdata, block_scale, amax), layout, 0, e4m3_max)
    target = operand_of((qdata_out, block_scale_out, amax_out), layout, 0, e4m3_max)
    problem = _C.TransposeProblem(source, target)
    backend_of("transpose", qdata.device).transpose(problem, launch_on(qdata.device))


def _transpose(qdata: Tensor, block_scale: Tensor, amax: Tensor, e4m3_max: int, layout: int) -> Parts:
    parts = _transpose_fake(qdata, block_scale, amax, e4m3_max, layout)
    _transpose_out(qdata, block_scale, amax, e4m3_max, layout, *parts)
    return parts


def _transpose_fake(qdata: Tensor, block_scale: Tensor, amax: Tensor, e4m3_max: int, layout: int) -> Parts:
    return empty_parts(qdata, 2 * qdata.shape[1], qdata.shape[0], layout, 0)


_TRANSPOSE_ARGS = "Tensor qdata, Tensor block_scale, Tensor amax, int e4m3_max, int layout"
transpose = register_op(f"transpose({_TRANSPOSE_ARGS}) -> (Tensor, Tensor, Tensor)", _transpose, _transpose_fake)
transpose_out = register_op(
    f"transpose_out({_TRANSPOSE_ARGS}, Tensor(a!) qdata_out, Tensor(b!) block_scale_out, Tensor(c!) amax_out) -> ()",
    _transpose_out,
    _nothing,
)


# scale layouts -------------------------------------------------------------------------------------------------------


def _relayout(block_scale: Tensor, rows: int, k: int, source: int, target: int) -> Tensor:
    out = _relayout_fake(block_scale, rows, k, source, target)
    problem = _C.RelayoutProblem(block_scale.data_ptr(), out.data_ptr(), rows, k, source, target)
    backend_of("relayout", out.device).relayout(problem, launch_on(out.device))
    return out


def _relayout_fake(block_scale: Tensor, rows: int, k: int, source: int, target: int) -> Tensor:
    return block_scale.new_empty(LAYOUTS[target].shape(rows, k))


relayout = register_op(
    "relayout(Tensor block_scale, SymInt rows, SymInt k, int source, int target) -> Tensor", _relayout, _relayout_fake
)
