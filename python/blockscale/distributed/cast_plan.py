# SPDX-License-Identifier: Apache-2.0
"""`CastPlan`: buffers and native lists of a cast that is repeated every step, so that a repetition costs four calls.

A plan holds addresses, and no weight or master alive: `fits` compares addresses before each use. Its buffers take 5/256
bytes for each element of the weights.
"""

from __future__ import annotations

import operator
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from .._codes import DTYPE_CODE, layout_code
from ..primary_ops import (
    AS_IT_IS,
    FUSED_SCALE,
    PARTIAL_AMAX,
    PARTIAL_CAST,
    fused_scale_list,
    partial_amax_list,
    partial_cast_list,
    run_items,
    upload_table,
)
from ..tensor.held import Columnwise, Held
from .facts import Shard, Weights

NAN_AMAX_BITS = 0x7FC00000


class AmaxBuffers:
    """Amaxes on their way through the all-reduces: of all tiles of all weights, and of the weights.

    They are reduced as int32: magnitudes are not negative, and the bits of non-negative floats order as the floats do,
    with inf above them and NaN above inf. A MAX over floats may drop a NaN (it depends on the library and on the order
    of the ranks); over these integers it cannot.
    """

    def __init__(self, weights: Weights) -> None:
        tiles = sum(weights.tiles)
        both = torch.empty(tiles + len(weights.tiles), dtype=torch.float32, device=weights.device)
        self.tiles, self.amaxes = both[:tiles], both[tiles:]
        self._bits = both.view(torch.int32)
        self._tile_bits, self._amax_bits = self._bits[:tiles], self._bits[tiles:]

    def reduce(self, group: Any, *, tiles: bool) -> None:
        """The maximum over the ranks: one all-reduce for all tiles (unless each tile is in one shard), one for all
        weights."""
        if group is None:
            return
        if tiles:
            dist.all_reduce(self._tile_bits, op=dist.ReduceOp.MAX, group=group)
        dist.all_reduce(self._amax_bits, op=dist.ReduceOp.MAX, group=group)

    def poison(self) -> None:
        """NaN everywhere: what a rank with a fault contributes."""
        self._bits.fill_(NAN_AMAX_BITS)


