# SPDX-License-Identifier: Apache-2.0
"""The table of kernels read a second time, from its source text, and questions to the heuristic."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from blockscale._native import _C

DEFINITIONS = Path(__file__).parents[2] / "kernels" / "contract" / "gemm_kernels.def"
KERNELS = _C.gemm_kernels()
BY_NAME = {kernel.name: kernel for kernel in KERNELS}

FLOAT16, FLOAT32, QUANTIZED = 0, 1, 2
OUTPUTS = {"b16": FLOAT16, "f32": FLOAT32, "nvfp4": QUANTIZED}
ARCHS = (90, 100, 103, 120)

ALL = sum(1 << kernel.index for kernel in KERNELS)
CORE = sum(1 << kernel.index for kernel in KERNELS if kernel.core)

_LINE = re.compile(r"^BS_GEMM_KERNEL\((.*)\)$", re.MULTILINE)


@dataclass(frozen=True)
class Line:
    """One line of the definitions, as text says it."""

    name: str
    group: str
    arch: int
    tile: tuple[int, int, int]
    sms: int
    swapped: bool
    output: int
    schedule: int


def lines() -> list[Line]:
    """The definitions in their order."""
    outputs = {"BS_OUTPUT_16BIT": 0, "BS_OUTPUT_32BIT": 1, "BS_OUTPUT_NVFP4": 2}
    schedules = {"BS_COOPERATIVE": 0, "BS_PINGPONG": 1}
    found = []
    for match in _LINE.finditer(DEFINITIONS.read_text()):
        name, group, *numbers, output, schedule = (part.strip() for part in match[1].split(","))
        arch, m, n, k, sms, swapped = map(int, numbers)
        found.append(Line(name, group, arch, (m, n, k), sms, bool(swapped), outputs[output], schedules[schedule]))
    return found


def ask(arch: int, m: int, n: int, k: int, **changes: Any) -> tuple[Any, ...]:
    """The arguments of `choose_gemm`; `changes`: sms, built, output, has_c, batch_invariant."""
    sms = changes.get("sms", {90: 132, 100: 148, 103: 148, 120: 170}.get(arch, 100))
    options = (changes.get("output", FLOAT16), changes.get("has_c", False), changes.get("batch_invariant", False))
    return (arch, sms, changes.get("built", ALL), m, n, k, *options)


def chosen(arch: int, m: int, n: int, k: int, **changes: Any) -> tuple[str, int, int]:
    """(name, cluster m, cluster n) of the choice."""
    plan = _C.choose_gemm(*ask(arch, m, n, k, **changes))
    return name_of(plan)


def name_of(plan: Any) -> tuple[str, int, int]:
    """A plan in words."""
    return KERNELS[plan.kernel].name, plan.cluster_m, plan.cluster_n
