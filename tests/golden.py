# SPDX-License-Identifier: Apache-2.0
"""The golden casts in data/golden: inputs and the bytes that another implementation of the recipe made of them."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

FOLDER = Path(__file__).parent / "data" / "golden"

MODES: dict[str, dict[str, Any]] = {
    "1d": {},
    "2d": {"block": (16, 16)},
    "row": {"scaling": "row"},
    "1d_4o6_mae448": {"four_over_six": "mae"},
    "1d_4o6_mse256": {"four_over_six": "mse", "e4m3_max": 256},
    "2d_4o6_mae256": {"block": (16, 16), "four_over_six": "mae", "e4m3_max": 256},
    "row_4o6_mse448": {"scaling": "row", "four_over_six": "mse"},
}
"""File name to format keywords of `quantize`."""


@dataclass(frozen=True, eq=False)
class GoldenCase:
    """One input with its rowwise and, where M % 16 == 0, its columnwise bytes.

    Attributes:
        mode: file name; a key of `MODES`.
        key: ``<kind>.<dtype>.<M>x<K>``.
        format: keywords of `quantize` and of `NVFP4`.
        x: (M, K) float32, bfloat16 or float16; without NaN, inf and -0.0.
        data: uint8 (M, K/2). scale: uint8 (M, K/16), LINEAR. amax: float32 () or (M,).
        data_t, scale_t, amax_t: of the columnwise operand, or None.
    """

    mode: str
    key: str
    format: dict[str, Any]
    x: torch.Tensor
    data: torch.Tensor
    scale: torch.Tensor
    amax: torch.Tensor
    data_t: torch.Tensor | None = None
    scale_t: torch.Tensor | None = None
    amax_t: torch.Tensor | None = None

    def __str__(self) -> str:
        return f"{self.mode}/{self.key}"

    def expected(self, orientation: str) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor] | None:
        """(data, scale, amax) of "rowwise" or "columnwise"; None if the file has none."""
        if orientation == "rowwise":
            return self.data, self.scale, self.amax
        if self.data_t is None or self.scale_t is None or self.amax_t is None:
            return None
        return self.data_t, self.scale_t, self.amax_t


@functools.cache
def golden_cases(*modes: str) -> tuple[GoldenCase, ...]:
    """All cases of the given modes, of all modes without arguments; for ``pytest.mark.parametrize(..., ids=str)``."""
    return tuple(case for mode in modes or MODES for case in _load(mode))


def _load(mode: str) -> Iterator[GoldenCase]:
    tensors = load_file(FOLDER / f"{mode}.safetensors")
    for key in sorted({name.partition("/")[0] for name in tensors}):
        parts = {name.partition("/")[2]: tensor for name, tensor in tensors.items() if name.startswith(f"{key}/")}
        for part in ("amax", "amax_t"):
            if part in parts and MODES[mode].get("scaling") != "row":
                parts[part] = parts[part].view(())  # stored as (1,)
        yield GoldenCase(mode=mode, key=key, format=MODES[mode], **parts)
