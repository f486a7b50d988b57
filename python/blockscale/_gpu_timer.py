# SPDX-License-Identifier: Apache-2.0
"""How `autotune` and perf time on a GPU: CUDA graphs over rotating buffers, candidates interleaved, by events."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import TypeVar

import torch

Name = TypeVar("Name")
Call = Callable[[int], object]
"""Runs once on buffer set number `index`; sets are rotated so that operands are cold in L2."""

CALLS_PER_GRAPH = 12
"""At least; a graph visits every set once. Launch overhead is shared by them and no host work is timed."""

WARM_UPS = 3

Timer = Callable[[Mapping[Name, Call], int, int], dict[Name, list[float]]]
"""(calls by name, number of buffer sets, rounds) -> microseconds a call, `rounds` samples for each name."""


def time_on_gpu(
    calls: Mapping[Name, Call], sets: int, rounds: int, at_least: int = CALLS_PER_GRAPH
) -> dict[Name, list[float]]:
    """Samples on the current device. Drift of clocks and load falls on all calls alike: each round shuffles them."""
    per_graph = sets * -(-at_least // sets)
    graphs = {name: _captured(call, sets, per_graph) for name, call in calls.items()}
    for _ in range(WARM_UPS):
        for graph in graphs.values():
            graph.replay()
    order = random.Random(0)
    samples: dict[Name, list[float]] = {name: [] for name in graphs}
    for _ in range(rounds):
        marks: list[tuple[Name, torch.cuda.Event, torch.cuda.Event]] = []
        names = list(graphs)
        order.shuffle(names)
        for name in names:
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            graphs[name].replay()
            end.record()
            marks.append((name, begin, end))
        torch.cuda.synchronize()
        for name, begin, end in marks:
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
