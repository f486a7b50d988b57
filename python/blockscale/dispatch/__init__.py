# SPDX-License-Identifier: Apache-2.0
"""Which kernel runs a GEMM on a GPU: a pinned config, else a tuned one, else the heuristic (docs/dispatch.md).

Start with `choice.py`, which `gemm` asks. The heuristic is C++, in kernels/dispatch; `blockscale.tuning` measures.
"""

from .candidates import Candidate, Candidates, gemm_candidates
from .choice import forget_tuned, load_tuned, plan_for
from .config import KERNELS, GemmConfig
from .device import DeviceKey, built_kernels
from .problem import GemmFacts, ProblemClass, row_bucket
from .store import TunedEntry, default_path

__all__ = [
    "KERNELS",
    "Candidate",
    "Candidates",
    "DeviceKey",
    "GemmConfig",
    "GemmFacts",
    "ProblemClass",
    "TunedEntry",
    "built_kernels",
    "default_path",
    "forget_tuned",
    "gemm_candidates",
    "load_tuned",
    "plan_for",
    "row_bucket",
]
