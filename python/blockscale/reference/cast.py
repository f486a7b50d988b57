# SPDX-License-Identifier: Apache-2.0
"""Casts in plain torch: `amax`, `quantize`, `quantize_both`, `dequantize`, `transpose`. numerics, sections 2 to 7."""

from __future__ import annotations

from typing import Literal

import torch

from ..errors import type_error, value_error
from ..formats import BLOCK, NVFP4, Orientation, ScaleLayout, Scaling
from ..operand import NVFP4Operand
from .arguments import all_finite, blocks_fit, float_dtype, matrix, second_level
from .codes import e2m1, e2m1_value, e4m3, e4m3_value, pack, unpack
from .fp32 import constant, divide, ieee_subnormals, max_magnitude
from .layouts import swizzle_scales, unswizzle_scales
from .scales import block_scale, decoded_scale, element_scale, encode_scale, non_finite_as_nan

Measure = Literal["mae", "mse"]


@ieee_subnormals()
def amax(x: torch.Tensor, scaling: Literal["tensor", "row", "column"] = "tensor") -> torch.Tensor:
    """The largest magnitude of x; NaN counts as more than inf, inf as more than every number. numerics, 2.1 and 4.

    Args:
        x: (..., K) float32, bfloat16 or float16; seen as the matrix (M, K).
        scaling: "tensor", "row" or "column": over everything, over each row, over each column.

    Returns:
        float32 of shape (), (M,) or (K,); 0 where there is nothing. A NaN has bits 7FC00000.

    Raises:
        TypeError: x is not a tensor of one of the three dtypes.
        ValueError: x without a dimension, or another ``scaling``.
    """
    values = matrix("amax", x)
    if scaling not in ("tensor", "row", "column"):
        raise value_error("amax", "scaling", '"tensor", "row" or "column"', repr(scaling))
    return max_magnitude(values, {"tensor": (0, 1), "row": (1,), "column": (0,)}[scaling])


@ieee_subnormals()
def quantize(
    x: torch.Tensor,
    *,
    scaling: Scaling = "tensor",
    block: tuple[int, int] = (1, BLOCK),
    orientation: Orientation = "rowwise",
    amax: torch.Tensor | float | None = None,
    e4m3_max: int = 448,
    layout: ScaleLayout = ScaleLayout.LINEAR,
    four_over_six: Measure | None = None,
    nonfinite: Literal["propagate", "raise"] = "propagate",
) -> NVFP4Operand:
    """x in NVFP4, rounded to nearest. numerics, sections 2, 3, 4, 5 and 7.

    Args:
        x: (..., K) float32, bfloat16 or float16, K a multiple of 16; seen as the matrix (M, K). Any strides.
        scaling: "tensor", one amax; "row", one for each row of the operand.
        block: (1, 16), a block scale for 16 elements of a row; (16, 16), one for a tile.
        orientation: "rowwise", an operand of shape (..., K); "columnwise", that of the transpose, of shape (K, M),
            for which M must be a multiple of 16.
        amax: None, the amax of x; or a given second level: a number or float32 () or (1,) for scaling="tensor",
            float32 (M,) (columnwise: (K,)) for scaling="row". Copied; its magnitude counts.
        e4m3_max: 448 or 256, see `NVFP4`.
        layout: where the block scales of the result stand.
        four_over_six: None, "mae" or "mse", see `NVFP4`.
        nonfinite: "propagate", NaN and inf make what depends on them decode to NaN; "raise", a ValueError.

    Raises:
        TypeError: the kind or dtype of x, amax or layout.
        ValueError: a shape that blocks do not divide; an illegal format (see `NVFP4`), orientation or amax;
            what nonfinite="raise" found.
    """
    fmt = NVFP4(scaling=scaling, block=block, e4m3_max=e4m3_max, four_over_six=four_over_six)
    if orientation not in ("rowwise", "columnwise"):
        raise value_error("quantize", "orientation", '"rowwise" or "columnwise"', repr(orientation))
    return _quantize("quantize", x, fmt, orientation, amax, layout, nonfinite)


