# SPDX-License-Identifier: Apache-2.0
"""Which path serves each operation on each target, and how far it has been proven. The one table of both.

`blockscale info` and the README's support table are made from here (`blockscale info --markdown`). A grade says what
was done, not what is expected: it is raised by adding a name to `RUN_ON_H200` or `RUN_IN_SIMULATOR` after the tests of
that operation have passed there, and never otherwise.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Literal

TARGETS = {
    "cpu": "CPU",
    "sm_90a": "sm_90a (H100, H200)",
    "sm_100a": "sm_100a (B200)",
    "sm_103a": "sm_103a (B300)",
    "sm_120a": "sm_120a (RTX 50)",
}
"""Target -> heading of its column."""

CUDA_TARGETS = tuple(target for target in TARGETS if target != "cpu")


class Grade(enum.Enum):
    """How far a path has been proven; each says all that was done."""

    CPU = "bit-exact on CPU"
    H200 = "run on H200"
    SIMULATOR = "run in the PTX simulator"
    COMPILED = "compiled only"


RUN_ON_H200: frozenset[str] = frozenset(
    {
        "amax",
        "quantize",
        "quantize_both",
        "dequantize",
        "swizzle_scales, unswizzle_scales",
        "gemm of BF16 or FP16 activations",
    }
)
"""Operations whose tests have passed on an H200 (perf/results/gpu-suite-h200.json): they raise the grade of sm_90a."""

RUN_IN_SIMULATOR: frozenset[tuple[str, str]] = frozenset()
"""(operation, target) whose compiled PTX has passed its tests in the simulator."""

BF16_ROUTE = (
    "operands are decoded to BF16, which is exact, multiplied by torch.mm with FP32 output, and finished by one fused "
    "epilogue kernel; no FP4 tensor core is used"
)
"""What a GEMM on CUDA does without a fused kernel: for BF16 and FP16 activations, or in a build that has none."""

FUSED = {
    "sm_90a": "operands are decoded to BF16, which is exact; one kernel does the rest; no FP4 tensor core is used",
    "sm_100a": "one kernel: block-scaled FP4 tensor cores, the epilogue fused",
    "sm_103a": "one kernel: block-scaled FP4 tensor cores, the epilogue fused",
    "sm_120a": "one kernel: block-scaled FP4 tensor cores, the epilogue fused",
}
"""What a GEMM of two operands does on each CUDA target."""

_PLAIN = "gemm of BF16 or FP16 activations"

EXACT_SUM = "exact sum of products, rounded once, then one epilogue pass"
"""What a GEMM on the CPU does."""


@dataclass(frozen=True)
class Path:
    """How an operation runs on a target.

    Attributes:
        operation: a key of `OPERATIONS`.
        target: a key of `TARGETS`.
        kind: "kernel", ours from end to end; or "fallback", in which a library does the product.
        how: the path in words.
        grade: how far it is proven.
    """

    operation: str
    target: str
    kind: Literal["kernel", "fallback"]
    how: str
    grade: Grade


OPERATIONS = {
    "amax": False,
    "quantize": False,
    "quantize_both": False,
    "dequantize": False,
    "transpose": False,
    "swizzle_scales, unswizzle_scales": False,
    "partial_amax, fused_scale, partial_cast": False,
    "multi_tensor_*": False,
    "cast_master_weights_to_nvfp4, post_all_gather_processing": False,
    "optim.FusedAdam": False,
    "gemm": True,
    "gemm with NVFP4 output": True,
    "gemm of BF16 or FP16 activations": True,
}
"""Operation -> whether it is a product."""

_HALF_PRODUCT = {
    "cpu": "FP64 sum of products, rounded once, then one epilogue pass",
    "cuda": "the weight is decoded to the activation's dtype; then torch.mm with FP32 output and one epilogue kernel",
}


def _how(operation: str, target: str) -> str:
    if not OPERATIONS[operation]:
        return "C++ with threads and SIMD" if target == "cpu" else "one CUDA source for every target"
    if operation == _PLAIN:
        return _HALF_PRODUCT["cpu" if target == "cpu" else "cuda"]
    return EXACT_SUM if target == "cpu" else FUSED[target]


def _grade(operation: str, target: str) -> Grade:
    if target == "cpu":
        return Grade.CPU
    if target == "sm_90a" and operation in RUN_ON_H200:
        return Grade.H200
    return Grade.SIMULATOR if (operation, target) in RUN_IN_SIMULATOR else Grade.COMPILED


def paths() -> tuple[Path, ...]:
    """Every operation on every target, in the order of the tables."""
    return tuple(
        Path(
            operation,
            target,
            "fallback" if operation == _PLAIN and target != "cpu" else "kernel",
            _how(operation, target),
            _grade(operation, target),
        )
        for operation in OPERATIONS
        for target in TARGETS
    )


def grade_of(operation: str, target: str) -> Grade:
    """The grade of one path.

    Raises:
        KeyError: no such operation or target.
    """
    return {(path.operation, path.target): path.grade for path in paths()}[operation, target]


def support_table() -> str:
    """The README's support table, in Markdown."""
    rows = [["operation", *TARGETS.values()], ["---"] * (1 + len(TARGETS))]
    by_place = {(path.operation, path.target): path for path in paths()}
    for operation in OPERATIONS:
        cells = [by_place[operation, target] for target in TARGETS]
        rows.append([operation, *(f"{_route(path)}*{path.grade.value}*" for path in cells)])
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join(lines) + f"\n\nBF16 route: {BF16_ROUTE}.\n"


def _route(path: Path) -> str:
    return "BF16 route, " if path.kind == "fallback" else ""
