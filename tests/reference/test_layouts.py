# SPDX-License-Identifier: Apache-2.0
"""SWIZZLED_128X4 order of the reference: check values, a second derivation as a permutation, exact inverses."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from blockscale import reference as ref
from blockscale.formats import ScaleLayout
from blockscale.operand import NVFP4Operand
from blockscale.reference.layouts import swizzled_offsets
from tests.bits import assert_bits_equal, assert_same_operand


def operand(rows: int, k: int) -> NVFP4Operand:
    """Random scale bytes 0x01..0x7E, so that a zero is padding."""
    gen = torch.Generator().manual_seed(rows * 4096 + k)
    scale = torch.randint(1, 0x7F, (rows, k // 16), generator=gen, dtype=torch.uint8)
    return NVFP4Operand(torch.zeros(rows, k // 2, dtype=torch.uint8), scale, torch.tensor(1.0), (rows, k))


@pytest.mark.parametrize(
    ("r", "b", "offset"),
    [(1, 0, 16), (32, 0, 4), (33, 0, 20), (0, 3, 3), (0, 4, 512), (127, 3, 511), (128, 0, 1024), (255, 7, 2047)],
)
def test_check_values(r: int, b: int, offset: int) -> None:
    assert int(swizzled_offsets(256, 128)[r, b]) == offset


def test_large_operand() -> None:
    offsets = swizzled_offsets(5, 11008)
    assert int(offsets.max()) == 87619
    assert ref.swizzle_scales(operand(5, 11008)).block_scale.numel() == 88064


@settings(max_examples=60, deadline=None, derandomize=True)
@given(rows=st.integers(0, 300), blocks=st.integers(0, 13))
def test_swizzle_is_a_permutation_with_zero_padding(rows: int, blocks: int) -> None:
    op = operand(rows, 16 * blocks)
    swizzled = ref.swizzle_scales(op)
    height, width = ScaleLayout.SWIZZLED_128X4.shape(rows, 16 * blocks)
    padded = torch.zeros(height, width, dtype=torch.uint8)
    padded[:rows, :blocks] = op.block_scale.view(torch.uint8)
    # (row atom, row / 32, row % 32, block atom, block % 4) to (row atom, block atom, row % 32, row / 32, block % 4)
    atoms = padded.view(height // 128, 4, 32, width // 4, 4).permute(0, 3, 2, 1, 4)
    assert_bits_equal(swizzled.block_scale.view(torch.uint8), atoms.reshape(height, width), "swizzled")
    assert_same_operand(ref.unswizzle_scales(swizzled), op)


def test_nothing_to_do_returns_the_operand_itself() -> None:
    op = operand(16, 64)
    swizzled = ref.swizzle_scales(op)
    assert ref.unswizzle_scales(op) is op
    assert ref.swizzle_scales(swizzled) is swizzled
    assert swizzled.layout is ScaleLayout.SWIZZLED_128X4


def test_padding_is_not_read() -> None:
    op = ref.swizzle_scales(operand(5, 48))
    dirty = op.block_scale.view(torch.uint8).clone()
    dirty[dirty == 0] = 0x7F
    assert (dirty == 0x7F).sum() > 400
    poisoned = NVFP4Operand(op.qdata, dirty, op.amax, op.shape, op.layout)
    assert_same_operand(ref.unswizzle_scales(poisoned), operand(5, 48))
