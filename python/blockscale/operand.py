# SPDX-License-Identifier: Apache-2.0
"""`NVFP4Operand`: one orientation of an NVFP4 matrix. What the functional API takes and returns.

Not a `torch.Tensor` on purpose: a torch op applied to it is a TypeError, not a silent dequantize.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from .errors import type_error, value_error
from .formats import BLOCK, NVFP4, Orientation, ScaleLayout

_STATE_VERSION = 1
_DEFAULT_FORMAT = NVFP4()


@dataclass(frozen=True, eq=False)
class NVFP4Operand:
    """A matrix of E2M1 codes with its scales: ``value = code * block_scale * amax / format.second_level_range``.

    The matrix is ``(..., K)`` flattened to (rows, K); its contraction axis is K. An operand made with
    orientation="columnwise" is the rowwise operand of the transpose of its source, and so a plain (rows, K) operand.

    Attributes:
        qdata: uint8 (rows, K/2), contiguous; the even column in the low nibble.
        block_scale: float8_e4m3fn, of shape ``layout.shape(rows, K)``, contiguous. uint8 is taken as the same bytes.
        amax: float32, shape () for scaling="tensor", (rows,) for scaling="row".
        shape: logical shape ``(..., K)``.
        layout: where each block scale stands.
        format: what the bytes mean.
        orientation: which axis of the source became K: its last one ("rowwise") or its first one ("columnwise").

    Raises:
        TypeError: a field of the wrong type or dtype.
        ValueError: a shape, stride or device that does not fit; on the CPU also a block-scale byte above 0x7F
            (negative scales do not exist).
    """

    qdata: torch.Tensor
    block_scale: torch.Tensor
    amax: torch.Tensor
    shape: tuple[int, ...]
    layout: ScaleLayout = ScaleLayout.LINEAR
    format: NVFP4 = _DEFAULT_FORMAT
    orientation: Orientation = "rowwise"

    def __post_init__(self) -> None:
        _check_kinds(self)
        if self.block_scale.dtype is torch.uint8:
            object.__setattr__(self, "block_scale", self.block_scale.view(torch.float8_e4m3fn))
        object.__setattr__(self, "shape", tuple(int(size) for size in self.shape))
        _check_fit(self)
        if self.block_scale.device.type == "cpu":
            check_scale_bytes("NVFP4Operand", self.block_scale)

    @property
    def rows(self) -> int:
        """Rows of the flattened matrix."""
        return self.qdata.shape[0]

    @property
    def k(self) -> int:
        """Logical elements in a row; twice the packed bytes."""
        return self.shape[-1]

    @property
    def device(self) -> torch.device:
        """The device that holds the bytes."""
        return self.qdata.device

    @property
    def nbytes(self) -> int:
        """Bytes of codes, block scales (with padding) and amax."""
        return self.qdata.nbytes + self.block_scale.nbytes + self.amax.nbytes

    def __repr__(self) -> str:
        return (
            f"NVFP4Operand(shape={self.shape}, {self.format}, layout={self.layout.name}, "
            f"orientation={self.orientation!r}, device={str(self.device)!r})"
        )

    def to(self, device: torch.device | str) -> NVFP4Operand:
        """The same bytes on another device."""
        return self._with_tensors(self.qdata.to(device), self.block_scale.to(device), self.amax.to(device))

    def clone(self) -> NVFP4Operand:
        """A copy with storage of its own."""
        return self._with_tensors(self.qdata.clone(), self.block_scale.clone(), self.amax.clone())

    def __getitem__(self, rows: slice) -> NVFP4Operand:
        """Rows ``start:stop`` of the flattened matrix, sharing storage.

        Raises:
            TypeError: anything but a slice.
            ValueError: a step other than 1; or rows that do not start at, and end at, a multiple of 128
                (SWIZZLED_128X4) or of 16 (block (16, 16)); the end may also be the last row.
        """
        if not isinstance(rows, slice):
            raise type_error("NVFP4Operand", "index", "a slice of rows", type(rows).__name__)
        start, stop, step = rows.indices(self.rows)
        if step != 1:
            raise value_error("NVFP4Operand", "index", "a slice with step 1", step)
        stop = max(start, stop)
        unit = 128 if self.layout is ScaleLayout.SWIZZLED_128X4 else self.format.block[0]
        if start % unit or (stop % unit and stop != self.rows):
            hint = "Use unswizzle_scales first." if unit == 128 else "Tiles are not cut."
            raise value_error("NVFP4Operand", "rows", f"bounded by multiples of {unit}", f"{start}:{stop}", hint)
        scale_stop = -(-stop // unit) * unit if unit == 128 else stop
        amax = self.amax[start:stop] if self.format.scaling == "row" else self.amax
        return self._with_tensors(
            self.qdata[start:stop], self.block_scale[start:scale_stop], amax, (stop - start, self.k)
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, (_STATE_VERSION, operand_state(self))

    def _with_tensors(
        self,
        qdata: torch.Tensor,
        block_scale: torch.Tensor,
        amax: torch.Tensor,
        shape: tuple[int, ...] | None = None,
    ) -> NVFP4Operand:
        fields = (shape or self.shape, self.layout, self.format, self.orientation)
        return make_operand(qdata, block_scale, amax, *fields)


def make_operand(
    qdata: torch.Tensor,
    block_scale: torch.Tensor,
    amax: torch.Tensor,
    shape: tuple[int, ...],
    layout: ScaleLayout,
    format: NVFP4,
    orientation: Orientation,
) -> NVFP4Operand:
    """An operand from fields that this library has just made; skips the checks, which cost more than a small cast."""
    op: NVFP4Operand = object.__new__(NVFP4Operand)
    fields = op.__dict__
    fields["qdata"] = qdata
    fields["block_scale"] = block_scale
    fields["amax"] = amax
    fields["shape"] = shape
    fields["layout"] = layout
    fields["format"] = format
    fields["orientation"] = orientation
    return op


def operand_state(op: NVFP4Operand) -> dict[str, Any]:
    """The fields as tensors and plain values, the form that is serialised."""
    return {
        "qdata": op.qdata,
        "block_scale": op.block_scale.view(torch.uint8),
        "amax": op.amax,
        "shape": list(op.shape),
        "layout": op.layout.value,
        "orientation": op.orientation,
        "scaling": op.format.scaling,
        "block": list(op.format.block),
        "e4m3_max": op.format.e4m3_max,
        "four_over_six": op.format.four_over_six,
        "rht": op.format.rht,
    }


def _restore(version: int, state: dict[str, Any]) -> NVFP4Operand:
    if version != _STATE_VERSION:
        raise value_error("NVFP4Operand", "state version", str(_STATE_VERSION), version, "Upgrade blockscale.")
    return NVFP4Operand(
        state["qdata"],
        state["block_scale"],
        state["amax"],
        tuple(state["shape"]),
        ScaleLayout(state["layout"]),
        NVFP4(
            scaling=state["scaling"],
            block=tuple(state["block"]),
            e4m3_max=state["e4m3_max"],
            four_over_six=state["four_over_six"],
            rht=state["rht"],
        ),
        state["orientation"],
    )


torch.serialization.add_safe_globals([_restore])


def check_scale_bytes(op_name: str, block_scale: torch.Tensor) -> None:
    """Refuse block-scale bytes 0x80..0xFF: scales are magnitudes, so bit 7 is never set.

    Raises:
        ValueError: with the first offending byte and its offset. Reads the tensor, so on CUDA it waits for the device.
    """
    if block_scale.device.type == "meta" or block_scale.numel() == 0:
        return
    negative = block_scale.view(torch.int8).flatten() < 0
    if bool(negative.any()):
        first = int(negative.to(torch.uint8).argmax())
        byte = int(block_scale.view(torch.uint8).flatten()[first])
        raise value_error(op_name, "block_scale", "free of bytes above 0x7F", f"0x{byte:02X} at offset {first}")


def _check_kinds(op: NVFP4Operand) -> None:
    name = "NVFP4Operand"
    for field in ("qdata", "block_scale", "amax"):
        if not isinstance(getattr(op, field), torch.Tensor):
            raise type_error(name, field, "a torch.Tensor", type(getattr(op, field)).__name__)
    if op.qdata.dtype is not torch.uint8:
        raise type_error(name, "qdata", "uint8 (two codes a byte)", op.qdata.dtype)
    if op.block_scale.dtype not in (torch.float8_e4m3fn, torch.uint8):
        raise type_error(name, "block_scale", "float8_e4m3fn, or its bytes as uint8", op.block_scale.dtype)
    if op.amax.dtype is not torch.float32:
        raise type_error(name, "amax", "float32", op.amax.dtype)
    if not isinstance(op.layout, ScaleLayout):
        raise type_error(name, "layout", "a ScaleLayout", type(op.layout).__name__)
    if not isinstance(op.format, NVFP4):
        raise type_error(name, "format", "an NVFP4", type(op.format).__name__)
    if op.orientation not in ("rowwise", "columnwise"):
        raise value_error(name, "orientation", '"rowwise" or "columnwise"', repr(op.orientation))


def _check_fit(op: NVFP4Operand) -> None:
    name = "NVFP4Operand"
    if not op.shape:
        raise value_error(name, "shape", "(..., K)", "()")
    k = op.shape[-1]
    if k % BLOCK:
        raise value_error(name, "shape", f"(..., K) with K a multiple of {BLOCK}", op.shape)
    rows = 1
    for size in op.shape[:-1]:
        rows *= size
    for field, want in (
        ("qdata", (rows, k // 2)),
        ("block_scale", op.layout.shape(rows, k)),
        ("amax", (rows,) if op.format.scaling == "row" else ()),
    ):
        tensor: torch.Tensor = getattr(op, field)
        if tuple(tensor.shape) != want:
            rule = f"of shape {want} for logical shape {op.shape}, {op.layout.name}, scaling={op.format.scaling!r}"
            raise value_error(name, field, rule, tuple(tensor.shape))
        if not tensor.is_contiguous():
            raise value_error(name, field, "contiguous", f"strides {tensor.stride()}", "Call .contiguous().")
        if tensor.device != op.qdata.device:
            raise value_error(name, field, f"on {op.qdata.device}, where qdata is", tensor.device)