class CastPlan:
    """One list of weights with this rank's shards of their masters, ready to be cast again.

    `forget` is called when one of the weights is gone.
    """

    def __init__(
        self, weights: Weights, shards: Sequence[Shard], group: Any, rounded: bool, tiles_shared: bool,
        forget: Callable[[], None],
    ) -> None:  # fmt: skip
        self._group = group
        self._tiles_shared = tiles_shared
        self._device = weights.device
        self._buffers = AmaxBuffers(weights)
        self._operands = [weakref.ref(operand, lambda _: forget()) for operand in weights.operands]
        self._codes = [operand.qdata.data_ptr() for operand in weights.operands]
        tile_scales = torch.empty(sum(weights.tiles), dtype=torch.uint8, device=weights.device)
        operands = weights.operands
        ms, ks = [operand.rows for operand in operands], [operand.k for operand in operands]
        tile_amaxes = self._buffers.tiles.split(list(weights.tiles))
        scales = tile_scales.split(list(weights.tiles))
        amaxes = self._buffers.amaxes.unbind()
        e4m3_maxes = [operand.format.e4m3_max for operand in operands]
        round_to = DTYPE_CODE[weights.dtype] if rounded else AS_IT_IS
        amax_items = partial_amax_list(
            [shard.master for shard in shards], ms, ks, [shard.start for shard in shards], round_to, tile_amaxes,
            self._buffers.amaxes,
        )  # fmt: skip
        scale_items = fused_scale_list(
            tile_amaxes, amaxes, ms, ks, [layout_code(operand.layout) for operand in operands], e4m3_maxes, scales,
            [operand.block_scale.view(torch.uint8) for operand in operands], [operand.amax for operand in operands],
        )  # fmt: skip
        owned = [index for index, shard in enumerate(shards) if shard.master.numel()]
        cast_items = partial_cast_list(
            [shards[i].master for i in owned], [shards[i].target for i in owned], [scales[i] for i in owned],
            [amaxes[i] for i in owned], [ms[i] for i in owned], [ks[i] for i in owned],
            [shards[i].start for i in owned], round_to, [e4m3_maxes[i] for i in owned],
        )  # fmt: skip
        self._tile_scales = tile_scales
        self._before = (PARTIAL_AMAX, amax_items)
        self._after = [(FUSED_SCALE, scale_items), *([(PARTIAL_CAST, cast_items)] if owned else [])]
        stages = [self._before, *self._after]
        self._tables = [upload_table(items, stage, weights.device, wait=False) for stage, items in stages]
        self._rounded = rounded
        self._masters, self._fragments = Addresses(), Addresses()
        self._starts: list[Any] = []

    def remember_inputs(self, masters: Sequence[Any], starts: Sequence[Any], fragments: Sequence[Any] | None) -> None:
        """What `fits` compares with."""
        self._masters.remember(masters)
        self._fragments.remember(fragments)
        self._starts = list(starts)

    def fits(self, held: Sequence[Held], masters: Any, starts: Any, fragments: Any, rounded: bool) -> bool:
        """Whether a call with these arguments is the one that this plan was made for."""
        operands = [each.rowwise for each in held]
        return (
            all(map(operator.is_, operands, [ref() for ref in self._operands]))
            and [operand.qdata.data_ptr() for operand in operands if operand is not None] == self._codes
            and isinstance(starts, (list, tuple))
            and list(starts) == self._starts
            and self._masters.are_of(masters)
            and self._fragments.are_of(fragments)
            and rounded == self._rounded
        )

    def run(self) -> None:
        """Amaxes, all-reduces, scales and codes. Only enqueues."""
        run_items(self._before[1], PARTIAL_AMAX, self._device)
        self._buffers.reduce(self._group, tiles=self._tiles_shared)
        for stage, items in self._after:
            run_items(items, stage, self._device)


class Addresses:
    """Where the tensors of a list were, without keeping them alive."""

    def __init__(self) -> None:
        self._objects: list[Any] | None = None
        self._pointers: list[int] = []
        self._kinds: list[Any] = []

    def remember(self, tensors: Sequence[Any] | None) -> None:
        """Takes note of a list of tensors and Nones."""
        if tensors is None:
            self._objects = None
            return
        self._objects = [_no_object if t is None else weakref.ref(t) for t in tensors]
        self._pointers = [0 if t is None else t.data_ptr() for t in tensors]
        self._kinds = _kinds(tensors)

    def are_of(self, tensors: Any) -> bool:
        """Whether a list has the same memory, in the same shapes and dtypes; the same objects are quickly told."""
        if tensors is None or self._objects is None:
            return tensors is self._objects
        if not isinstance(tensors, (list, tuple)) or len(tensors) != len(self._objects):
            return False
        try:
            if [0 if t is None else t.data_ptr() for t in tensors] != self._pointers:
                return False
            if all(map(operator.is_, tensors, [ref() for ref in self._objects])):
                return True
            if _kinds(tensors) != self._kinds:
                return False
        except (AttributeError, TypeError, RuntimeError):  # no tensors, or none with memory: the checks will say so
            return False
        self.remember(tensors)
        return True


def _no_object() -> None:
    """What stands in the place of a reference to None."""


def _kinds(tensors: Sequence[Any]) -> list[Any]:
    return [None if t is None else (t.shape, t.stride(), t.dtype, type(t)) for t in tensors]


def mark_written(weights: Sequence[Tensor], held: Sequence[Held], manual: bool) -> None:
    """After the rowwise data of weights has changed: every row has a value, and old columnwise data is unreachable."""
    stale = Columnwise.MANUAL if manual else Columnwise.STALE
    for each in held:
        each.missing = ()
        if each.state is not Columnwise.NONE:
            each.state = stale
    torch.autograd.graph.increment_version(weights)
