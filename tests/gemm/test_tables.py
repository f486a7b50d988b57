# SPDX-License-Identifier: Apache-2.0
"""The GEMMs of tests/cases: golden vectors of the epilogue and edge cases, in both scale layouts and mixed."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import blockscale as bs
from blockscale import reference as ref
from blockscale.operand import NVFP4Operand
from tests.bits import assert_bits_equal
from tests.cases import EPILOGUE_CASES, GemmCase
from tests.checks import check_gemm
from tests.gemm.operands import LINEAR, SWIZZLED, on

EVERY_CASE = pytest.mark.parametrize("case", EPILOGUE_CASES, ids=str)


@EVERY_CASE
def test_case(case: GemmCase, device: torch.device) -> None:
    check_gemm(bs, case, device)


def in_layout(op: Any, layout: Any) -> Any:
    return ref.swizzle_scales(op) if isinstance(op, NVFP4Operand) and layout is SWIZZLED else op


@pytest.mark.parametrize(("left", "right"), [(LINEAR, SWIZZLED), (SWIZZLED, LINEAR), (SWIZZLED, SWIZZLED)])
@EVERY_CASE
def test_case_in_other_layouts(case: GemmCase, left: Any, right: Any, device: torch.device) -> None:
    a, b = in_layout(case.a(), left), in_layout(case.b(), right)
    expected = case.d()
    d = bs.gemm(on(device, a), on(device, b), out_dtype=expected.dtype, **on(device, case.keywords()))
    assert_bits_equal(d, expected, case.name, nan_equal=True)


@EVERY_CASE
def test_case_into_out(case: GemmCase, device: torch.device) -> None:
    """The same into given memory that held NaN, without out_dtype: out fixes the dtype."""
    expected = case.d()
    out = torch.full_like(expected, float("nan"), device=device)
    d = bs.gemm(on(device, case.a()), on(device, case.b()), out=out, **on(device, case.keywords()))
    assert d is out
    assert_bits_equal(out, expected, case.name, nan_equal=True)
