# SPDX-License-Identifier: Apache-2.0
"""amax_group: one all_reduce(MAX) on the bits, on every rank, also for an empty input. numerics, section 2.1.

``python -m tests.casts.test_amax_group RANK FILE`` is a rank: it prints what it quantized.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import blockscale as bs
from tests.bits import assert_bits_equal, assert_same_operand

ROOT = Path(__file__).parents[2]
NAN, INF = float("nan"), float("inf")


def _filled(value: float) -> torch.Tensor:
    return torch.full((16, 32), value)


def _with(value: float) -> torch.Tensor:
    x = torch.ones(16, 32)
    x[3, 5] = value
    return x


INPUTS: dict[str, tuple[torch.Tensor, torch.Tensor, int]] = {
    "larger elsewhere": (_filled(1.0), _filled(-8.0), 0x41000000),
    "nothing elsewhere": (_filled(3.0), torch.empty(0, 32), 0x40400000),
    "nothing here": (torch.empty(0, 32), _filled(3.0), 0x40400000),
    "nothing anywhere": (torch.empty(0, 32), torch.empty(0, 32), 0),
    "NaN elsewhere": (_filled(1.0), _with(NAN), 0x7FC00000),
    "inf here": (_with(-INF), _filled(1.0), 0x7F800000),
    "inf and NaN": (_with(INF), _with(-NAN), 0x7FC00000),
    "subnormal": (_filled(1e-40), _filled(2e-40), 0x00022D85),
}
"""Inputs of the two ranks, and the bits of the amax that both must store."""


def _casts(x: torch.Tensor, **keywords: Any) -> list[Any]:
    return [
        bs.quantize(x, **keywords),
        bs.quantize(x, block=(16, 16), orientation="columnwise", **keywords),
        *bs.quantize_both(x, **keywords),
    ]


def rank_main(rank: int, rendezvous: str) -> None:
    """Runs all inputs in one process of two."""
    dist = torch.distributed
    dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=2)
    calls = []
    real = dist.all_reduce
    dist.all_reduce = lambda tensor, **keywords: (calls.append(tensor.dtype), real(tensor, **keywords))[1]
    for name, (first, second, bits) in INPUTS.items():
        x = (first, second)[rank]
        amax = torch.tensor(bits, dtype=torch.int32).view(torch.float32)
        calls.clear()
        made = _casts(x, amax_group=dist.group.WORLD)
        if calls != [torch.int32] * 3:
            raise SystemExit(f"rank {rank}, {name}: all_reduce of {calls}; one for each call, on int32")
        for got, want in zip(made, _casts(x, amax=amax), strict=True):
            assert_bits_equal(got.amax, amax, f"rank {rank}, {name}: amax")
            assert_same_operand(got, want)
    print(f"rank {rank} done: {len(INPUTS)}")
    dist.destroy_process_group()


@pytest.mark.skipif(not torch.distributed.is_available(), reason="needs a torch with torch.distributed")
def test_two_ranks(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, sys.path)])}
    command = [sys.executable, "-m", "tests.casts.test_amax_group"]
    ranks = [
        subprocess.Popen(
            [*command, str(rank), str(tmp_path / "store")],
            cwd=ROOT,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(2)
    ]
    texts = [process.communicate(timeout=120)[0] for process in ranks]
    for rank, text in enumerate(texts):
        assert f"rank {rank} done: {len(INPUTS)}" in text, text


if __name__ == "__main__":
    rank_main(int(sys.argv[1]), sys.argv[2])
