# SPDX-License-Identifier: Apache-2.0
"""Checks at the door of the reference functions; each returns what the arithmetic works with. numerics, section 0."""

from __future__ import annotations

import math

import torch

from ..errors import type_error, value_error
from ..formats import BLOCK, Scaling
from .fp32 import magnitude_bits, stored_amax

FLOAT_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def matrix(op: str, x: torch.Tensor) -> torch.Tensor:
    """``x`` of shape (..., K) as the FP32 matrix (M, K), widened exactly.

    Raises:
        TypeError: x is no tensor, or not float32, bfloat16 or float16.
        ValueError: x has no dimension.
    """
    if not isinstance(x, torch.Tensor):
        raise type_error(op, "x", "a torch.Tensor", type(x).__name__)
    float_dtype(op, "x", x.dtype)
    if x.dim() == 0:
        raise value_error(op, "x", "of shape (..., K)", "()")
    return x.detach().reshape(math.prod(x.shape[:-1]), x.shape[-1]).float()


def float_dtype(op: str, arg: str, dtype: torch.dtype) -> None:
    """Refuse a dtype other than float32, bfloat16 and float16 with a TypeError."""
    if dtype not in FLOAT_DTYPES:
        raise type_error(op, arg, "float32, bfloat16 or float16", dtype)


def blocks_fit(op: str, x: torch.Tensor, columnwise: bool) -> None:
    """Refuse an FP32 matrix (M, K) that blocks of 16 do not divide: K always, M for a columnwise operand."""
    m, k = x.shape
    if k % BLOCK:
        raise value_error(op, "x", f"(..., K) with K a multiple of {BLOCK}", f"K = {k}", "Pad with zeros.")
    if columnwise and m % BLOCK:
        rule = f"(M, K) with M a multiple of {BLOCK} for a columnwise operand"
        raise value_error(op, "x", rule, f"M = {m}", "Pad with zeros.")


def narrowed(op: str, arg: str, value: float, *, negative: bool = True) -> float:
    """A Python number narrowed to FP32.

    Raises:
        TypeError: not a number.
        ValueError: NaN, inf, a number that FP32 turns into inf or into 0, or a negative one where none is allowed.
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise type_error(op, arg, "a number", type(value).__name__)
    wide = torch.tensor(float(value), dtype=torch.float64)
    narrow = float(wide.to(torch.float32))
    if not math.isfinite(narrow) or (narrow == 0) != (value == 0):
        raise value_error(op, arg, "a finite number that FP32 holds", value)
    if value < 0 and not negative:
        raise value_error(op, arg, "at least 0", value)
    return narrow


def second_level(
    op: str, arg: str, value: torch.Tensor | float, scaling: Scaling, rows: int, device: torch.device
) -> torch.Tensor:
    """A given amax as the operand stores it: |G| with canonical NaN, FP32 () or (rows,), a fresh tensor.

    Raises:
        TypeError: neither a number nor a float32 tensor.
        ValueError: the wrong shape (a number, for scaling="row") or device; as `narrowed` for a number.
    """
    if not isinstance(value, torch.Tensor):
        number = narrowed(op, arg, value, negative=False)
        if scaling == "row":
            raise value_error(op, arg, f'a tensor of shape ({rows},) for scaling="row"', value)
        return torch.tensor(number, dtype=torch.float32, device=device)
    if value.dtype is not torch.float32:
        raise type_error(op, arg, "float32", value.dtype)
    shapes = [(rows,)] if scaling == "row" else [(), (1,)]
    if tuple(value.shape) not in shapes:
        rule = f"of shape {' or '.join(map(str, shapes))} for scaling={scaling!r}"
        raise value_error(op, arg, rule, tuple(value.shape))
    if value.device != device:
        raise value_error(op, arg, f"on {device}", value.device)
    return stored_amax(magnitude_bits(value.detach().reshape(shapes[0])))


def all_finite(op: str, arg: str, values: torch.Tensor, *, negative: bool = True) -> None:
    """nonfinite="raise": ValueError with the count and the first index of what is NaN or inf. numerics, section 2.3.

    With negative=False, values below 0 are refused too.
    """
    bad = ~values.isfinite()
    if not negative:
        bad |= values < 0
    count = int(bad.sum())
    if count:
        first = tuple(bad.nonzero()[0].tolist())
        rule = "finite" if negative else "finite and not negative"
        got = f"{count} bad of {values.numel()} elements, the first {float(values[first])} at {first}"
        raise value_error(op, arg, f'{rule} with nonfinite="raise"', got)
