# SPDX-License-Identifier: Apache-2.0
"""The helper itself: results by rank, and the faults of all ranks, those left waiting included."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

from .ranks import run_ranks


def _sum_of_ranks(rank: int, offset: int) -> tuple[int, float]:
    total = torch.tensor([float(rank + offset)])
    dist.all_reduce(total)
    return rank, total.item()


def _one_fails(rank: int) -> None:
    if rank == 1:
        raise KeyError("a rank's own fault")
    dist.barrier()


def test_results_come_by_rank() -> None:
    assert run_ranks(2, _sum_of_ranks, (10,)) == [(0, 21.0), (1, 21.0)]


def test_a_fault_is_reported_and_the_other_rank_does_not_hang() -> None:
    with pytest.raises(AssertionError, match=r"rank 1: Traceback(?s:.*)a rank's own fault"):
        run_ranks(2, _one_fails)
