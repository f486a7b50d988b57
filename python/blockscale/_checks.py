# SPDX-License-Identifier: Apache-2.0
"""The checks at the door of the public functions: typed errors that name the argument, the rule and the value."""

from __future__ import annotations

import itertools
import math
import struct

import torch
from torch import Tensor

from ._codes import FLOAT_INPUTS
from .errors import type_error, value_error
from .formats import BLOCK, NVFP4, Orientation, ScaleLayout
from .operand import NVFP4Operand

_FLOAT_NAMES = "float32, bfloat16 or float16"


def check_float_tensor(op: str, arg: str, x: object) -> Tensor:
    """A float tensor that casts take: FP32, BF16 or FP16."""
    if not isinstance(x, Tensor):
        hint = "Use dequantize first." if isinstance(x, NVFP4Operand) else ""
        raise type_error(op, arg, "a torch.Tensor", type(x).__name__, hint)
    if x.dtype not in FLOAT_INPUTS:
        raise type_error(op, arg, _FLOAT_NAMES, x.dtype)
    return x


def check_operand(op: str, arg: str, x: object) -> NVFP4Operand:
    """An NVFP4 operand."""
    if not isinstance(x, NVFP4Operand):
        has_operands = hasattr(type(x), "rowwise")
        hint = "Pass its .rowwise or .columnwise." if has_operands else "Make one with quantize."
        raise type_error(op, arg, "an NVFP4Operand", type(x).__name__, hint)
    return x


def check_device(op: str, arg: str, device: torch.device, want: torch.device) -> None:
    """All tensors of a call are on one device."""
    if device != want:
        raise value_error(op, arg, f"on {want}, where the other arguments are", device)


def flatten_rows(op: str, arg: str, x: Tensor) -> Tensor:
    """`x` (..., K) as a matrix (M, K) with unit column stride, without a copy.

    Size-1 axes may have any stride.

    Raises:
        ValueError: no axis; the last axis is strided; or the leading axes are not evenly strided.
    """
    if x.dim() == 0:
        raise value_error(op, arg, "a matrix (..., K)", "a 0-dimensional tensor")
    if x.shape[-1] > 1 and x.stride(-1) != 1 and x.numel() > 0:
        raise value_error(op, arg, "contiguous in its last dimension", f"strides {x.stride()}", "Call .contiguous().")
    if x.dim() == 2:
        return x
    if x.dim() == 1:
        return x.unsqueeze(0)
    rows = math.prod(x.shape[:-1])
    if x.is_contiguous():
        return x.view(rows, x.shape[-1])
    sizes_strides = [(size, stride) for size, stride in zip(x.shape[:-1], x.stride()[:-1], strict=True) if size != 1]
    for (_, outer), (size, inner) in itertools.pairwise(sizes_strides):
        if outer != inner * size:
            rule = "evenly strided over its leading dimensions"
            raise value_error(op, arg, rule, f"strides {x.stride()}", "Call .contiguous().")
    row_stride = sizes_strides[-1][1] if sizes_strides else x.shape[-1]
    return x.as_strided((rows, x.shape[-1]), (row_stride, 1))


def check_blocks(op: str, arg: str, size: int, axis: str) -> None:
    """K (rowwise) or M (columnwise) is a whole number of blocks."""
    if size % BLOCK:
        low = size // BLOCK * BLOCK
        hint = f"The nearest are {low} and {low + BLOCK}."
        raise value_error(op, arg, f"of {axis} a multiple of {BLOCK}", size, hint)


_SMALLEST_NORMAL = 2.0**-126
_SUBNORMAL_STEP = 2.0**-149


def narrow_float(op: str, arg: str, value: float) -> float:
    """A Python float as FP32, whatever the thread's flush-to-zero state.

    Raises:
        ValueError: NaN, inf, or a value whose class changes in FP32 (finite to inf, non-zero to zero).
    """
    try:
        wide = float(value)
    except OverflowError:  # an int beyond every float
        wide = math.inf
    if not math.isfinite(wide):
        raise value_error(op, arg, "a finite float", value)
    if 0 < abs(wide) < _SMALLEST_NORMAL:
        narrow = round(wide / _SUBNORMAL_STEP) * _SUBNORMAL_STEP  # exact in FP64; round() ties to even
    else:
        try:
            narrow = struct.unpack("f", struct.pack("f", wide))[0]
        except OverflowError:
            narrow = math.inf
    if math.isinf(narrow) or (narrow == 0.0 and wide != 0.0):
        raise value_error(op, arg, "representable in float32", value)
    return narrow


def _scalar_tensor(value: float, device: torch.device) -> Tensor:
    """A float32 tensor () of a value that float32 represents; a subnormal is written as its bits."""
    if 0 < abs(value) < _SMALLEST_NORMAL:
        bits = round(abs(value) / _SUBNORMAL_STEP)
        return torch.full((), bits, dtype=torch.int32, device=device).view(torch.float32)
    return torch.full((), value, dtype=torch.float32, device=device)


def is_number(value: object) -> bool:
    """A Python int or float, and not a bool."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def check_second_level(op: str, arg: str, amax: object, scaling: str, rows: int, device: torch.device) -> Tensor:
    """A given amax as a contiguous float32 tensor on `device`: () or (1,) for "tensor", (rows,) for "row".

    A Python float is accepted for "tensor" and must not be negative.
    """
    if is_number(amax):
        if scaling == "row":
            raise value_error(op, arg, f"a float32 tensor of shape ({rows},) with scaling='row'", amax)
        narrow = narrow_float(op, arg, amax)  # type: ignore[arg-type]
        if narrow < 0:
            raise value_error(op, arg, "non-negative", amax)
        return _scalar_tensor(narrow, device)
    if not isinstance(amax, Tensor):
        raise type_error(op, arg, "a float or a float32 tensor", type(amax).__name__)
    if amax.dtype is not torch.float32:
        raise type_error(op, arg, "float32", amax.dtype, "Call .float().")
    shapes = ((rows,),) if scaling == "row" else ((), (1,))
    if tuple(amax.shape) not in shapes:
        names = " or ".join(str(shape) for shape in shapes)
        raise value_error(op, arg, f"of shape {names} with scaling={scaling!r}", tuple(amax.shape))
    check_device(op, arg, amax.device, device)
    if amax.numel() > 1 and amax.stride(0) != 1:
        raise value_error(op, arg, "contiguous", f"strides {amax.stride()}", "Call .contiguous().")
    return amax.detach() if amax.requires_grad else amax


def check_layout(op: str, layout: object) -> ScaleLayout:
    """A ScaleLayout."""
    if not isinstance(layout, ScaleLayout):
        raise type_error(op, "layout", "a ScaleLayout", type(layout).__name__)
    return layout


def check_out_operand(
    op: str, out: object, shape: tuple[int, ...], layout: ScaleLayout, format: NVFP4, orientation: Orientation,
    device: torch.device, arg: str = "out",
) -> NVFP4Operand:  # fmt: skip
    """An operand whose buffers fit the result, so that it can be written in place."""
    out = check_operand(op, arg, out)
    for field, want in (("shape", shape), ("layout", layout), ("format", format), ("orientation", orientation)):
        if getattr(out, field) != want:
            raise value_error(op, f"{arg}.{field}", str(want), getattr(out, field))
    check_device(op, arg, out.device, device)
    want_scales, got_scales = math.prod(layout.shape(out.rows, out.k)), out.block_scale.numel()
    if want_scales != got_scales:  # an operand made around the checks
        raise value_error(op, f"{arg}.block_scale", f"of {want_scales} bytes", f"{got_scales} bytes")
    return out
