# SPDX-License-Identifier: Apache-2.0
"""Who learns of a fault, and when: ranks tell each other once, before the first cast of a weight with a group.

A rank that raised alone would leave the others waiting in an all-reduce. Every call could exchange verdicts, at the
price of a wait for the device; so the first one does, and a later fault travels inside the all-reduces as a NaN.
"""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary, WeakSet

import torch.distributed as dist

from ..errors import value_error
from ..operand import NVFP4Operand
from ..tensor import NVFP4Tensor
from .facts import Weights

_ERRORS: dict[str, type[Exception]] = {"TypeError": TypeError, "ValueError": ValueError}

_known: WeakKeyDictionary[NVFP4Operand, WeakSet[Any]] = WeakKeyDictionary()
"""Rowwise operand of a weight -> process groups that have exchanged verdicts on it."""


def resolve_group(group: Any) -> Any:
    """The process group of a call: the given one, the default one, or None where there is none."""
    if group is not None:
        return group
    if not dist.is_available() or not dist.is_initialized():
        return None
    return dist.group.WORLD


def are_known(weights: Any, group: Any) -> bool:
    """Whether verdicts on all these weights have been exchanged in the group. The same on every rank."""
    if not isinstance(weights, (list, tuple)):
        return False
    for weight in weights:
        operand = weight._held.rowwise if isinstance(weight, NVFP4Tensor) else None
        if operand is None or group not in _known.get(operand, ()):
            return False
    return True


def remember(weights: Weights, group: Any) -> None:
    """The weights need no exchange with this group from now on."""
    for operand in weights.operands:
        _known.setdefault(operand, WeakSet()).add(group)


def exchange(op: str, group: Any, fault: Exception | None, weights: Weights | None, settings: tuple[Any, ...]) -> None:
    """One object all-gather of verdicts and of what the ranks must have in common.

    Args:
        fault: what this rank found wrong, or None.
        weights: this rank's weights, unless they are what is wrong.
        settings: further values that must be equal.

    Raises:
        TypeError, ValueError: on every rank the same, if any rank found a fault or has other weights.
    """
    mine = (
        None if fault is None else (type(fault).__name__, str(fault)),
        None if weights is None else [(tuple(o.shape), str(o.format), str(weights.dtype)) for o in weights.operands],
        settings,
    )
    everyone: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(everyone, mine, group=group)
    ranks = [dist.get_global_rank(group, index) for index in range(len(everyone))]
    faults = [(rank, *verdict[0]) for rank, verdict in zip(ranks, everyone, strict=True) if verdict[0] is not None]
    if faults:
        texts = [text.replace(f"{op}: ", f"{op}: rank {rank}: ", 1) for rank, _, text in faults]
        raise _ERRORS.get(faults[0][1], ValueError)("\n".join(texts))
    for rank, (_, theirs, their_settings) in zip(ranks, everyone, strict=True):
        _compare(op, ranks[0], everyone[0][1], rank, theirs)
        if their_settings != everyone[0][2]:
            got = f"{everyone[0][2]} on rank {ranks[0]} and {their_settings} on rank {rank}"
            raise value_error(op, "round_master_to_model_dtype", "the same on every rank", got)


def _compare(op: str, first_rank: int, ours: list[Any], rank: int, theirs: list[Any]) -> None:
    if len(ours) != len(theirs):
        got = f"{len(ours)} weights on rank {first_rank} and {len(theirs)} on rank {rank}"
        raise value_error(op, "model_weights", "the same list on every rank", got)
    for index, (p, q) in enumerate(zip(ours, theirs, strict=True)):
        if p != q:
            got = f"{p} on rank {first_rank} and {q} on rank {rank}"
            raise value_error(op, f"model_weights[{index}]", "the same weight on every rank", got)