@ieee_subnormals()
def quantize_both(
    x: torch.Tensor,
    *,
    scaling: Scaling = "tensor",
    block: tuple[int, int] = (1, BLOCK),
    amax: torch.Tensor | float | None = None,
    columnwise_amax: torch.Tensor | float | None = None,
    e4m3_max: int = 448,
    layout: ScaleLayout = ScaleLayout.LINEAR,
    four_over_six: Measure | None = None,
    nonfinite: Literal["propagate", "raise"] = "propagate",
) -> tuple[NVFP4Operand, NVFP4Operand]:
    """(rowwise, columnwise) operands of x: what two calls of `quantize` give. numerics, section 5, law 3.

    Args as for `quantize`, and:
        columnwise_amax: the second level of the columnwise operand. None: ``amax`` for scaling="tensor", the column
            amax of x for scaling="row". Not with block (16, 16), whose orientations share one.

    Raises:
        TypeError, ValueError: as `quantize` for each orientation; columnwise_amax with block (16, 16).
    """
    fmt = NVFP4(scaling=scaling, block=block, e4m3_max=e4m3_max, four_over_six=four_over_six)
    if columnwise_amax is None:
        columnwise_amax = amax if scaling == "tensor" else None
    elif block == (BLOCK, BLOCK):
        got = "a second amax"
        raise value_error("quantize_both", "columnwise_amax", "None with block=(16, 16)", got, "Tiles share one amax.")
    columnwise = _quantize("quantize_both", x, fmt, "columnwise", columnwise_amax, layout, nonfinite)
    return _quantize("quantize_both", x, fmt, "rowwise", amax, layout, nonfinite), columnwise


