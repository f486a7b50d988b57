# SPDX-License-Identifier: Apache-2.0
"""`GemmConfig`: a kernel and its cluster, by name. What `gemm(..., config=)` takes and `autotune` returns."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from .._native import _C
from ..errors import type_error, value_error

KERNELS: tuple[_C.GemmKernel, ...] = tuple(_C.gemm_kernels())
"""Every kernel of kernels/contract/gemm_kernels.def, built or not; its place is the index of a plan."""

_BY_NAME = {kernel.name: kernel for kernel in KERNELS}

OUTPUT_NAMES = ("bfloat16 or float16", "float32", "NVFP4")
"""What a kernel writes, by the code of the C ABI (BsGemmOutput)."""

NVFP4_OUTPUT = 2

TARGETS = {90: "sm_90a", 100: "sm_100a", 103: "sm_103a", 120: "sm_120a"}
"""Architecture of a kernel -> name of the target it is compiled for."""


@dataclass(frozen=True)
class GemmConfig:
    """A complete choice of how `gemm` runs on a GPU.

    Attributes:
        kernel: name of a kernel, as "sm100_256x256x256_b16": target, tile of the MMA in M, N and K, "swapped" if A and
            B have each other's place, and the output (b16: bfloat16 and float16; f32; nvfp4).
        cluster: CTAs of a cluster along the kernel's own M and N; None is the smallest that the kernel can have.

    Raises:
        TypeError: not a name, not a pair of ints. ValueError: no such kernel; a cluster that it cannot have
            (kernels/contract/gemm_plan.h).
    """

    kernel: str
    cluster: tuple[int, int] | None = None
    plan: tuple[int, int, int] = field(init=False, repr=False, compare=False)
    """(index of the kernel, cluster along M, along N): what crosses the op schema."""
    output: int = field(init=False, repr=False, compare=False)
    """What the kernel writes; an index of `OUTPUT_NAMES`."""
    arch: int = field(init=False, repr=False, compare=False)
    """The architecture that it runs on: 90, 100, 103 or 120."""

    def __post_init__(self) -> None:
        if not isinstance(self.kernel, str):
            raise type_error("GemmConfig", "kernel", "a name", type(self.kernel).__name__)
        kernel = _BY_NAME.get(self.kernel)
        if kernel is None:
            hint = "blockscale.dispatch.KERNELS lists them."
            raise value_error("GemmConfig", "kernel", "the name of a kernel", repr(self.kernel), hint)
        cluster = _checked_cluster(kernel, self.cluster)
        object.__setattr__(self, "cluster", cluster)
        object.__setattr__(self, "plan", (kernel.index, *cluster))
        object.__setattr__(self, "output", kernel.output)
        object.__setattr__(self, "arch", kernel.arch)

    def __str__(self) -> str:
        return f"{self.kernel} {self.plan[1]}x{self.plan[2]}"


def output_code(dtype: torch.dtype) -> int:
    """The kind of a float output: an index of `OUTPUT_NAMES`."""
    return 1 if dtype is torch.float32 else 0


def config_of(plan: _C.GemmPlan) -> GemmConfig:
    """The config of a plan that the heuristic gave."""
    return GemmConfig(KERNELS[plan.kernel].name, (plan.cluster_m, plan.cluster_n))


def native_plan(config: GemmConfig) -> _C.GemmPlan:
    """The plan of a config."""
    return _C.GemmPlan(*config.plan)


def legal_clusters(kernel: _C.GemmKernel) -> list[tuple[int, int]]:
    """Every cluster that the kernel can be launched with, the smallest first."""
    sides = (1, 2, 4)
    found = [(m, n) for m in sides for n in sides if _C.GemmPlan(kernel.index, m, n).legal]
    return sorted(found, key=lambda cluster: (cluster[0] * cluster[1], -cluster[0]))


def _checked_cluster(kernel: _C.GemmKernel, cluster: object) -> tuple[int, int]:
    legal = legal_clusters(kernel)
    if cluster is None:
        return legal[0]
    pair = tuple(cluster) if isinstance(cluster, tuple | list) else ()
    if len(pair) != 2 or any(type(side) is not int for side in pair):
        raise type_error("GemmConfig", "cluster", "a pair of ints or None", repr(cluster))
    if pair not in legal:
        names = ", ".join(map(str, legal))
        raise value_error("GemmConfig", "cluster", f"one of {names} for {kernel.name}", pair)
    return pair
