# SPDX-License-Identifier: Apache-2.0
"""The comparison helper itself: it must fail where bytes differ, and say where."""

import pytest
import torch

from blockscale.formats import ScaleLayout
from blockscale.operand import NVFP4Operand
from tests.bits import assert_bits_equal, assert_same_operand, from_bits, from_hex


def operand(**fields: object) -> NVFP4Operand:
    values: dict[str, object] = {
        "qdata": from_hex("01 23 45 67 89 AB CD EF", 1, 8),
        "block_scale": torch.zeros(128, 4, dtype=torch.uint8),
        "amax": torch.tensor(1.0),
        "shape": (1, 16),
        "layout": ScaleLayout.SWIZZLED_128X4,
    }
    return NVFP4Operand(**{**values, **fields})  # type: ignore[arg-type]


def test_first_difference_is_named() -> None:
    left = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    right = torch.tensor([[1.0, 2.0], [5.0, 6.0]])
    with pytest.raises(AssertionError, match=r"w: 2 of 4 .* at \(1, 0\): 0x40400000 \(3.0\), expected 0x40A00000"):
        assert_bits_equal(left, right, "w")
    assert_bits_equal(left, left.clone(), "w")
    assert_bits_equal(left.T, left.T.contiguous(), "w")


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (torch.tensor(0.0), torch.tensor(-0.0)),
        (torch.tensor(1.0), torch.tensor([1.0])),
        (torch.tensor(1.0), torch.tensor(1.0, dtype=torch.float64)),
        (from_bits(0x7FC00000), from_bits(0x7FC00001)),
        (from_bits(0x7FC00000), from_bits(0x3F800000)),
        (torch.tensor([1, 2], dtype=torch.uint8), torch.tensor([1, 3], dtype=torch.uint8)),
        (torch.tensor([1.0]).bfloat16(), torch.tensor([1.0078125]).bfloat16()),
    ],
    ids=str,
)
def test_differences_are_seen(left: torch.Tensor, right: torch.Tensor) -> None:
    with pytest.raises(AssertionError):
        assert_bits_equal(left, right, "x")


def test_nan_equal() -> None:
    assert_bits_equal(from_bits(0x7FC00000), from_bits(0xFFC00001), "x", nan_equal=True)
    with pytest.raises(AssertionError):
        assert_bits_equal(from_bits(0x7FC00000), from_bits(0x7F800000), "x", nan_equal=True)


def test_every_field_of_an_operand_counts() -> None:
    assert_same_operand(operand(), operand())
    padding = torch.zeros(128, 4, dtype=torch.uint8)
    padding[127, 3] = 1
    others = (
        {"qdata": from_hex("01 23 45 67 89 AB CD EE", 1, 8)},
        {"block_scale": padding},
        {"amax": torch.tensor(-1.0)},
        {"shape": (1, 1, 16)},
        {"orientation": "columnwise"},
        {"layout": ScaleLayout.LINEAR, "block_scale": torch.zeros(1, 1, dtype=torch.uint8)},
    )
    for fields in others:
        with pytest.raises(AssertionError):
            assert_same_operand(operand(**fields), operand())
