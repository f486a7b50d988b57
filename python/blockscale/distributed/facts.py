# SPDX-License-Identifier: Apache-2.0
"""What a cast of master weights needs to know, checked: facts that every rank sees, and facts about its own shards.

Which rank sees what decides who raises when: see `verdicts.py`, and numerics, section 13.2.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from .._codes import FLOAT_INPUTS
from ..errors import type_error, value_error
from ..formats import BLOCK
from ..operand import NVFP4Operand
from ..primary_ops import tile_shape
from ..tensor import NVFP4Tensor

OP = "cast_master_weights_to_nvfp4"


@dataclass(frozen=True)
class Weights:
    """The weights of a call, in order, after the checks that every rank makes with the same outcome.

    Attributes:
        operands: the rowwise operand of each.
        dtype: their nominal dtype.
        device: where they are.
        tiles: number of 16 x 16 tiles of each.
    """

    operands: tuple[NVFP4Operand, ...]
    dtype: torch.dtype
    device: torch.device
    tiles: tuple[int, ...]


@dataclass(frozen=True)
class Shard:
    """What this rank owns of a weight.

    Attributes:
        master: (length,) values, contiguous; of length 0 where it owns nothing.
        start: index of the first one in the flattened weight.
        target: the bytes start >> 1 to (start + length + 1) >> 1 of the weight's codes, or a fragment in their place.
    """

    master: Tensor
    start: int
    target: Tensor


def check_weights(op: str, weights: object) -> Weights:
    """Facts about the list of weights. The list is not empty.

    Raises:
        TypeError: not a list or tuple; an entry that is no NVFP4Tensor.
        ValueError: an entry twice; a format other than plain (16, 16) tiles; no rowwise data of a whole matrix;
            several devices or nominal dtypes.
    """
    if not isinstance(weights, (list, tuple)):
        raise type_error(op, "model_weights", "a list of NVFP4Tensor", type(weights).__name__)
    operands: list[NVFP4Operand] = []
    seen: dict[int, int] = {}
    for index, weight in enumerate(weights):
        arg = f"model_weights[{index}]"
        operand = _check_weight(op, arg, weight)
        first = weights[0]
        if weight.device != first.device:
            raise value_error(op, f"{arg}.device", f"that of model_weights[0], {first.device}", weight.device)
        if weight.dtype != first.dtype:
            hint = "Cast weights of each nominal dtype in a call of their own."
            raise value_error(op, f"{arg}.dtype", f"that of model_weights[0], {first.dtype}", weight.dtype, hint)
        # An empty weight has no bytes to tell it by: its object is compared.
        place = operand.qdata.data_ptr() or id(weight._held)
        if place in seen:
            raise value_error(op, arg, "another weight than those before it", f"model_weights[{seen[place]}] again")
        seen[place] = index
        operands.append(operand)
    tiles = [tile_shape(operand.rows, operand.k) for operand in operands]
    return Weights(tuple(operands), weights[0].dtype, weights[0].device, tuple(rows * cols for rows, cols in tiles))


def _check_weight(op: str, arg: str, weight: object) -> NVFP4Operand:
    if not isinstance(weight, NVFP4Tensor):
        hint = "" if isinstance(weight, Tensor) else "Make one with NVFP4Tensor.quantize."
        if hasattr(weight, "_local_tensor"):
            hint = "Pass the local tensor of a DTensor, or use optim.FusedAdam."
        raise type_error(op, arg, "an NVFP4Tensor", type(weight).__name__, hint)
    fmt, held = weight.format, weight._held
    if fmt.block != (BLOCK, BLOCK) or fmt.scaling != "tensor" or fmt.four_over_six is not None or fmt.rht is not None:
        hint = "A shard sees neither a row's amax nor a whole tile's error."
        raise value_error(op, f"{arg}.format", "block (16, 16), scaling='tensor' and nothing else", fmt, hint)
    if held.rowwise is None:
        hint = "Call update_usage(rowwise=True)."
        raise value_error(op, arg, "an NVFP4Tensor with rowwise data", "columnwise data only", hint)
    if held.root is not None or weight.shape[-1] != held.k:
        hint = "Pass the tensor itself, and the shard's place in start_offsets."
        raise value_error(op, arg, "a whole weight", "a view of a part of it, or a flat alias", hint)
    if weight.is_meta:
        raise value_error(op, arg, "on a device with values", "meta")
    if held.rowwise.qdata.numel() and not held.rowwise.qdata.data_ptr():
        raise value_error(op, arg, "allocated", "storage that has been freed")
    return held.rowwise


def check_shards(
    weights: Weights, masters: object, starts: object, fragments: object, op: str = OP
) -> tuple[Shard, ...]:
    """Facts about this rank's shards.

    Raises:
        TypeError: kinds and dtypes. ValueError: lengths, devices, strides, ranges, fragments of another size.
    """
    count = len(weights.operands)
    lists = {"master_weights": masters, "start_offsets": starts}
    if fragments is not None:
        lists["fsdp_shard_model_weights"] = fragments
    for arg, values in lists.items():
        if not isinstance(values, (list, tuple)):
            raise type_error(op, arg, "a list with an entry for each weight", type(values).__name__)
        if len(values) != count:
            raise value_error(op, arg, f"of {count} entries, as model_weights", len(values))
    nothing = torch.empty(0, dtype=torch.float32, device=weights.device)
    shards: list[Shard] = []
    dtype: tuple[int, torch.dtype] | None = None
    for index, operand in enumerate(weights.operands):
        master = _check_master(op, index, masters[index], weights.device)  # type: ignore[index]
        if master is not None:
            if dtype is not None and master.dtype is not dtype[1]:
                rule = f"of one dtype; that of master_weights[{dtype[0]}] is {dtype[1]}"
                raise type_error(op, f"master_weights[{index}]", rule, master.dtype)
            dtype = dtype or (index, master.dtype)
        length = 0 if master is None else master.numel()
        start = _check_start(op, index, starts[index], length, operand)  # type: ignore[index]
        own = operand.qdata.view(-1)[start >> 1 : (start + length + 1) >> 1] if length else operand.qdata.view(-1)[:0]
        fragment = None if fragments is None else fragments[index]  # type: ignore[index]
        target = own if fragment is None else _check_fragment(op, index, fragment, own.numel(), weights.device)
        shards.append(Shard(nothing if master is None else master, start, target))
    if fragments is not None:
        _check_disjoint(op, shards)
    return tuple(shards)


def _check_master(op: str, index: int, master: Any, device: torch.device) -> Tensor | None:
    """The shard, flat; None for an empty one."""
    arg = f"master_weights[{index}]"
    if master is None:
        return None
    if not isinstance(master, Tensor) or _is_wrapper(master):
        raise type_error(op, arg, "a plain torch.Tensor or None", type(master).__name__)
    if master.dtype not in FLOAT_INPUTS:
        raise type_error(op, arg, "float32, bfloat16 or float16", master.dtype)
    if master.device != device:
        raise value_error(op, arg, f"on {device}, where the weights are", master.device)
    if not master.is_contiguous():
        raise value_error(op, arg, "contiguous", f"strides {master.stride()}", "Call .contiguous().")
    return master.detach().view(-1) if master.numel() else None


def _is_wrapper(tensor: Tensor) -> bool:
    """Whether it has no memory of its own, as NVFP4Tensor and DTensor."""
    return is_traceable_wrapper_subclass(tensor)


def _check_start(op: str, index: int, start: Any, length: int, operand: NVFP4Operand) -> int:
    arg = f"start_offsets[{index}]"
    if start is None and length == 0:
        return 0
    if not isinstance(start, int) or isinstance(start, bool):
        raise type_error(op, arg, "an int, the index of the shard's first element", type(start).__name__)
    numel = operand.rows * operand.k
    if start < 0 or start + length > numel:
        hint = "Offsets count elements, not bytes."
        rule = f"in 0..{numel - length}, for a shard of {length} of {numel} elements"
        raise value_error(op, arg, rule, start, hint)
    return start


def _check_fragment(op: str, index: int, fragment: Any, size: int, device: torch.device) -> Tensor:
    arg = f"fsdp_shard_model_weights[{index}]"
    if not isinstance(fragment, Tensor) or fragment.dtype is not torch.uint8:
        got = fragment.dtype if isinstance(fragment, Tensor) else type(fragment).__name__
        raise type_error(op, arg, "a uint8 tensor or None", got)
    if fragment.numel() != size:
        hint = "A shard's fragment is bytes start >> 1 to (start + length + 1) >> 1 of the weight's codes."
        raise value_error(op, arg, f"of {size} bytes", fragment.numel(), hint)
    if fragment.device != device:
        raise value_error(op, arg, f"on {device}, where the weights are", fragment.device)
    if not fragment.is_contiguous():
        raise value_error(op, arg, "contiguous", f"strides {fragment.stride()}")
    return fragment.view(-1)


def _check_disjoint(op: str, shards: Sequence[Shard]) -> None:
    """No byte is written twice: two threads could write it."""
    spans = sorted(
        (shard.target.data_ptr(), shard.target.data_ptr() + shard.target.numel(), index)
        for index, shard in enumerate(shards)
        if shard.target.numel()
    )
    for (_, end, before), (begin, _, after) in itertools.pairwise(spans):
        if begin < end:
            rule = f"disjoint from the bytes of weight {min(before, after)}"
            raise value_error(op, f"fsdp_shard_model_weights[{max(before, after)}]", rule, "a byte in both")
