# SPDX-License-Identifier: Apache-2.0
"""`Held`: the bytes behind an `NVFP4Tensor`, which all its aliases share, and which of them may be read.

Knows nothing of torch dispatch. `nvfp4_tensor.py` wraps it; `dispatch.py` says which torch ops reach it.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from ..errors import not_offered, value_error
from ..formats import BLOCK, NVFP4, Orientation, ScaleLayout
from ..functional import quantize, quantize_both, swizzle_scales, transpose, unswizzle_scales
from ..operand import NVFP4Operand, make_operand

_NAME = "NVFP4Tensor"
Rows = tuple[int, int]
"""A range of rows, start and stop."""


class Columnwise(enum.Enum):
    """Whether the columnwise copy may be read."""

    NONE = "not wanted"
    READY = "ready"
    STALE = "stale"
    """Wanted; made from the rowwise data at the first access."""
    MANUAL = "stale until rebuilt"
    """Stale, and made again only when the caller says that the rowwise data is whole."""


class Held:
    """One or two operands of a matrix (rows, k), shared by every alias of a tensor.

    A part of the rows is a Held of its own with rowwise data only. It shares storage with its root and tells it what is
    written. All operands here have 2-D shapes; the tensor knows the logical one.

    Attributes:
        rowwise, columnwise: the operands. A columnwise one that is not READY is a buffer with old bytes.
        state: whether columnwise data is wanted, and whether it may be read.
        missing: rows that hold no value: never written, or written under an amax that has been replaced since.
        root, start: of a part, the whole and the first row in it.
    """

    __slots__ = ("columnwise", "missing", "root", "rowwise", "start", "state")

    def __init__(
        self,
        rowwise: NVFP4Operand | None,
        columnwise: NVFP4Operand | None,
        state: Columnwise,
        missing: tuple[Rows, ...] = (),
        root: Held | None = None,
        start: int = 0,
    ) -> None:
        self.rowwise = rowwise
        self.columnwise = columnwise
        self.state = state
        self.missing = missing
        self.root = root
        self.start = start

    @property
    def any_operand(self) -> NVFP4Operand:
        """An operand for what both orientations agree on."""
        op = self.columnwise if self.rowwise is None else self.rowwise
        if op is None:
            raise value_error(_NAME, "operands", "at least one", "none")
        return op

    @property
    def rows(self) -> int:
        """M of the matrix."""
        return self.any_operand.k if self.rowwise is None else self.rowwise.rows

    @property
    def k(self) -> int:
        """K of the matrix."""
        return self.any_operand.rows if self.rowwise is None else self.rowwise.k

    @property
    def format(self) -> NVFP4:
        """The format; of the rowwise operand if there is one (only the columnwise one can be rotated)."""
        return self.any_operand.format

    @property
    def layout(self) -> ScaleLayout:
        """The scale layout of both orientations."""
        return self.any_operand.layout

    @property
    def wants_columnwise(self) -> bool:
        """Whether columnwise data is there, or is to be made."""
        return self.state is not Columnwise.NONE

    def operands(self) -> Iterator[NVFP4Operand]:
        """What is there, stale buffers included."""
        yield from (op for op in (self.rowwise, self.columnwise) if op is not None)

    def tensors(self) -> list[Tensor]:
        """All component tensors."""
        return [tensor for op in self.operands() for tensor in (op.qdata, op.block_scale, op.amax)]

    def map(self, change: Any) -> Held:
        """A whole with ``change(tensor)`` in place of every component tensor."""
        rowwise, columnwise = (
            None if op is None else op._with_tensors(change(op.qdata), change(op.block_scale), change(op.amax))
            for op in (self.rowwise, self.columnwise)
        )
        return Held(rowwise, columnwise, self.state, self.missing_rows())

    def part(self, start: int, stop: int) -> Held:
        """Rows start:stop with the same amax, sharing storage.

        Raises:
            ValueError: rows that cut a tile, or an atom of swizzled scales; no rowwise data.
        """
        if self.rowwise is None:
            raise self._lacks("rowwise")
        rowwise = self.rowwise[start:stop]
        state = Columnwise.STALE if self.wants_columnwise else Columnwise.NONE
        return Held(rowwise, None, state, (), self.root or self, self.start + start)

    def new(self, rows: int, k: int, *, device: torch.device, fill: int | None, pin: bool = False) -> Held:
        """New storage for a matrix (rows, k) of the same format: bytes of `fill`, or unwritten rows for None.

        Columnwise data that is wanted is made when it is first read, unless there is no rowwise data to make it from.
        """
        from_columnwise = self.rowwise is None
        source = self.any_operand
        if from_columnwise:
            rows, k = k, rows
        shapes = ((rows, k // 2), source.layout.shape(rows, k), (rows,) if source.format.scaling == "row" else ())
        dtypes = (torch.uint8, torch.uint8, torch.float32)
        make = torch.empty if fill is None else torch.zeros
        parts = [
            make(shape, dtype=dtype, device=device, pin_memory=pin) for shape, dtype in zip(shapes, dtypes, strict=True)
        ]
        op = make_operand(
            parts[0], parts[1].view(torch.float8_e4m3fn), parts[2], (rows, k), source.layout, source.format,
            source.orientation,
        )  # fmt: skip
        if from_columnwise:
            return Held(None, op, Columnwise.READY, ((0, k),) if fill is None and k else ())
        state = Columnwise.STALE if self.wants_columnwise else Columnwise.NONE
        return Held(op, None, state, ((0, rows),) if fill is None and rows else ())

    # reading ---------------------------------------------------------------------------------------------------------

    def missing_rows(self) -> tuple[Rows, ...]:
        """Rows of this matrix without a value."""
        if self.root is None:
            return self.missing
        stop = self.start + self.rows
        inside = ((max(a, self.start), min(b, stop)) for a, b in self.root.missing)
        return tuple((a - self.start, b - self.start) for a, b in inside if a < b)

    def readable(self, orientation: Orientation) -> NVFP4Operand:
        """The operand of an orientation, with current bytes in it.

        Raises:
            ValueError: it is not there, has unwritten rows, is stale until rebuilt, or its storage has been freed.
        """
        missing = self.missing_rows()
        if missing:
            spans = ", ".join(f"{a}:{b}" for a, b in missing)
            rule = "filled before it is read"
            hint = "They were never written, or belong to an earlier amax. Fill them with copy_ or quantize_."
            raise value_error(_NAME, "the tensor", rule, f"no values in rows {spans} of {self.rows}", hint)
        if orientation == "columnwise":
            if self.state is Columnwise.MANUAL:
                hint = "Call post_all_gather_processing, or rebuild_columnwise, once the rowwise data is whole."
                raise value_error(_NAME, "columnwise", "current", "stale columnwise data", hint)
            if self.state is Columnwise.STALE:
                self.rebuild_columnwise()
        op = self.rowwise if orientation == "rowwise" else self.columnwise
        if op is None:
            raise self._lacks(orientation)
        _check_allocated(op, orientation)
        return op

    def _lacks(self, orientation: Orientation) -> ValueError:
        other = "columnwise" if orientation == "rowwise" else "rowwise"
        if self.format.block == (BLOCK, BLOCK):
            hint = f"Call update_usage({orientation}=True)."
        else:
            hint = f"1x16 blocks cannot be turned: quantize with orientation={orientation!r}."
        return value_error(
            _NAME, orientation, f"there: no {orientation} data", f"a tensor with {other} data only", hint
        )

    # columnwise ------------------------------------------------------------------------------------------------------

    def columnwise_buffer(self) -> NVFP4Operand:
        """The columnwise operand to write into, whatever its bytes; allocated if there is none.

        Raises:
            ValueError: no rowwise data to take the place of; rows that are not a multiple of 16.
        """
        if self.columnwise is None:
            row = self.rowwise
            if row is None:
                raise self._lacks("rowwise")
            if row.rows % BLOCK:
                rule = f"of rows a multiple of {BLOCK} where columnwise data is wanted"
                raise value_error(_NAME, "the tensor", rule, row.rows)
            amax_shape = (row.k,) if row.format.scaling == "row" else ()
            scales = row.qdata.new_empty(row.layout.shape(row.k, row.rows)).view(torch.float8_e4m3fn)
            self.columnwise = make_operand(
                row.qdata.new_empty((row.k, row.rows // 2)), scales, row.amax.new_empty(amax_shape),
                (row.k, row.rows), row.layout, row.format, "columnwise",
            )  # fmt: skip
        return self.columnwise

    def rebuild_columnwise(self) -> None:
        """Transposes the rowwise data into the columnwise buffer, which is then current. numerics, section 13."""
        row = self.readable("rowwise")
        if row.format.block != (BLOCK, BLOCK):
            hint = "Quantize the values again, with quantize_."
            got = "1x16 data, from which columnwise cannot be derived"
            raise value_error(_NAME, "columnwise", "made of block (16, 16) data", got, hint)
        transpose(row, out=self.columnwise_buffer())
        self.state = Columnwise.READY

    def derive_rowwise(self) -> None:
        """Makes rowwise data that is not there from the columnwise data."""
        columnwise = self.readable("columnwise")
        if columnwise.format.block != (BLOCK, BLOCK):
            raise self._lacks("rowwise")
        self.rowwise = transpose(columnwise)

    # writing ---------------------------------------------------------------------------------------------------------

    def copy_from(self, source: Held, non_blocking: bool = False) -> None:
        """The bytes of a matrix of the same shape and format, in the layout that is here.

        Raises:
            ValueError: columnwise data is held here that the source lacks and that cannot be derived; the source
                cannot be read.
        """
        self._check_columnwise_follows(source.state is Columnwise.READY)
        if self.rowwise is not None:
            row = source.readable("rowwise")
            self._before_amax(row.amax)
            copy_operand(self.rowwise, row, non_blocking)
        if self.rowwise is None or (self.columnwise is not None and source.state is Columnwise.READY):
            copy_operand(self.columnwise_buffer(), source.readable("columnwise"), non_blocking)
            self.state = Columnwise.READY
            self._filled(rebuild=False)
        else:
            self._filled(rebuild=True)

    def quantize_from(self, matrix: Tensor, options: dict[str, Any]) -> None:
        """Quantizes a float matrix (rows, k) into the storage that is here, in every orientation.

        A part takes its own amax unless one is given; rows of the whole that were written under another one have no
        value from then on.
        """
        self._check_columnwise_follows(True)
        fmt = self.format
        options = options | {
            "scaling": fmt.scaling,
            "block": fmt.block,
            "e4m3_max": fmt.e4m3_max,
            "four_over_six": fmt.four_over_six,
            "layout": self.layout,
        }
        if self.root is not None and fmt.scaling == "tensor":  # through a copy: the amax is compared before it changes
            self.copy_from(Held(quantize(matrix, **options), None, Columnwise.NONE))
            return
        derived = self.columnwise is None and (not self.wants_columnwise or fmt.block == (BLOCK, BLOCK))
        if self.rowwise is None:
            columnwise = self.any_operand
            quantize(matrix, orientation="columnwise", out=columnwise, rht=columnwise.format.rht, **options)
        elif derived:
            quantize(matrix, out=self.rowwise, **options)
        elif self.columnwise is not None and self.columnwise.format.rht is not None:
            raise not_offered(_NAME, "quantize_", "of a tensor without rht", hex(self.columnwise.format.rht))
        else:
            out = (self.rowwise, self.columnwise_buffer())
            quantize_both(matrix, out=out, **options)
            self.state = Columnwise.READY
        self._filled(rebuild=False)

    def zero(self) -> None:
        """All bytes and the amax become 0."""
        if self.root is not None:
            hint = "The other rows share its amax. Copy zeros into it."
            raise not_offered(_NAME, "zero_", "of a whole tensor", "a view of some rows", hint)
        for op in self.operands():
            op.qdata.zero_()
            op.block_scale.view(torch.uint8).zero_()
            op.amax.zero_()
        if self.columnwise is not None:
            self.state = Columnwise.READY
        self._filled(rebuild=False)

    def _check_columnwise_follows(self, source_has_it: bool) -> None:
        """Columnwise data that is current stays so: it can be copied, or derived from (16, 16) blocks."""
        whole = self.root or self
        follows = self.format.block == (BLOCK, BLOCK) or (self.root is None and source_has_it)
        if whole.columnwise is not None and whole.rowwise is not None and not follows:
            hint = "Columnwise data cannot be derived from 1x16 blocks. Quantize the values with quantize_."
            raise value_error(_NAME, "columnwise", "in the source too", "rowwise data only", hint)

    def _before_amax(self, amax: Tensor) -> None:
        """Before a part is written: rows of the whole that hold bytes of another amax lose their value.

        Waits for the device, once: only partial copies do, which load and initialise.
        """
        whole = self.root
        if whole is None or whole.rowwise is None or self.format.scaling == "row" or amax.is_meta:
            return
        if torch.compiler.is_compiling():
            raise not_offered(_NAME, "copy_ into rows", "outside of torch.compile", "a call inside")
        old = whole.rowwise.amax
        if int(old.view(torch.int32)) == int(amax.view(torch.int32).reshape(())):
            return
        if float(old) == 0 and not whole.missing and not bool(whole.rowwise.block_scale.view(torch.uint8).any()):
            return  # zeros under any amax
        whole.missing = tuple(
            rows for rows in ((0, self.start), (self.start + self.rows, whole.rows)) if rows[0] < rows[1]
        )

    def _filled(self, *, rebuild: bool) -> None:
        """After all rows of this matrix have been written."""
        whole = self.root or self
        stop = self.start + self.rows
        outside = [
            piece for a, b in whole.missing for piece in ((a, min(b, self.start)), (max(a, stop), b))
            if piece[0] < piece[1]
        ]  # fmt: skip
        whole.missing = tuple(outside)
        if (rebuild or self.root is not None) and whole.state is Columnwise.READY and whole.rowwise is not None:
            if whole.missing:
                whole.state = Columnwise.STALE
            else:
                whole.rebuild_columnwise()


def copy_operand(target: NVFP4Operand, source: NVFP4Operand, non_blocking: bool = False) -> None:
    """The bytes of an operand of the same shape and format, in the layout of the target. Addresses stay."""
    if source.layout is not target.layout:
        source = unswizzle_scales(source) if target.layout is ScaleLayout.LINEAR else swizzle_scales(source)
    target.qdata.copy_(source.qdata, non_blocking)
    target.block_scale.view(torch.uint8).copy_(source.block_scale.view(torch.uint8), non_blocking)
    target.amax.copy_(source.amax, non_blocking)


def reshaped(op: NVFP4Operand, shape: tuple[int, ...]) -> NVFP4Operand:
    """The operand under another logical shape of the same rows."""
    if op.shape == shape:
        return op
    return make_operand(op.qdata, op.block_scale, op.amax, shape, op.layout, op.format, op.orientation)


def row_major_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Strides of a contiguous tensor, as torch counts them: a size of 0 counts as 1."""
    return tuple(math.prod(max(size, 1) for size in shape[dim + 1 :]) for dim in range(len(shape)))


def _check_allocated(op: NVFP4Operand, orientation: str) -> None:
    """A native kernel must not see the null pointer of a parameter that FSDP2 has resharded."""
    if torch.compiler.is_compiling() or op.qdata.is_meta or op.qdata.numel() == 0:
        return
    if op.qdata.untyped_storage().nbytes() == 0:
        hint = "Call unshard() first, or read it inside of forward or backward."
        raise value_error(_NAME, orientation, "allocated", "storage that FSDP2 freed when it resharded", hint)
