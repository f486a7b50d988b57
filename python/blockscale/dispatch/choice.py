# SPDX-License-Identifier: Apache-2.0
"""`plan_for`: the plan of one GEMM. A pinned config, else a tuned choice of this process, else the heuristic.

The tuned choices are those that `autotune` made or `load_tuned` read in this process: a GEMM opens no file and reads no
environment, so a file that lies about changes no result unless it was asked for.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import torch

from .._native import _C
from ..errors import not_offered, value_error
from . import store
from .candidates import question
from .config import KERNELS, TARGETS, native_plan
from .device import DeviceFacts, device_facts, device_key
from .problem import GemmFacts, class_of

Check = Callable[[_C.GemmPlan], None]
"""Raises ValueError or NotImplementedError where a plan does not take the problem at hand: alignments, strides."""

_MAX_RESOLVED = 4096
"""Problems whose plan is remembered; a process that meets more starts again."""

_LOCK = threading.Lock()
_TUNED: dict[store.Key, store.TunedEntry] = {}
_RESOLVED: dict[tuple[GemmFacts, int | None], _C.GemmPlan] = {}


def plan_for(
    facts: GemmFacts, device: torch.device, pinned: Sequence[int] = (), check: Check | None = None
) -> _C.GemmPlan | None:
    """The plan of a GEMM on `device`; None where no fused kernel is built that can run it.

    Args:
        facts: the problem.
        device: of the operands.
        pinned: `GemmConfig.plan` of a config that the caller gave, or empty.
        check: asks the backend about the exact problem. A plan that it refuses is passed over, be it tuned or not;
            for a pinned one the refusal is raised.

    Raises:
        ValueError: a pinned kernel of another architecture. NotImplementedError: one that is not built.
    """
    here = device_facts(device)
    if pinned:
        plan = _pinned(pinned, here, device)
        if check is not None:
            check(plan)
        return plan
    if here is None or not here.built:
        return None
    key = (facts, device.index)
    known = _RESOLVED.get(key)
    if known is not None and _takes(check, known):
        return known
    tuned = _TUNED
    for plan in _in_order(facts, here, device, tuned):
        if _takes(check, plan):
            _remember(key, plan, tuned)
            return plan
    return None


def _pinned(pinned: Sequence[int], here: DeviceFacts | None, device: torch.device) -> _C.GemmPlan:
    plan = _C.GemmPlan(*pinned)
    if not plan.legal:
        raise value_error("gemm", "config", "a kernel and a cluster that it can have", list(pinned))
    kernel = KERNELS[plan.kernel]
    if here is None:
        raise not_offered("gemm", "config", f"None on {device}", kernel.name, "No kernel is written for this device.")
    if kernel.arch != here.arch:
        raise value_error("gemm", "config", f"a kernel for {TARGETS[here.arch]}, which {device} is", kernel.name)
    if not here.built >> plan.kernel & 1:
        hint = "Rebuild with BLOCKSCALE_GEMM_KERNELS=full and this target in BLOCKSCALE_CUDA_ARCHS."
        raise not_offered("gemm", "config", "a kernel of this build", kernel.name, hint)
    return plan


def _takes(check: Check | None, plan: _C.GemmPlan) -> bool:
    if check is None:
        return True
    try:
        check(plan)
    except (ValueError, NotImplementedError):
        return False
    return True


def _in_order(
    facts: GemmFacts, here: DeviceFacts, device: torch.device, tuned: dict[store.Key, store.TunedEntry]
) -> Iterator[_C.GemmPlan]:
    """The plans to try: tuned, then the heuristic's, best first. The long ranking is made only if it is needed."""
    entry = tuned.get((device_key(device), class_of(facts))) if tuned else None
    if entry is not None and entry.config.arch == here.arch and here.built >> entry.config.plan[0] & 1:
        yield native_plan(entry.config)
    asked = question(facts, here)
    best = _C.choose_gemm(*asked)
    if best is not None:
        yield best
        for estimate in _C.rank_gemm(*asked)[1:]:
            yield estimate.plan


def _remember(key: tuple[GemmFacts, int | None], plan: _C.GemmPlan, tuned: dict[store.Key, store.TunedEntry]) -> None:
    with _LOCK:
        if tuned is not _TUNED:
            return  # new choices have arrived meanwhile
        if len(_RESOLVED) >= _MAX_RESOLVED:
            _RESOLVED.clear()
        _RESOLVED[key] = plan


def tuned_entry(key: store.Key) -> store.TunedEntry | None:
    """The tuned choice of this process for a device and a class."""
    return _TUNED.get(key)


def add_tuned(entries: Iterable[store.TunedEntry]) -> int:
    """Makes tuned choices known to `gemm` in this process, and returns how many there were."""
    global _TUNED
    added = {entry.key: entry for entry in entries}
    with _LOCK:
        _TUNED = {**_TUNED, **added}
        _RESOLVED.clear()
    return len(added)


def load_tuned(path: str | os.PathLike[str] | None = None) -> int:
    """Reads tuned choices from a file; `gemm` uses those for its device from now on in this process.

    Args:
        path: a file that `autotune` wrote; None is `default_path()`.

    Returns:
        The number of choices read; 0 without a file. What is corrupt or of another version is ignored, with a warning.
    """
    return add_tuned(store.read(store.default_path() if path is None else Path(path)).values())


def forget_tuned() -> None:
    """Forgets the tuned choices of this process; files stay."""
    global _TUNED
    with _LOCK:
        _TUNED = {}
        _RESOLVED.clear()
