# SPDX-License-Identifier: Apache-2.0
"""`FusedScales`: what `fused_scale` makes from the reduced amaxes of a weight."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class FusedScales(NamedTuple):
    """The scales of a weight (M, K) with (16, 16) blocks; T = ceil(M/16).

    Attributes:
        tile_scales: float8_e4m3fn (T, K/16), one a tile: what `partial_cast` reads.
        block_scale: float8_e4m3fn, those of the operand: each row of tiles repeated 16 times, in a scale layout, zero
            in every byte outside (M, K/16).
        amax: float32 (), the stored second level |G|; any NaN is 7FC00000.
    """

    tile_scales: Tensor
    block_scale: Tensor
    amax: Tensor
