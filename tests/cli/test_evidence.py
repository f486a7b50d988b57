# SPDX-License-Identifier: Apache-2.0
"""The table of paths and grades, and that the README shows it."""

from __future__ import annotations

from pathlib import Path

import pytest

from blockscale import evidence
from blockscale.evidence import Grade

README = Path(__file__).parents[2] / "README.md"
START, END = "<!-- support table -->", "<!-- end -->"


def test_every_operation_on_every_target_once() -> None:
    places = [(path.operation, path.target) for path in evidence.paths()]
    assert len(set(places)) == len(places) == len(evidence.OPERATIONS) * len(evidence.TARGETS)
    assert set(evidence.TARGETS) == {"cpu", "sm_90a", "sm_100a", "sm_103a", "sm_120a"}


def test_flags_name_what_there_is() -> None:
    assert set(evidence.OPERATIONS) >= evidence.RUN_ON_H200
    assert {operation for operation, _ in evidence.RUN_IN_SIMULATOR} <= set(evidence.OPERATIONS)
    assert {target for _, target in evidence.RUN_IN_SIMULATOR} <= set(evidence.CUDA_TARGETS)


def test_grades_follow_the_flags(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evidence, "RUN_ON_H200", frozenset({"quantize"}))
    monkeypatch.setattr(evidence, "RUN_IN_SIMULATOR", frozenset({("amax", "sm_100a")}))
    for path in evidence.paths():
        expected = {
            ("quantize", "sm_90a"): Grade.H200,
            ("amax", "sm_100a"): Grade.SIMULATOR,
        }.get((path.operation, path.target), Grade.CPU if path.target == "cpu" else Grade.COMPILED)
        assert path.grade is expected, path
    assert evidence.grade_of("quantize", "sm_90a") is Grade.H200
    assert "run on H200" in evidence.support_table()


def test_grades_are_the_four_of_the_design() -> None:
    assert [grade.value for grade in Grade] == [
        "bit-exact on CPU",
        "run on H200",
        "run in the PTX simulator",
        "compiled only",
    ]


def test_a_product_on_cuda_says_what_multiplies() -> None:
    plain = "gemm of BF16 or FP16 activations"
    for path in evidence.paths():
        assert path.kind == ("fallback" if path.operation == plain and path.target != "cpu" else "kernel")
    how = {path.target: path.how for path in evidence.paths() if path.operation == "gemm"}
    assert "decoded to BF16" in how["sm_90a"] and "no FP4 tensor core" in how["sm_90a"]
    for target in ("sm_100a", "sm_103a", "sm_120a"):
        assert "block-scaled FP4 tensor cores" in how[target]
        assert evidence.grade_of("gemm", target) is Grade.COMPILED, "nothing has run there"


def test_readme_shows_the_table() -> None:
    text = README.read_text(encoding="utf-8")
    assert text.count(START) == 1 and text.count(END) == 1
    shown = text.split(START)[1].split(END)[0].strip()
    assert shown == evidence.support_table().strip(), "run `blockscale info --markdown` and put it between the markers"
