# SPDX-License-Identifier: Apache-2.0
"""The NVFP4 format as data: `NVFP4` says how bytes are to be read, `ScaleLayout` where each block scale stands.

Start here, then read `operand.py`. Both objects are frozen: everything that changes the meaning of bytes travels in
them and is checked once, when they are made.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Literal

from .errors import type_error, value_error

Scaling = Literal["tensor", "row"]
Orientation = Literal["rowwise", "columnwise"]

BLOCK = 16
"""Elements that share one block scale along K."""

E2M1_MAX = 6
"""The largest E2M1 magnitude."""

_ATOM_ROWS = 128
_ATOM_COLS = 4


class ScaleLayout(enum.Enum):
    """Where the block scale of (row r, block b) stands.

    LINEAR: at ``r * (K/16) + b`` of a (rows, K/16) tensor. The layout at rest: checkpoints, sharding, the CPU.

    SWIZZLED_128X4: in 512-byte atoms of 128 rows by 4 blocks, the layout that block-scaled tensor cores read. The
    tensor is (R, C) with R = rows rounded up to 128 and C = K/16 rounded up to 4; the offset is
    ``((r//128)*(C//4) + b//4)*512 + (r%32)*16 + ((r%128)//32)*4 + b%4``. Bytes outside (rows, K/16) are zero.
    """

    LINEAR = "linear"
    SWIZZLED_128X4 = "swizzled_128x4"

    def shape(self, rows: int, k: int) -> tuple[int, int]:
        """Shape of the block-scale tensor of a (rows, k) operand in this layout."""
        blocks = k // BLOCK
        if self is ScaleLayout.LINEAR:
            return rows, blocks
        return -(-rows // _ATOM_ROWS) * _ATOM_ROWS, -(-blocks // _ATOM_COLS) * _ATOM_COLS


@dataclass(frozen=True, kw_only=True)
class NVFP4:
    """What the bytes of an NVFP4 operand mean: ``value = code * block_scale * amax / (6 * e4m3_max)``.

    Attributes:
        scaling: "tensor", one amax; or "row", one amax for each row of the operand (per token).
        block: (1, 16), a scale for 16 elements along K; or (16, 16), one for a tile, so that the operand and its
            transpose share the same bits. (16, 16) needs scaling="tensor".
        e4m3_max: 448 or 256; the largest block scale that the second level aims at. 256 leaves room for four_over_six.
        four_over_six: None, "mae" or "mse": choose per block between a grid that ends at 6 and one that ends at 4 by
            the mean absolute or squared error.
        rht: None, or the 16-bit sign mask (0..65535) of a random Hadamard transform that rotated each run of 16
            elements before they were quantized. (1, 16) blocks only.

    Raises:
        TypeError: an attribute of the wrong type.
        ValueError: a value or a combination that the format does not have.
    """

    scaling: Scaling = "tensor"
    block: tuple[int, int] = (1, BLOCK)
    e4m3_max: int = 448
    four_over_six: Literal["mae", "mse"] | None = None
    rht: int | None = None

    def __post_init__(self) -> None:
        if self.scaling not in ("tensor", "row"):
            raise value_error("NVFP4", "scaling", '"tensor" or "row"', repr(self.scaling))
        if self.block not in ((1, BLOCK), (BLOCK, BLOCK)):
            raise value_error("NVFP4", "block", "(1, 16) or (16, 16)", repr(self.block))
        if not isinstance(self.e4m3_max, int):
            raise type_error("NVFP4", "e4m3_max", "an int, 448 or 256", type(self.e4m3_max).__name__)
        if isinstance(self.e4m3_max, bool) or self.e4m3_max not in (448, 256):
            raise value_error("NVFP4", "e4m3_max", "448 or 256", repr(self.e4m3_max))
        if self.four_over_six not in (None, "mae", "mse"):
            raise value_error("NVFP4", "four_over_six", 'None, "mae" or "mse"', repr(self.four_over_six))
        if self.rht is not None:
            if isinstance(self.rht, bool) or not isinstance(self.rht, int):
                raise type_error("NVFP4", "rht", "None or an int", type(self.rht).__name__)
            if not 0 <= self.rht < 1 << 16:
                raise value_error("NVFP4", "rht", "a 16-bit sign mask", hex(self.rht))
            if self.four_over_six is not None:
                raise value_error("NVFP4", "rht", "None with four_over_six", hex(self.rht))
        if self.block == (BLOCK, BLOCK):
            if self.scaling == "row":
                raise value_error(
                    "NVFP4", "scaling", '"tensor" with block=(16, 16)', '"row"', "A tile spans rows; use block=(1, 16)."
                )
            if self.rht is not None:
                raise value_error("NVFP4", "rht", "None with block=(16, 16)", hex(self.rht))

    @property
    def second_level_range(self) -> int:
        """N = 6 * e4m3_max: the largest code * block_scale, so that ``amax / N`` is the second-level decode scale."""
        return E2M1_MAX * self.e4m3_max
