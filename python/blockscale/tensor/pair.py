# SPDX-License-Identifier: Apache-2.0
"""Whether two operands are the two orientations of one matrix, as far as their fields tell."""

from __future__ import annotations

from dataclasses import replace

from .._checks import check_operand
from ..errors import value_error
from ..operand import NVFP4Operand

_NAME = "NVFP4Tensor"


def checked_pair(rowwise: NVFP4Operand | None, columnwise: NVFP4Operand | None) -> tuple[int, ...]:
    """The logical shape of one or two operands that fit together."""
    for arg, op in (("rowwise", rowwise), ("columnwise", columnwise)):
        if op is not None:
            check_operand(_NAME, arg, op)
            if op.orientation != arg:
                hint = "Swap the arguments, or quantize with the other orientation."
                raise value_error(_NAME, arg, f"of orientation {arg!r}", repr(op.orientation), hint)
    if rowwise is None:
        if columnwise is None:
            raise value_error(_NAME, "operands", "at least one", "none")
        return columnwise.k, columnwise.rows
    if columnwise is not None:
        if columnwise.shape != (rowwise.k, rowwise.rows):
            rule = f"of shape {(rowwise.k, rowwise.rows)}, the transpose of {rowwise.shape}"
            raise value_error(_NAME, "columnwise", rule, columnwise.shape)
        for field, want, got in (
            ("format", replace(rowwise.format, rht=None), replace(columnwise.format, rht=None)),
            ("layout", rowwise.layout, columnwise.layout),
            ("device", rowwise.device, columnwise.device),
        ):
            if want != got:
                raise value_error(_NAME, f"columnwise.{field}", f"that of rowwise, {want}", got)
    return rowwise.shape
