# SPDX-License-Identifier: Apache-2.0
"""What a call runs on the GPU, in order: kernels, fills and copies, by torch's profiler."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch.autograd import DeviceType

_NOT_WORK = ("Sync", "Wait")  # the tracer's own records of synchronisation


class Launch(NamedTuple):
    """One piece of work on the device."""

    name: str
    stream: int

    @property
    def ours(self) -> bool:
        return "blockscale" in self.name

    @property
    def moves_or_fills(self) -> bool:
        return any(word in self.name.lower() for word in ("memset", "memcpy", "fill"))


def launches_of(call: Callable[[], object]) -> list[Launch]:
    """The device's work of the second of two calls."""
    call()
    torch.cuda.synchronize()
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profile:
        call()
        torch.cuda.synchronize()
    events = [event for event in profile.events() if event.device_type == DeviceType.CUDA]
    events = [event for event in events if not any(word in event.name for word in _NOT_WORK)]
    events.sort(key=lambda event: event.time_range.start)
    return [Launch(event.name, event.device_resource_id) for event in events]
