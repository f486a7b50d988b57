# SPDX-License-Identifier: Apache-2.0
"""A B200 that is not there: its facts, and a bench whose times are typed in."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from blockscale._gpu_timer import Call
from blockscale.dispatch import DeviceKey, GemmConfig, GemmFacts
from blockscale.dispatch.device import DeviceFacts
from blockscale.tuning import Bench

from .kernels import ALL

KEY = DeviceKey("Fake B200", "10.0", 148, 13000, "0.0.test")
B200 = DeviceFacts(100, 148, ALL)

SMALL = GemmConfig("sm100_128x128x256_b16")
PAIR = GemmConfig("sm100_256x256x256_b16", cluster=(2, 1))
SWAPPED = GemmConfig("sm100_128x64x256_swapped_b16")


def facts(m: int = 256, n: int = 8192, k: int = 8192, **changes: Any) -> GemmFacts:
    """A plain problem with BF16 output."""
    return GemmFacts(m, n, k, 0, False, 0, False, False)._replace(**changes)


class FakeBench:
    """Times calls by their config: `times`, else 100 us. Refuses the configs that it is told to."""

    def __init__(
        self, times: Mapping[GemmConfig, float] | None = None, refuse: Callable[..., bool] | None = None
    ) -> None:
        self.times = dict(times or {})
        self.refuse = refuse or (lambda config, keywords: False)
        self.calls: list[tuple[GemmConfig | None, dict[str, Any]]] = []
        self.timed: list[set[GemmConfig]] = []
        self.sets = 0

    def gemm(self, a: Any, b: Any, *, config: GemmConfig | None = None, **keywords: Any) -> None:
        self.calls.append((config, {"a": a, "b": b, **keywords}))
        if config is not None and self.refuse(config, keywords):
            raise ValueError("gemm: this plan does not take the problem")

    def timer(self, calls: Mapping[GemmConfig, Call], sets: int, rounds: int) -> dict[GemmConfig, Any]:
        self.timed.append(set(calls))
        self.sets = sets
        for call in calls.values():
            for index in range(sets):
                call(index)
        return {config: [self.times.get(config, 100.0)] * rounds for config in calls}

    def bench(self, key: DeviceKey = KEY, device: DeviceFacts = B200, l2_bytes: int = 0) -> Bench:
        return Bench(key, device, l2_bytes, self.gemm, self.timer)
