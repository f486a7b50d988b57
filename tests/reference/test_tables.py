# SPDX-License-Identifier: Apache-2.0
"""The reference against every table of tests/cases: golden files, edge cases, vectors, shapes and refusals."""

import pytest

from blockscale import reference
from tests.cases import (
    EDGE_CASES,
    EPILOGUE_CASES,
    FOUR_OVER_SIX_CASES,
    REFUSAL_CASES,
    SHAPE_CASES,
    VECTOR_CASES,
    CastCase,
    GemmCase,
    RefusalCase,
    ShapeCase,
)
from tests.checks import check_cast, check_gemm, check_golden, check_refusal, check_shape
from tests.golden import MODES, GoldenCase, golden_cases


@pytest.mark.parametrize("case", golden_cases(), ids=str)
def test_golden(case: GoldenCase) -> None:
    check_golden(reference, case)


def test_golden_files_hold_every_kind_and_dtype() -> None:
    for mode in MODES:
        keys = {tuple(case.key.split(".")[:2]) for case in golden_cases(mode)}
        assert len({kind for kind, _ in keys}) == 11
        assert {dtype for _, dtype in keys} == {"bfloat16", "float16", "float32"}
        assert all(case.data_t is not None for case in golden_cases(mode) if case.x.shape[0] % 16 == 0)


@pytest.mark.parametrize("case", EDGE_CASES, ids=str)
def test_edge_cases(case: CastCase) -> None:
    check_cast(reference, case)


@pytest.mark.parametrize("case", VECTOR_CASES + FOUR_OVER_SIX_CASES, ids=str)
def test_vectors(case: CastCase) -> None:
    check_cast(reference, case)


@pytest.mark.parametrize("case", EPILOGUE_CASES, ids=str)
def test_epilogue_cases(case: GemmCase) -> None:
    check_gemm(reference, case)


@pytest.mark.parametrize("case", SHAPE_CASES, ids=str)
def test_shapes(case: ShapeCase) -> None:
    check_shape(reference, case)


@pytest.mark.parametrize("case", REFUSAL_CASES, ids=str)
def test_refusals(case: RefusalCase) -> None:
    check_refusal(reference, case)
