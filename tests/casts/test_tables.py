# SPDX-License-Identifier: Apache-2.0
"""Casts whose every byte is known: edge cases, golden vectors, shapes, and the bytes of another implementation."""

from __future__ import annotations

import pytest
import torch

import blockscale as bs
from tests.bits import assert_bits_equal
from tests.cases import EDGE_CASES, FOUR_OVER_SIX_CASES, SHAPE_CASES, VECTOR_CASES, CastCase, ShapeCase
from tests.checks import check_cast, check_golden, check_shape
from tests.golden import GoldenCase, golden_cases

_WRITTEN = [case for case in (*EDGE_CASES, *VECTOR_CASES) if not case.format.get("four_over_six")]
_NOT_WRITTEN = [case for case in (*EDGE_CASES, *FOUR_OVER_SIX_CASES) if case.format.get("four_over_six")]


@pytest.mark.parametrize("case", _WRITTEN, ids=str)
def test_known_bytes(case: CastCase, device: torch.device) -> None:
    check_cast(bs, case, device)


@pytest.mark.parametrize("case", _NOT_WRITTEN, ids=str)
def test_four_over_six_is_refused_while_no_backend_writes_it(case: CastCase, device: torch.device) -> None:
    with pytest.raises(NotImplementedError, match=r"quantize: four_over_six must be None on \w+.* got '(mae|mse)'"):
        bs.quantize(case.x().to(device), **case.format)


@pytest.mark.parametrize("case", SHAPE_CASES, ids=str)
def test_shapes(case: ShapeCase, device: torch.device) -> None:
    check_shape(bs, case, device)


@pytest.mark.parametrize("case", golden_cases("1d", "2d", "row"), ids=str)
def test_golden(case: GoldenCase, device: torch.device) -> None:
    check_golden(bs, case, device)


@pytest.mark.parametrize("case", golden_cases("1d", "2d", "row"), ids=str)
def test_golden_in_one_read(case: GoldenCase, device: torch.device) -> None:
    wanted = [case.expected(orientation) for orientation in ("rowwise", "columnwise")]
    if wanted[1] is None:
        with pytest.raises(ValueError, match=r"quantize_both: x must be of M .* a multiple of 16"):
            bs.quantize_both(case.x.to(device), **case.format)
        return
    for op, expected in zip(bs.quantize_both(case.x.to(device), **case.format), wanted, strict=True):
        assert expected is not None
        for got, want in zip((op.qdata, op.block_scale.view(torch.uint8), op.amax), expected, strict=True):
            assert_bits_equal(got, want, f"{case} {op.orientation}")
