# SPDX-License-Identifier: Apache-2.0
"""Where the tests of several ranks run: gloo on CPU tensors, and with -m gpu NCCL on one GPU a rank."""

from __future__ import annotations

import pytest
import torch

from tests.conftest import why_no_cuda

BACKENDS = ["gloo", pytest.param("nccl", marks=pytest.mark.gpu)]


def need(backend: str, ranks: int) -> None:
    """Skips where there are fewer GPUs than ranks."""
    if backend == "nccl" and (why_no_cuda() or torch.cuda.device_count() < ranks):
        pytest.skip(why_no_cuda() or f"needs {ranks} GPUs; here are {torch.cuda.device_count()}")


def device_of(backend: str, rank: int) -> torch.device:
    """The device of a rank's tensors."""
    return torch.device("cuda", rank) if backend == "nccl" else torch.device("cpu")
