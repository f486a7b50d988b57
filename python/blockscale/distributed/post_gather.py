# SPDX-License-Identifier: Apache-2.0
"""`post_all_gather_processing`: the columnwise data of weights whose rowwise codes have just been gathered."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch

from .._codes import layout_code
from ..primary_ops import TRANSPOSE, run_items, transpose_list, upload_table
from ..tensor import NVFP4Tensor
from ..tensor.held import Columnwise, Held
from .facts import check_weights
from .plans import PlanCache, stream_of

_OP = "post_all_gather_processing"


class TransposePlan:
    """One launch that transposes a list of weights. Keeps none of them alive."""

    def __init__(self, held: Sequence[Held], device: torch.device, forget: Callable[[], None]) -> None:
        columns = [each.columnwise_buffer() for each in held]  # which needs rowwise data
        rows = [row for each in held if (row := each.rowwise) is not None]
        self._device = device
        self._items = transpose_list(
            [row.qdata for row in rows], [row.block_scale.view(torch.uint8) for row in rows],
            [row.amax for row in rows], [layout_code(row.layout) for row in rows],
            [row.format.e4m3_max for row in rows], [column.qdata for column in columns],
            [column.block_scale.view(torch.uint8) for column in columns], [column.amax for column in columns],
        )  # fmt: skip
        self._table = upload_table(self._items, TRANSPOSE, device, wait=False)
        pairs = list(zip(rows, columns, strict=True))
        self._operands = [(weakref.ref(row, lambda _: forget()), weakref.ref(column)) for row, column in pairs]
        self._codes = [(row.qdata.data_ptr(), column.qdata.data_ptr()) for row, column in pairs]

    def fits(self, held: Sequence[Held]) -> bool:
        """Whether it was made for these weights, and their codes are where they were."""
        for each, (row, column), codes in zip(held, self._operands, self._codes, strict=True):
            p, q = each.rowwise, each.columnwise
            if p is None or q is None or p is not row() or q is not column():
                return False
            if (p.qdata.data_ptr(), q.qdata.data_ptr()) != codes:
                return False
        return True

    def run(self) -> None:
        """The launch."""
        run_items(self._items, TRANSPOSE, self._device)


_plans: PlanCache[TransposePlan] = PlanCache()


def post_all_gather_processing(model_weights: Sequence[NVFP4Tensor]) -> None:
    """Makes the columnwise data of weights from their rowwise data, which must be whole: call it after the gather.

    One launch for the list, into the columnwise buffers that are there (allocated if there are none). Weights that want
    no columnwise data are left alone. No collective; a second call writes the same bytes.

    Args:
        model_weights: NVFP4Tensors as for `cast_master_weights_to_nvfp4`, M a multiple of 16 where columnwise is
            wanted.

    Raises:
        TypeError, ValueError: an entry that is no such weight, or is there twice.
    """
    if isinstance(model_weights, (list, tuple)) and not model_weights:
        return
    key: Any = None
    plan = None
    held = wanted_of(model_weights)
    if held:
        key = (tuple(map(id, held)), stream_of(model_weights[0].device))
        plan = _plans.get(key)
    if plan is None or not plan.fits(held):
        check_weights(_OP, model_weights)
        if not held:
            return
        plan = TransposePlan(held, model_weights[0].device, lambda: _plans.discard(key))
        _plans.put(key, plan)
    plan.run()
    for each in held:
        each.state = Columnwise.READY


def wanted_of(weights: Any) -> list[Held]:
    """What is behind those weights that want columnwise data; entries of other types are skipped."""
    if not isinstance(weights, (list, tuple)):
        return []
    return [w._held for w in weights if isinstance(w, NVFP4Tensor) and w._held.wants_columnwise]
