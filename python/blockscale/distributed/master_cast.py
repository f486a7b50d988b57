# SPDX-License-Identifier: Apache-2.0
"""From FP32 master weights, sharded over ranks in any way, to NVFP4 weights; numerics, section 13.2.

Every rank owns a run of elements of each flattened weight. The ranks agree on amaxes with two all-reduces, each writes
the codes of its own elements, and the caller gathers these. The result has the bits of quantizing the whole weight.

`facts.py` has the checks, `verdicts.py` what happens when one of them fails, `cast_plan.py` the work.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch.distributed as dist
from torch import Tensor

from ..errors import value_error
from ..tensor import NVFP4Tensor
from ..tensor.held import Held
from . import verdicts
from .cast_plan import AmaxBuffers, CastPlan, mark_written
from .facts import OP, Shard, Weights, check_shards, check_weights
from .plans import PlanCache, stream_of

_plans: PlanCache[CastPlan] = PlanCache()


def cast_master_weights_to_nvfp4(
    model_weights: Sequence[NVFP4Tensor],
    master_weights: Sequence[Tensor | None],
    start_offsets: Sequence[int | None],
    group: Any = None,
    fsdp_shard_model_weights: Sequence[Tensor | None] | None = None,
    manual_post_all_gather_processing: bool = True,
    *,
    round_master_to_model_dtype: bool = True,
) -> None:
    """Casts this rank's shards of master weights into NVFP4 weights, under amaxes that all ranks share.

    Every rank of the group calls this with the same weights in the same order. Block scales and amax of every weight
    are complete afterwards, on every rank; the codes of other ranks' elements are not: gather the packed bytes, then
    call `post_all_gather_processing`. Nothing is allocated and nothing waits for the device from the second call with
    the same tensors on; addresses do not change.

    Args:
        model_weights: NVFP4Tensors with (16, 16) blocks and one amax, of one device and one nominal dtype; M any, K a
            multiple of 16.
        master_weights: for each weight this rank's elements of the flattened weight, contiguous: float32, bfloat16 or
            float16, one dtype for all; None or empty where it owns nothing.
        start_offsets: index of the first of them; any. May be None where the rank owns nothing.
        group: ranks that hold the shards. None: the default process group if there is one, else no collectives.
        fsdp_shard_model_weights: for each weight None, or a uint8 tensor in which the codes go instead of the weight's
            own: bytes start >> 1 to (start + length + 1) >> 1.
        manual_post_all_gather_processing: what columnwise data, stale from now on, does when it is read: True: it
            raises until `post_all_gather_processing`. False: it is made again, which is right after the gather only.
        round_master_to_model_dtype: True: masters are rounded to the nominal dtype first: the bits of quantizing a
            bfloat16 weight. False: those of quantizing the float32 master. Some codes differ.

    Raises:
        TypeError, ValueError: an argument that breaks a rule. In the first call with these weights and this group every
            rank raises the same error, with the rank and the index in it, and no byte is written. Later, a rank with a
            bad shard raises alone; the others complete, and their weights decode to NaN.
    """
    cast(
        model_weights, master_weights, start_offsets, verdicts.resolve_group(group), fsdp_shard_model_weights,
        manual=manual_post_all_gather_processing, rounded=round_master_to_model_dtype, tiles_shared=True,
    )  # fmt: skip


def cast(
    weights: Any, masters: Any, starts: Any, group: Any, fragments: Any, *, manual: bool, rounded: bool,
    tiles_shared: bool,
) -> None:  # fmt: skip
    """`cast_master_weights_to_nvfp4`, also for weights that are themselves rows of a larger one.

    Args:
        group: None: no collectives.
        tiles_shared: False: no tile has elements on two ranks, so that only the amaxes of weights are reduced.
    """
    if isinstance(weights, (list, tuple)) and not weights:
        _check_nothing({"master_weights": masters, "start_offsets": starts, "fsdp_shard_model_weights": fragments})
        return
    held = held_of(weights)
    key = (tuple(map(id, held)), id(group), tiles_shared, stream_of(weights[0].device) if held else 0)
    plan = _plans.get(key) if held else None
    if plan is None or not plan.fits(held, masters, starts, fragments, rounded):
        found, shards = _agree(weights, masters, starts, group, fragments, (rounded, tiles_shared))
        plan = CastPlan(found, shards, group, rounded, tiles_shared, lambda: _plans.discard(key))
        plan.remember_inputs(masters, starts, fragments)
        _plans.put(key, plan)
    plan.run()
    mark_written(weights, held, manual)


def held_of(weights: Any) -> list[Held]:
    """What is behind each weight; empty if the argument is not a list of NVFP4Tensors, which the checks explain."""
    if not isinstance(weights, (list, tuple)) or not all(isinstance(weight, NVFP4Tensor) for weight in weights):
        return []
    return [weight._held for weight in weights]


def _check_nothing(lists: dict[str, Any]) -> None:
    """A call without weights: the other lists are empty too."""
    for arg, values in lists.items():
        if values is not None and len(values):
            raise value_error(OP, arg, "of 0 entries, as model_weights", len(values))


def _agree(
    weights: Any, masters: Any, starts: Any, group: Any, fragments: Any, settings: tuple[Any, ...]
) -> tuple[Weights, tuple[Shard, ...]]:
    """The checks, and what follows from a failure on any rank; numerics, section 13.2, steps 1 and 2."""
    found: Weights | None = None
    shards: tuple[Shard, ...] = ()
    fault: Exception | None = None
    try:
        found = check_weights(OP, weights)
        shards = check_shards(found, masters, starts, fragments)
    except (TypeError, ValueError) as error:
        fault = error
    if group is not None and dist.get_world_size(group) > 1:
        if not verdicts.are_known(weights, group):
            verdicts.exchange(OP, group, fault, found, settings)
        elif fault is not None and found is not None:
            # The others do not know. They are on their way into the all-reduces, and must not be left there.
            buffers = AmaxBuffers(found)
            buffers.poison()
            buffers.reduce(group, tiles=settings[1])
    if fault is not None or found is None:
        raise fault or value_error(OP, "model_weights", "known", None)
    if group is not None:
        verdicts.remember(found, group)
    return found, shards
