# SPDX-License-Identifier: Apache-2.0
"""`nn.Recipe`: frozen, checked, and what it says of both formats."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

import blockscale as bs


def test_defaults_and_formats() -> None:
    recipe = bs.Recipe()
    assert recipe.weight_format == bs.NVFP4(block=(16, 16))
    assert recipe.activation_format == bs.NVFP4(scaling="row")
    other = bs.Recipe(row_scaled_activation=False, weight_block=(1, 16), e4m3_max=256)
    assert other.weight_format == bs.NVFP4(e4m3_max=256)
    assert other.activation_format == bs.NVFP4(e4m3_max=256)
    assert str(recipe) == "16x16 weight blocks, row-scaled 1x16 activations, E4M3 up to 448"


def test_frozen_and_keyword_only() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        bs.Recipe().e4m3_max = 256  # type: ignore[misc]
    with pytest.raises(TypeError):
        bs.Recipe(True)  # type: ignore[misc]
    assert bs.Recipe() == bs.Recipe() and hash(bs.Recipe()) == hash(bs.Recipe())


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"row_scaled_activation": 1}, TypeError, "row_scaled_activation must be a bool; got int"),
        ({"row_scaled_activation": "row"}, TypeError, "row_scaled_activation must be a bool"),
        ({"weight_block": [16, 16]}, TypeError, "weight_block must be a tuple; got list"),
        ({"weight_block": (16, 1)}, ValueError, r"weight_block must be \(1, 16\) or \(16, 16\)"),
        ({"weight_block": (128, 128)}, ValueError, "weight_block must be"),
        ({"e4m3_max": 448.0}, TypeError, "e4m3_max must be an int"),
        ({"e4m3_max": True}, TypeError, "e4m3_max must be an int"),
        ({"e4m3_max": 240}, ValueError, "e4m3_max must be 448 or 256; got 240"),
        ({"skip": "lm_head"}, TypeError, r"skip must be a tuple of names.*\('lm_head',\)"),
        ({"skip": ["lm_head"]}, TypeError, "skip must be a tuple of names"),
        ({"skip": ("lm_head", 3)}, TypeError, "skip must be a tuple of names"),
    ],
)
def test_what_is_refused(options: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=f"^Recipe: {message}"):
        bs.Recipe(**options)
