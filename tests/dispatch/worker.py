# SPDX-License-Identifier: Apache-2.0
"""One of several processes that tune into one file: ``python -m tests.dispatch.worker FILE NUMBER OF``.

Every process tunes a problem of its own and one that all share; it prints how many it measured.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import torch

import blockscale as bs
from blockscale.tuning import tune_with

from .fakes import PAIR, FakeBench

SHARED_N = 1024
OWN = 8
"""Problems that each process has for itself."""


def main(path: Path, number: int, of: int) -> None:
    torch.set_num_threads(1)
    start = path.with_name("start")
    path.with_name(f"ready-{number}").touch()
    while len(list(path.parent.glob("ready-*"))) < of and not start.exists():
        time.sleep(0.01)  # all begin together, so that they meet
    start.touch()
    a = bs.quantize(torch.ones(16, 64))
    measured = 0
    for n in (SHARED_N, *(16 * (1 + number * OWN + own) for own in range(OWN))):
        fake = FakeBench({PAIR: 50.0 + number})
        tune_with(fake.bench(), a, bs.quantize(torch.ones(n, 64)), {}, path)
        measured += len(fake.timed)
    print(measured)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
