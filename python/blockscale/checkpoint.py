# SPDX-License-Identifier: Apache-2.0
"""`from_parts`: the one door for NVFP4 bytes made elsewhere; `decode_scale` and `encode_scale`: the way out.

Files of other systems hold the second level in one of three forms, amax, amax/N or N/amax, all of them plain FP32
numbers, and codes in one of two nibble orders. Nothing in the bytes tells which, so the caller names it:

- ModelOpt: ``from_parts(weight, weight_scale, decode_scale=weight_scale_2)``
- compressed-tensors: ``from_parts(weight_packed, weight_scale, encode_scale=weight_global_scale)``

An operand itself goes through `torch.save`, and `torch.load` with weights_only=True, as it is.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

from . import ops
from ._checks import check_layout, check_operand, check_second_level
from ._codes import layout_code
from .errors import type_error, value_error
from .formats import BLOCK, NVFP4, Orientation, ScaleLayout
from .operand import NVFP4Operand, check_scale_bytes

NibbleOrder = Literal["low_first", "high_first"]

_FLT_MAX = torch.finfo(torch.float32).max
_NAME = "from_parts"
_PLAIN = NVFP4()


def from_parts(
    qdata: Tensor,
    block_scale: Tensor,
    *,
    amax: Tensor | float | None = None,
    decode_scale: Tensor | float | None = None,
    encode_scale: Tensor | float | None = None,
    nibble_order: NibbleOrder = "low_first",
    layout: ScaleLayout = ScaleLayout.LINEAR,
    format: NVFP4 = _PLAIN,
    shape: tuple[int, ...] | None = None,
    orientation: Orientation = "rowwise",
    check: bool = True,
) -> NVFP4Operand:
    """An operand around codes and scales that another system made. Exactly one form of the second level is given.

    Args:
        qdata: uint8 (..., K/2), contiguous, two codes a byte.
        block_scale: E4M3 bytes, float8_e4m3fn or uint8, contiguous: (..., K/16) for LINEAR, or the padded
            ``layout.shape(rows, K)`` for SWIZZLED_128X4, whose padding is read by nobody and becomes zero.
        amax: the second level as the largest magnitude.
        decode_scale: as amax/N, the factor that decodes; ``amax = decode_scale * N``, one FP32 operation.
        encode_scale: as N/amax, the factor that encodes; ``amax = N / encode_scale``, one FP32 operation.
            N is ``format.second_level_range``: 2688, or 1536 for e4m3_max=256. Each is a float (for
            scaling="tensor"), or float32 of shape () or (1,), and (rows,) for scaling="row".
        nibble_order: "low_first": the even column in bits 0-3. "high_first": in bits 4-7; nibbles are swapped.
        layout: where each block scale stands.
        format: what the bytes mean.
        shape: logical shape (..., K); None: that of qdata with K = 2 * qdata.shape[-1].
        orientation: which axis of the source became K.
        check: False leaves out the checks that read a CUDA tensor and so wait for the device. On the CPU they are
            always made.

    Returns:
        The operand. It shares the storage of qdata and block_scale where nothing had to change; amax is a copy.

    Raises:
        TypeError: a wrong kind or dtype; scales in bfloat16 or float32 are not converted here.
        ValueError: none or several forms of the second level; a negative one, or one that makes amax infinite; shapes
            that do not fit; block-scale bytes above 0x7F; with (16, 16) blocks, rows of one tile that differ.
    """
    _check_kinds(qdata, block_scale, nibble_order, format)
    check_layout(_NAME, layout)
    logical, rows, k = _logical_shape(qdata, shape)
    scale_bytes = _scale_matrix(block_scale, layout, logical, rows, k, tuple(qdata.shape[:-1]))
    read_values = qdata.device.type == "cpu" or (check and not qdata.is_meta)
    second_level = _amax_of(amax, decode_scale, encode_scale, format, rows, qdata.device, read_values)

    packed = qdata.reshape(rows, k // 2)
    if nibble_order == "high_first":
        packed = ((packed & 0x0F) << 4) | (packed >> 4)
    if layout is ScaleLayout.SWIZZLED_128X4 and layout.shape(rows, k) != (rows, k // BLOCK):
        linear = ops.relayout(scale_bytes, rows, k, layout_code(layout), layout_code(ScaleLayout.LINEAR))
        scale_bytes = ops.relayout(linear, rows, k, layout_code(ScaleLayout.LINEAR), layout_code(layout))
    op = NVFP4Operand(packed, scale_bytes, second_level, logical, layout, format, orientation)
    if read_values:
        check_scale_bytes(_NAME, op.block_scale)
        if format.block == (BLOCK, BLOCK):
            _check_tiles(op)
    return op


def decode_scale(op: NVFP4Operand) -> Tensor:
    """The second level as the factor that decodes: ``amax * (1/N)``, two FP32 roundings, as `gemm` applies it.

    What ModelOpt stores as `weight_scale_2`. Importing it again may differ from `amax` in the last bit.

    Returns:
        float32 of the shape of op.amax.

    Raises:
        TypeError: not an operand.
    """
    op = check_operand("decode_scale", "op", op)
    return op.amax * torch.full_like(op.amax, 1.0 / op.format.second_level_range)


def encode_scale(op: NVFP4Operand) -> Tensor:
    """The second level as the factor that encodes: ``min(N / |amax|, FLT_MAX)``; 1 for 0, NaN for inf and NaN.

    What compressed-tensors stores as `weight_global_scale`. An amax of 0 does not survive: the bytes of such an
    operand are all zero, and 1 encodes them as well as any other factor.

    Returns:
        float32 of the shape of op.amax.

    Raises:
        TypeError: not an operand.
    """
    op = check_operand("encode_scale", "op", op)
    magnitude = op.amax.abs()
    # A tensor divided by a tensor: `number / tensor` is a reciprocal and a product in torch, two roundings.
    quotient = torch.full_like(magnitude, op.format.second_level_range) / magnitude
    factor = torch.where(magnitude == 0, torch.ones_like(quotient), quotient.clamp(max=_FLT_MAX))
    return torch.where(magnitude.isfinite(), factor, torch.full_like(factor, math.nan))


def _check_kinds(qdata: object, block_scale: object, nibble_order: object, format: object) -> None:
    for arg, tensor in (("qdata", qdata), ("block_scale", block_scale)):
        if not isinstance(tensor, Tensor):
            raise type_error(_NAME, arg, "a torch.Tensor", type(tensor).__name__)
    if qdata.dtype is not torch.uint8:  # type: ignore[attr-defined]
        raise type_error(_NAME, "qdata", "uint8 (two codes a byte)", qdata.dtype)  # type: ignore[attr-defined]
    dtype = block_scale.dtype  # type: ignore[attr-defined]
    if dtype not in (torch.float8_e4m3fn, torch.uint8):
        hint = "If its values are E4M3 values, convert it with .to(torch.float8_e4m3fn) first."
        raise type_error(_NAME, "block_scale", "float8_e4m3fn, or its bytes as uint8", dtype, hint)
    if nibble_order not in ("low_first", "high_first"):
        raise value_error(_NAME, "nibble_order", '"low_first" or "high_first"', repr(nibble_order))
    if not isinstance(format, NVFP4):
        raise type_error(_NAME, "format", "an NVFP4", type(format).__name__)


def _logical_shape(qdata: Tensor, shape: tuple[int, ...] | None) -> tuple[tuple[int, ...], int, int]:
    """(logical shape, rows, K), K counted in elements, not in packed bytes."""
    if qdata.dim() == 0:
        raise value_error(_NAME, "qdata", "of shape (..., K/2)", "()")
    if not qdata.is_contiguous():
        raise value_error(_NAME, "qdata", "contiguous", f"strides {qdata.stride()}", "Call .contiguous().")
    rows, k = math.prod(qdata.shape[:-1]), 2 * qdata.shape[-1]
    logical = (*qdata.shape[:-1], k) if shape is None else tuple(int(size) for size in shape)
    if not logical or logical[-1] != k or math.prod(logical[:-1]) != rows:
        hint = "The last axis counts elements, two in each byte of qdata."
        raise value_error(_NAME, "shape", f"(..., {k}) with {rows} rows, as qdata has", logical, hint)
    if k % BLOCK:
        raise value_error(_NAME, "shape", f"(..., K) with K a multiple of {BLOCK}", logical)
    return logical, rows, k


def _scale_matrix(
    block_scale: Tensor, layout: ScaleLayout, logical: tuple[int, ...], rows: int, k: int, leading: tuple[int, ...]
) -> Tensor:
    """Block scales as a matrix of bytes in their layout."""
    want = layout.shape(rows, k)
    got = tuple(block_scale.shape)
    if got != want and not (layout is ScaleLayout.LINEAR and got == (*leading, k // BLOCK)):
        rule = f"of shape {want} for logical shape {logical}, {layout.name}"
        raise value_error(_NAME, "block_scale", rule, got)
    if not block_scale.is_contiguous():
        raise value_error(_NAME, "block_scale", "contiguous", f"strides {block_scale.stride()}", "Call .contiguous().")
    return block_scale.view(torch.uint8).view(want)


def _amax_of(
    amax: Tensor | float | None, decode: Tensor | float | None, encode: Tensor | float | None, format: NVFP4,
    rows: int, device: torch.device, read_values: bool,
) -> Tensor:  # fmt: skip
    """The second level as a fresh amax, () or (rows,), from the one form that was given. numerics, section 17."""
    forms = {"amax": amax, "decode_scale": decode, "encode_scale": encode}
    given = [arg for arg, value in forms.items() if value is not None]
    if len(given) != 1:
        hint = "Nothing in the bytes tells amax, amax/N and N/amax apart; say which it is."
        rule = "given as exactly one of amax, decode_scale and encode_scale"
        raise value_error(_NAME, "the second level", rule, " and ".join(given) or "none", hint)
    arg = given[0]
    value = check_second_level(_NAME, arg, forms[arg], format.scaling, rows, device)
    value = value.reshape((rows,) if format.scaling == "row" else ())
    n = torch.full_like(value, format.second_level_range)
    if arg == "decode_scale":
        result = value * n
    elif arg == "encode_scale":
        result = n / value
    else:
        result = value  # copied below
    if read_values:
        bad = (value < 0) | (value.isfinite() & ~result.isfinite())
        if bool(bad.any()):
            first = float(value.reshape(-1)[int(bad.reshape(-1).to(torch.uint8).argmax())])
            raise value_error(_NAME, arg, "non-negative, with a finite amax", first)
    # A stored NaN has one pattern of bits, and a stored zero no sign.
    return torch.where(result.isnan(), torch.full_like(result, math.nan), result.abs())


def _check_tiles(op: NVFP4Operand) -> None:
    """With (16, 16) blocks the rows of a tile hold the same scale; `transpose` relies on it."""
    codes = (layout_code(op.layout), layout_code(ScaleLayout.LINEAR))
    scales = op.block_scale.view(torch.uint8)
    linear = scales if codes[0] == codes[1] else ops.relayout(scales, op.rows, op.k, *codes)
    first_rows = torch.arange(op.rows, device=op.device) // BLOCK * BLOCK
    differs = linear != linear[first_rows]
    if bool(differs.any()):
        row, block = (int(index) for index in differs.nonzero()[0])
        rule = "equal in the rows of each 16 x 16 tile"
        hint = "Use format=NVFP4(block=(1, 16)) for scales of 1 x 16 blocks."
        raise value_error(_NAME, "block_scale", rule, f"another byte at row {row}, block {block}", hint)
