# SPDX-License-Identifier: Apache-2.0
"""Plans that are kept between calls, by the identity of the list that they were made for."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

import torch

Plan = TypeVar("Plan")


class PlanCache(Generic[Plan]):
    """The plans used last. A key made of ids may come back for other objects: callers compare before they use one."""

    def __init__(self, most: int = 256) -> None:
        self._plans: OrderedDict[Hashable, Plan] = OrderedDict()
        self._most = most
        self._lock = threading.RLock()  # a weight may die, and its plan be dropped, inside of any call

    def get(self, key: Hashable) -> Plan | None:
        """The plan of a key, or None."""
        with self._lock:
            plan = self._plans.get(key)
            if plan is not None:
                self._plans.move_to_end(key)
            return plan

    def put(self, key: Hashable, plan: Plan) -> None:
        """Keeps a plan, in place of an older one of its key, and drops the one that has not been used for longest."""
        with self._lock:
            self._plans[key] = plan
            self._plans.move_to_end(key)
            while len(self._plans) > self._most:
                self._plans.popitem(last=False)

    def discard(self, key: Hashable) -> None:
        """Forgets a plan, if it is there."""
        with self._lock:
            self._plans.pop(key, None)

    def __len__(self) -> int:
        return len(self._plans)


def stream_of(device: torch.device) -> int:
    """The current stream, part of a key: a plan's buffers are for one stream. 0 on a CPU."""
    return torch.cuda.current_stream(device).cuda_stream if device.type == "cuda" else 0
