# SPDX-License-Identifier: Apache-2.0
"""Samples of how long calls take, all candidates interleaved, so that drift of clocks and load falls on all alike."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence

import torch

Call = Callable[[int], object]
"""A call on buffer set number `index`; sets are rotated so that data is cold in the L2 cache."""


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
    """Microseconds a call on the current device: CUDA graphs of `per_graph` calls over rotating buffers, by events."""
    graphs = {name: _captured(call, sets, per_graph) for name, call in calls.items()}
    samples: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(3):
        for graph in graphs.values():
            graph.replay()
    for _ in range(rounds):
        events: list[tuple[str, torch.cuda.Event, torch.cuda.Event]] = []
        for name in random.sample(sorted(graphs), len(graphs)):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            graphs[name].replay()
            end.record()
            events.append((name, begin, end))
        torch.cuda.synchronize()
        for name, begin, end in events:
            samples[name].append(begin.elapsed_time(end) * 1e3 / per_graph)
    return samples


def _captured(call: Call, sets: int, per_graph: int) -> torch.cuda.CUDAGraph:
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for index in range(sets):
            call(index)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for index in range(per_graph):
            call(index % sets)
    return graph


def median(samples: Sequence[float]) -> float:
    """The middle sample."""
    return sorted(samples)[len(samples) // 2]