@ieee_subnormals()
def dequantize(op: NVFP4Operand, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """``val(code) * ((val(block_scale) * amax) * (1/N))``, rounded once more to dtype. numerics, section 6.

    Args:
        op: any operand, in either layout. One made with ``rht`` decodes to the rotated values.
        dtype: float32, bfloat16 or float16.

    Returns:
        The values, of shape ``op.shape``. -0.0 keeps its sign; a block scale 7F and an amax of NaN decode to NaN.

    Raises:
        TypeError: not an operand, or another dtype.
    """
    if not isinstance(op, NVFP4Operand):
        raise type_error("dequantize", "op", "an NVFP4Operand", type(op).__name__)
    float_dtype("dequantize", "dtype", dtype)
    scale = unswizzle_scales(op).block_scale.view(torch.uint8)
    t = decoded_scale(scale, op.amax.view(-1, 1), op.format.second_level_range)
    y = e2m1_value(unpack(op.qdata)) * t.repeat_interleave(BLOCK, dim=1)
    return y.to(dtype).view(op.shape)


def transpose(op: NVFP4Operand) -> NVFP4Operand:
    """The operand of the transpose, from the bytes alone: codes and tile scales change places. numerics, 5 and 13.1.

    Args:
        op: block (16, 16), rows and K multiples of 16, either layout and orientation.

    Returns:
        Shape (K, rows), the other orientation, the same layout and format; new storage, padding 0x00.

    Raises:
        TypeError: not an operand.
        ValueError: block (1, 16), whose scales belong to other groups of 16 in the transpose; rows no multiple of 16.
    """
    if not isinstance(op, NVFP4Operand):
        raise type_error("transpose", "op", "an NVFP4Operand", type(op).__name__)
    if op.format.block != (BLOCK, BLOCK):
        hint = "Quantize the source with orientation='columnwise'."
        raise value_error("transpose", "op", "of block (16, 16)", f"block {op.format.block}", hint)
    if op.rows % BLOCK:
        raise value_error("transpose", "op", f"of rows a multiple of {BLOCK}", f"{op.rows} rows")
    tile_scale = unswizzle_scales(op).block_scale.view(torch.uint8)[::BLOCK]
    orientation: Orientation = "columnwise" if op.orientation == "rowwise" else "rowwise"
    shape = (op.k, op.rows)
    return _operand(unpack(op.qdata).T, tile_scale.T, op.amax.clone(), shape, op.layout, op.format, orientation)


def _quantize(
    op_name: str,
    x: torch.Tensor,
    fmt: NVFP4,
    orientation: Orientation,
    given: torch.Tensor | float | None,
    layout: ScaleLayout,
    nonfinite: str,
) -> NVFP4Operand:
    values = matrix(op_name, x)
    columnwise = orientation == "columnwise"
    if not isinstance(layout, ScaleLayout):
        raise type_error(op_name, "layout", "a ScaleLayout", type(layout).__name__)
    if nonfinite not in ("propagate", "raise"):
        raise value_error(op_name, "nonfinite", '"propagate" or "raise"', repr(nonfinite))
    blocks_fit(op_name, values, columnwise)
    tiles = fmt.block == (BLOCK, BLOCK)
    shape = (values.shape[1], values.shape[0]) if columnwise else tuple(x.shape)
    # Law 1: a columnwise operand is the rowwise one of the transpose. Law 2: for tiles it is the transpose of the
    # rowwise operand, so that the choice of four_over_six is the same in both.
    work = values.T.contiguous() if columnwise and not tiles else values
    if given is None:
        g = max_magnitude(work, (1,) if fmt.scaling == "row" else (0, 1))
    else:
        g = second_level(op_name, "amax", given, fmt.scaling, work.shape[0], work.device)
    if nonfinite == "raise":
        all_finite(op_name, "x", x.detach())
        if isinstance(given, torch.Tensor):
            all_finite(op_name, "amax", given.detach(), negative=False)
    codes, scale = _cast(work, g, fmt)
    if columnwise and tiles:
        codes, scale = codes.T, scale.T
    return _operand(codes, scale, g, shape, layout, fmt, orientation)


def _operand(
    codes: torch.Tensor,
    scale: torch.Tensor,
    g: torch.Tensor,
    shape: tuple[int, ...],
    layout: ScaleLayout,
    fmt: NVFP4,
    orientation: Orientation,
) -> NVFP4Operand:
    """Codes (rows, K) and one scale byte a block or tile, packed and laid out."""
    per_row = scale.repeat_interleave(fmt.block[0], dim=0)[: codes.shape[0]].contiguous()
    linear = NVFP4Operand(pack(codes).contiguous(), per_row, g, shape, ScaleLayout.LINEAR, fmt, orientation)
    return linear if layout is ScaleLayout.LINEAR else swizzle_scales(linear)


def _cast(x: torch.Tensor, g: torch.Tensor, fmt: NVFP4) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes (M, K) and scale bytes (ceil(M / block rows), K/16) of FP32 x (M, K). numerics, sections 2.1, 3 and 7.

    The block dimensions are (tile row, row in the tile, block column, element); a row of a short tile counts as zeros.
    """
    m, k = x.shape
    height = fmt.block[0]
    blocks = torch.nn.functional.pad(x, (0, 0, 0, -m % height)).view(-(-m // height), height, k // BLOCK, BLOCK)
    g = g.view(-1, 1)  # (1, 1), or (M, 1) for scaling="row", where a tile is one row
    block_amax = max_magnitude(blocks, (1, 3))
    se = encode_scale(g, fmt.second_level_range)
    if fmt.four_over_six is None:
        scale = block_scale(block_amax, se)
        codes = _elements(blocks, scale, se)
    else:
        scale, codes = _four_or_six(blocks, block_amax, g, se, fmt.four_over_six, fmt.second_level_range)
    return codes.view(-1, k)[:m] if k else codes.view(len(codes) * height, 0)[:m], scale


def _elements(blocks: torch.Tensor, scale: torch.Tensor, se: torch.Tensor) -> torch.Tensor:
    """``c = e2m1(x * e)`` for the elements of each block. numerics, section 2.1."""
    e = element_scale(scale, se)
    return e2m1(blocks * e[:, None, :, None])


def _four_or_six(
    blocks: torch.Tensor, block_amax: torch.Tensor, g: torch.Tensor, se: torch.Tensor, measure: Measure, n: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Scale bytes and codes of the better of two grids: the block maximum at 6, or at 4. numerics, section 7."""
    base = divide(block_amax, constant(6.0, se)) * se
    scale_6 = non_finite_as_nan(e4m3(base), block_amax, se)
    scale_4 = non_finite_as_nan(e4m3(base * 1.5), block_amax, se)
    codes_6 = _elements(blocks, scale_6, se)
    codes_4 = _elements(blocks, scale_4, se)
    err_6 = _error(blocks, codes_6, scale_6, g, measure, n)
    err_4 = _error(blocks, codes_4, scale_4, g, measure, n)
    four = err_4 < err_6  # not where they are equal, or NaN
    return torch.where(four, scale_4, scale_6), torch.where(four[:, None, :, None], codes_4, codes_6)


def _error(
    blocks: torch.Tensor, codes: torch.Tensor, scale: torch.Tensor, g: torch.Tensor, measure: Measure, n: int
) -> torch.Tensor:
    """The error of each block, summed in the order of numerics, section 7: elements one by one, then rows in a tree."""
    value = e2m1_value(codes) * e4m3_value(scale)[:, None, :, None]
    value = divide(value * g[:, :, None, None], constant(float(n), g))
    w = value - blocks
    terms = w.abs() if measure == "mae" else w * w
    total = torch.zeros_like(terms[..., 0])
    for i in range(BLOCK):
        total = total + terms[..., i]
    rows = blocks.shape[1]
    while rows > 1:
        rows //= 2
        total = total[:, :rows] + total[:, rows : 2 * rows]
    return total[:, 0]
