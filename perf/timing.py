# SPDX-License-Identifier: Apache-2.0
"""Samples of how long calls take, all candidates interleaved, so that drift of clocks and load falls on all alike."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence

from blockscale._gpu_timer import Call, time_on_gpu


def time_on_cpu(
    calls: dict[str, Call], *, rounds: int = 15, sets: int = 1, min_ms: float = 2.0
) -> dict[str, list[float]]:
    """Microseconds a call, `rounds` samples for each name; short calls are repeated to fill min_ms."""
    repeats: dict[str, int] = {}
    for name, call in calls.items():
        call(0)
        start = time.perf_counter()
        call(0)
        repeats[name] = max(1, int(min_ms * 1e-3 / max(time.perf_counter() - start, 1e-9)))
    samples: dict[str, list[float]] = {name: [] for name in calls}
    for index in range(rounds):
        for name in random.sample(sorted(calls), len(calls)):
            start = time.perf_counter()
            for repeat in range(repeats[name]):
                calls[name]((index + repeat) % sets)
            samples[name].append((time.perf_counter() - start) / repeats[name] * 1e6)
    return samples


def time_on_cuda(calls: dict[str, Call], *, sets: int, rounds: int = 25, per_graph: int = 12) -> dict[str, list[float]]:
    """Microseconds a call on the current device: CUDA graphs of at least `per_graph` calls."""
    return time_on_gpu(calls, sets, rounds, per_graph)


def median(samples: Sequence[float]) -> float:
    """The middle sample."""
    return sorted(samples)[len(samples) // 2]
