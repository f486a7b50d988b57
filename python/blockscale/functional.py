# SPDX-License-Identifier: Apache-2.0
"""The casts as functions: `amax`, `quantize`, `quantize_both`, `dequantize`, `transpose`, and the scale layouts.

CPU and CUDA tensors give the same bytes. Checks stand here, before any work; the work is in `ops.py`. None of these
is differentiable: codes are integers. `matmul.py` has `gemm`.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor

from . import ops
from ._checks import (
    check_blocks,
    check_device,
    check_float_tensor,
    check_layout,
    check_operand,
    check_out_operand,
    check_second_level,
    flatten_rows,
)
from ._codes import AMAX_CODE, FLOAT_INPUTS, SCALING_CODE, layout_code
from .errors import not_offered, type_error, value_error
from .formats import BLOCK, NVFP4, Orientation, ScaleLayout, Scaling
from .operand import NVFP4Operand, make_operand

_E4M3 = torch.float8_e4m3fn


def amax(x: Tensor, scaling: Literal["tensor", "row", "column"] = "tensor") -> Tensor:
    """Largest magnitude of a tensor, of each row, or of each column.

    NaN ranks above inf, inf above every finite value; a NaN result is the canonical 7FC00000.

    Args:
        x: (..., K) float32, bfloat16 or float16; rows may be strided.
        scaling: "tensor", "row" (the matrix (M, K) that x flattens to) or "column".

    Returns:
        float32 of shape (), (M,) or (K,); 0 where there is nothing.

    Raises:
        TypeError, ValueError: a wrong dtype, stride or scaling.
    """
    x = flatten_rows("amax", "x", _detached(check_float_tensor("amax", "x", x)))
    if scaling not in ("tensor", "row", "column"):
        raise value_error("amax", "scaling", '"tensor", "row" or "column"', repr(scaling))
    result: Tensor = ops.amax(x, AMAX_CODE[scaling])
    return result


def quantize(
    x: Tensor,
    *,
    scaling: Scaling = "tensor",
    block: tuple[int, int] = (1, BLOCK),
    orientation: Orientation = "rowwise",
    amax: Tensor | float | None = None,
    amax_group: Any = None,
    e4m3_max: int = 448,
    four_over_six: Literal["mae", "mse"] | None = None,
    rht: int | None = None,
    layout: ScaleLayout = ScaleLayout.LINEAR,
    rounding: Literal["nearest", "stochastic"] = "nearest",
    seed: int | None = None,
    nonfinite: Literal["propagate", "raise"] = "propagate",
    out: NVFP4Operand | None = None,
) -> NVFP4Operand:
    """Quantizes a matrix to NVFP4: E2M1 codes, E4M3 block scales, an FP32 amax.

    The formulas, in FP32 with one rounding each: ``Se = 6 * e4m3_max / amax``; per block ``s = e4m3(block_amax *
    (Se * (1/6)))``; per element ``code = e2m1(x * (1 / (s * (1/Se))))``. They are TransformerEngine's, bit for bit,
    for finite inputs; docs/scaling.md walks through them.

    Args:
        x: (..., K) float32, bfloat16 or float16 with unit stride along K; K a multiple of 16. Rows may be strided.
        scaling: "tensor", one amax; or "row", one for each row (of the transpose, if columnwise).
        block: (1, 16), or (16, 16), whose bits the transpose shares.
        orientation: "rowwise", an operand of shape x.shape; or "columnwise", the rowwise operand of the transpose,
            shape (K, M), M a multiple of 16.
        amax: the second level: float32 () or (1,) or a Python float for "tensor", (rows,) for "row". None: the
            maximum of x. It may be smaller than the data, which then clips.
        amax_group: a torch.distributed group over which x's own amax is the maximum (scaling="tensor"); every rank
            calls, also with an empty x.
        e4m3_max: 448, or 256.
        four_over_six, rht: parts of the format that no backend writes yet (NotImplementedError).
        layout: where block scales are written; padding is written as zero.
        rounding: "nearest", ties to even. "stochastic" is not written yet (NotImplementedError); seed belongs to it.
        nonfinite: "propagate": a NaN or inf makes its tensor (own amax; its row under scaling="row") or its block
            (given finite amax) decode to NaN. "raise": ValueError instead; waits for the device once.
        out: an operand of the same shape, format, layout and orientation to write into.

    Returns:
        The operand; `out` itself if given.

    Raises:
        TypeError: a wrong type or dtype. ValueError: a shape, stride, device or value that breaks a rule.
        NotImplementedError: legal, but not offered. RuntimeError: a CUDA tensor without a usable CUDA build.
    """
    name = "quantize"
    matrix, shape, fmt = _checked_input(
        name, x, scaling, block, e4m3_max, four_over_six, rht, layout, rounding, seed, nonfinite
    )
    if orientation not in ("rowwise", "columnwise"):
        raise value_error(name, "orientation", '"rowwise" or "columnwise"', repr(orientation))
    columnwise = orientation == "columnwise"
    m, k = matrix.shape
    if columnwise:
        check_blocks(name, "x", m, "M (for a columnwise operand)")
        shape = (k, m)
    given = None
    if amax is not None:
        given = check_second_level(name, "amax", amax, scaling, k if columnwise else m, matrix.device)
    if out is not None:
        check_out_operand(name, out, shape, layout, fmt, orientation, matrix.device)
    given = _reduced_over_group(name, matrix, given, amax_group, scaling)
    _check_finite(name, nonfinite, matrix, [given])
    options = (given, SCALING_CODE[scaling], block[0], e4m3_max, layout_code(layout), columnwise)
    if out is not None:
        ops.quantize_out(matrix, *options, *_tensors(out))
        return out
    qdata, scales, stored = ops.quantize(matrix, *options)
    return make_operand(qdata, scales.view(_E4M3), stored, shape, layout, fmt, orientation)


def quantize_both(
    x: Tensor,
    *,
    scaling: Scaling = "tensor",
    block: tuple[int, int] = (1, BLOCK),
    amax: Tensor | float | tuple[Tensor, Tensor] | None = None,
    amax_group: Any = None,
    e4m3_max: int = 448,
    four_over_six: Literal["mae", "mse"] | None = None,
    rht: int | None = None,
    layout: ScaleLayout = ScaleLayout.LINEAR,
    rounding: Literal["nearest", "stochastic"] = "nearest",
    seed: int | None = None,
    nonfinite: Literal["propagate", "raise"] = "propagate",
    out: tuple[NVFP4Operand, NVFP4Operand] | None = None,
) -> tuple[NVFP4Operand, NVFP4Operand]:
    """Both orientations from one read of x: what two calls of `quantize` would write, bit for bit.

    Arguments and errors as for `quantize`. M and K are multiples of 16. With scaling="row", a given amax is the pair
    (rowwise (M,), columnwise (K,)).

    Returns:
        (rowwise operand of shape x.shape, columnwise operand of shape (K, M)).
    """
    name = "quantize_both"
    matrix, shape, fmt = _checked_input(
        name, x, scaling, block, e4m3_max, four_over_six, rht, layout, rounding, seed, nonfinite
    )
    m, k = matrix.shape
    check_blocks(name, "x", m, "M (for a columnwise operand)")
    row_amax, column_amax = _pair_of_amaxes(name, amax, scaling, m, k, matrix.device)
    if out is not None:
        if not isinstance(out, tuple) or len(out) != 2:
            raise type_error(name, "out", "a pair of operands", type(out).__name__)
        check_out_operand(name, out[0], shape, layout, fmt, "rowwise", matrix.device, "out[0]")
        check_out_operand(name, out[1], (k, m), layout, fmt, "columnwise", matrix.device, "out[1]")
    if amax_group is not None:
        row_amax = column_amax = _reduced_over_group(name, matrix, row_amax, amax_group, scaling)
    _check_finite(name, nonfinite, matrix, [row_amax, column_amax])
    options = (row_amax, column_amax, SCALING_CODE[scaling], block[0], e4m3_max, layout_code(layout))
    if out is not None:
        ops.quantize_both_out(matrix, *options, *_tensors(out[0]), *_tensors(out[1]))
        return out
    parts = ops.quantize_both(matrix, *options)
    return (
        make_operand(parts[0], parts[1].view(_E4M3), parts[2], shape, layout, fmt, "rowwise"),
        make_operand(parts[3], parts[4].view(_E4M3), parts[5], (k, m), layout, fmt, "columnwise"),
    )


def dequantize(op: NVFP4Operand, dtype: torch.dtype = torch.float32, out: Tensor | None = None) -> Tensor:
    """The values of an operand: ``code * ((block_scale * amax) * (1 / (6 * e4m3_max)))``, in FP32, rounded once.

    For amax >= 1 both factors of the second level are shifted by 2^10 in opposite directions, which is exact and keeps
    large finite tensors finite. A block scale 7F, or an amax that is NaN, gives NaN. Values of an operand with rht are
    the rotated ones.

    Args:
        op: the operand; both layouts are read.
        dtype: float32, bfloat16 or float16 (overflow gives inf).
        out: a tensor of op.shape to write into, with unit stride along K; its dtype decides.

    Returns:
        A tensor of op.shape; `out` itself if given.

    Raises:
        TypeError, ValueError: a wrong type, dtype, shape, stride or device.
    """
    name = "dequantize"
    op = check_operand(name, "op", op)
    if dtype not in FLOAT_INPUTS:
        raise type_error(name, "dtype", "torch.float32, torch.bfloat16 or torch.float16", dtype)
    fields = (SCALING_CODE[op.format.scaling], op.format.e4m3_max, layout_code(op.layout))
    if out is None:
        result: Tensor = ops.dequantize(*_tensors(op), *fields, dtype)
        return result.view(op.shape)
    check_float_tensor(name, "out", out)
    if tuple(out.shape) != op.shape:
        raise value_error(name, "out", f"of shape {op.shape}", tuple(out.shape))
    check_device(name, "out", out.device, op.device)
    ops.dequantize_out(*_tensors(op), *fields, writable_rows(name, "out", out))
    return out


def transpose(op: NVFP4Operand, out: NVFP4Operand | None = None) -> NVFP4Operand:
    """The transpose of an operand with (16, 16) blocks, FP4 to FP4: nibbles and tile scales move, no value changes.

    Equals quantizing the transpose, byte for byte, with padding; twice is the identity.

    Args:
        op: (M, K) with block (16, 16), M a multiple of 16; either layout, which the result keeps.
        out: an operand of shape (K, M) to write into, of the same format and layout.

    Returns:
        The (K, M) operand, of the other orientation; `out` itself if given.

    Raises:
        TypeError: not an operand. ValueError: block (1, 16), whose scales belong to other groups of 16 in the
            transpose; or M not a multiple of 16.
    """
    name = "transpose"
    op = check_operand(name, "op", op)
    if op.format.block != (BLOCK, BLOCK):
        hint = "Scales of (1, 16) blocks cannot be moved: quantize with orientation='columnwise' instead."
        raise value_error(name, "op", "of block (16, 16)", op.format.block, hint)
    check_blocks(name, "op", op.rows, "M")
    shape = (op.k, op.rows)
    orientation: Orientation = "columnwise" if op.orientation == "rowwise" else "rowwise"
    args = (*_tensors(op), op.format.e4m3_max, layout_code(op.layout))
    if out is not None:
        check_out_operand(name, out, shape, op.layout, op.format, orientation, op.device)
        ops.transpose_out(*args, *_tensors(out))
        return out
    qdata, scales, stored = ops.transpose(*args)
    return make_operand(qdata, scales.view(_E4M3), stored, shape, op.layout, op.format, orientation)


def swizzle_scales(op: NVFP4Operand) -> NVFP4Operand:
    """The operand with its block scales in SWIZZLED_128X4; itself if they are. Padding bytes are zero.

    Raises:
        TypeError: not an operand.
    """
    return _with_layout("swizzle_scales", op, ScaleLayout.SWIZZLED_128X4)


def unswizzle_scales(op: NVFP4Operand) -> NVFP4Operand:
    """The operand with its block scales in LINEAR; itself if they are. The exact inverse of `swizzle_scales`.

    Raises:
        TypeError: not an operand.
    """
    return _with_layout("unswizzle_scales", op, ScaleLayout.LINEAR)


def _with_layout(name: str, op: NVFP4Operand, layout: ScaleLayout) -> NVFP4Operand:
    op = check_operand(name, "op", op)
    if op.layout is layout:
        return op
    scales = ops.relayout(op.block_scale.view(torch.uint8), op.rows, op.k, layout_code(op.layout), layout_code(layout))
    return make_operand(op.qdata, scales.view(_E4M3), op.amax, op.shape, layout, op.format, op.orientation)


def writable_rows(name: str, arg: str, out: Tensor) -> Tensor:
    """An output (..., K) as a matrix of rows; no two elements may share memory, and autograd must not watch it."""
    if out.requires_grad and torch.is_grad_enabled():
        hint = "Write under torch.no_grad(), or into a detached tensor."
        raise not_offered(name, arg, "free of requires_grad while grad mode is on", "requires_grad=True", hint)
    matrix = flatten_rows(name, arg, out)
    if matrix.shape[0] > 1 and matrix.stride(0) < matrix.shape[1]:
        raise value_error(name, arg, "free of overlapping rows", f"strides {out.stride()}")
    return matrix


def _detached(x: Tensor) -> Tensor:
    return x.detach() if x.requires_grad else x


def _tensors(op: NVFP4Operand) -> tuple[Tensor, Tensor, Tensor]:
    return op.qdata, op.block_scale.view(torch.uint8), op.amax


def _checked_input(
    name: str, x: Tensor, scaling: Scaling, block: tuple[int, int], e4m3_max: int,
    four_over_six: Literal["mae", "mse"] | None, rht: int | None, layout: ScaleLayout, rounding: str, seed: int | None,
    nonfinite: str,
) -> tuple[Tensor, tuple[int, ...], NVFP4]:  # fmt: skip
    """The checks that quantize and quantize_both share: (matrix, logical shape, format)."""
    x = check_float_tensor(name, "x", x)
    fmt = _format_of(scaling, block, e4m3_max, four_over_six, rht)
    check_layout(name, layout)
    if rounding not in ("nearest", "stochastic"):
        raise value_error(name, "rounding", '"nearest" or "stochastic"', repr(rounding))
    if rounding == "stochastic":
        if block != (1, BLOCK) or four_over_six is not None:
            raise value_error(name, "rounding", '"nearest" with (16, 16) blocks or four_over_six', '"stochastic"')
        raise not_offered(name, "rounding", f'"nearest" on {x.device} in this version', '"stochastic"')
    if nonfinite not in ("propagate", "raise"):
        raise value_error(name, "nonfinite", '"propagate" or "raise"', repr(nonfinite))
    if seed is not None:
        raise value_error(name, "seed", 'None with rounding="nearest"', seed)
    if four_over_six is not None:
        raise not_offered(name, "four_over_six", f"None on {x.device} in this version", repr(four_over_six))
    if rht is not None:
        raise not_offered(name, "rht", f"None on {x.device} in this version", hex(rht))
    matrix = flatten_rows(name, "x", _detached(x))
    check_blocks(name, "x", matrix.shape[1], "K")
    return matrix, tuple(x.shape) if x.dim() > 1 else (x.shape[0],), fmt


_SCALING_AND_BLOCK: tuple[tuple[Scaling, tuple[int, int]], ...] = (
    ("tensor", (1, BLOCK)),
    ("tensor", (BLOCK, BLOCK)),
    ("row", (1, BLOCK)),
)
_PLAIN_FORMATS = tuple(
    NVFP4(scaling=scaling, block=block, e4m3_max=e4m3_max)
    for e4m3_max in (448, 256)
    for scaling, block in _SCALING_AND_BLOCK
)
"""Formats without options, made once: making one costs more than looking it up."""


def _format_of(
    scaling: Scaling, block: tuple[int, int], e4m3_max: int, four_over_six: Literal["mae", "mse"] | None,
    rht: int | None,
) -> NVFP4:  # fmt: skip
    if four_over_six is None and rht is None and isinstance(scaling, str) and type(e4m3_max) is int:
        for made in _PLAIN_FORMATS:
            if made.scaling == scaling and made.block == block and made.e4m3_max == e4m3_max:
                return made
    return NVFP4(scaling=scaling, block=block, e4m3_max=e4m3_max, four_over_six=four_over_six, rht=rht)


def _pair_of_amaxes(
    name: str, amax: Tensor | float | tuple[Tensor, Tensor] | None, scaling: Scaling, m: int, k: int,
    device: torch.device,
) -> tuple[Tensor | None, Tensor | None]:  # fmt: skip
    if amax is None:
        return None, None
    if scaling == "tensor":
        one = check_second_level(name, "amax", amax, scaling, m, device)
        return one, one
    if not isinstance(amax, tuple) or len(amax) != 2:
        rule = f"a pair of float32 tensors, ({m},) and ({k},), with scaling='row'"
        raise value_error(name, "amax", rule, type(amax).__name__)
    return (
        check_second_level(name, "amax[0]", amax[0], scaling, m, device),
        check_second_level(name, "amax[1]", amax[1], scaling, k, device),
    )


def _reduced_over_group(name: str, matrix: Tensor, given: Tensor | None, group: Any, scaling: Scaling) -> Tensor | None:
    """The group's amax: one all_reduce(MAX) of the own maximum, on its int32 view, which keeps NaN and inf."""
    if group is None:
        return given
    if scaling != "tensor":
        raise value_error(name, "amax_group", "None with scaling='row'", "a group", "A row is on one rank.")
    if given is not None:
        raise value_error(name, "amax_group", "None when amax is given", "a group")
    if not isinstance(group, torch.distributed.ProcessGroup):
        raise type_error(name, "amax_group", "a torch.distributed process group", type(group).__name__)
    own: Tensor = ops.amax(matrix, AMAX_CODE["tensor"])
    torch.distributed.all_reduce(own.view(torch.int32), op=torch.distributed.ReduceOp.MAX, group=group)
    return own


def _check_finite(name: str, nonfinite: str, matrix: Tensor, given: list[Tensor | None]) -> None:
    if nonfinite == "propagate":
        return
    if matrix.is_meta:
        raise not_offered(name, "nonfinite", '"propagate" on meta, which has no values', '"raise"')
    capturing = matrix.is_cuda and torch.cuda.is_current_stream_capturing()
    if torch.compiler.is_compiling() or capturing:
        raise not_offered(name, "nonfinite", '"propagate" under torch.compile and graph capture', '"raise"')
    for amax in given:
        if amax is not None and bool(((amax < 0) | ~torch.isfinite(amax)).any()):
            raise value_error(
                name, "amax", "finite and non-negative with nonfinite='raise'", amax.flatten().tolist()[:4]
            )
    if bool(torch.isfinite(ops.amax(matrix, AMAX_CODE["tensor"]))):
        return
    bad = ~torch.isfinite(matrix)
    first = tuple(int(index) for index in bad.nonzero()[0])
    raise value_error(name, "x", "finite with nonfinite='raise'", f"{int(bad.sum())} NaN or inf, the first at {first}")
