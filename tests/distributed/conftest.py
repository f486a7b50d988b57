# SPDX-License-Identifier: Apache-2.0
"""The backend of a test's process group: gloo; nccl where there is a GPU for each of four ranks (-m gpu)."""

from __future__ import annotations

import pytest
import torch


@pytest.fixture(params=["gloo", pytest.param("nccl", marks=pytest.mark.gpu)])
def backend(request: pytest.FixtureRequest) -> str:
    """Each in turn."""
    if request.param == "nccl" and torch.cuda.device_count() < 4:
        pytest.skip("needs four CUDA GPUs; run there with -m gpu")
    return str(request.param)
