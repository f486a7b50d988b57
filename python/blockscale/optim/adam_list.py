# SPDX-License-Identifier: Apache-2.0
"""One Adam step over a list of tensors: one native call, and on a GPU one launch, whatever the list's length.

The formulas are numerics, section 18. `fused_adam.py` is the optimizer above.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .._codes import DTYPE_CODE
from .._native import _C, backend_of, launch_on
from .._table import DeviceTable


@dataclass(frozen=True)
class AdamItem:
    """One tensor's state. All are contiguous in one order, on one device.

    Attributes:
        master: float32; updated.
        exp_avg: float32; updated.
        exp_avg_sq: float32; updated.
        step: float32 scalar on the device: the number of the step to take, 1 for the first.
        copy: where the new master is written too, rounded to this tensor's dtype; or None.
    """

    master: Tensor
    exp_avg: Tensor
    exp_avg_sq: Tensor
    step: Tensor
    copy: Tensor | None = None


@dataclass(frozen=True)
class AdamSettings:
    """What all tensors of a list share; `lr` is a float or a float32 scalar on the device."""

    lr: float | Tensor
    betas: tuple[float, float]
    eps: float
    weight_decay: float
    maximize: bool
    adam_w_mode: bool


class AdamList:
    """A list of tensors that are stepped together, and its descriptors on the device."""

    def __init__(self, items: Sequence[AdamItem], grads: Sequence[Tensor]) -> None:
        self._tensors = tuple(items)  # kept alive: the descriptors hold addresses
        self._device = items[0].master.device
        self._table = DeviceTable(self._device)
        self._backend = backend_of("FusedAdam", self._device)
        self._items = _C.AdamItems()
        for item, grad in zip(items, grads, strict=True):
            copy, copy_dtype = (item.copy.data_ptr(), item.copy.dtype) if item.copy is not None else (0, torch.float32)
            self._items.append(
                item.master.data_ptr(), item.exp_avg.data_ptr(), item.exp_avg_sq.data_ptr(), grad.data_ptr(), copy,
                item.step.data_ptr(), item.master.numel(), DTYPE_CODE[grad.dtype], DTYPE_CODE[copy_dtype],
            )  # fmt: skip
        self._table.write(self._items.bytes())
        self.grad_dtypes = tuple(grad.dtype for grad in grads)

    def run(
        self,
        grads: Sequence[Tensor],
        settings: AdamSettings,
        inv_scale: Tensor | None = None,
        found_inf: Tensor | None = None,
    ) -> None:
        """Takes one step. The gradients have the dtypes, shapes and order of the constructor's.

        Args:
            grads: contiguous, on the device; only their addresses may have changed.
            settings: learning rate and the like.
            inv_scale: float32 scalar on the device that gradients are multiplied by.
            found_inf: float32 scalar on the device; where it is not 0, nothing is written.
        """
        if self._items.set_grads([grad.data_ptr() for grad in grads]):
            self._table.write(self._items.bytes())
        lr = settings.lr
        lr_tensor = lr.data_ptr() if isinstance(lr, Tensor) else 0
        problem = _C.AdamProblem(
            self._items, self._table.address, 0.0 if isinstance(lr, Tensor) else float(lr), float(settings.betas[0]),
            float(settings.betas[1]), float(settings.eps), float(settings.weight_decay), 0, settings.maximize,
            settings.adam_w_mode, lr_tensor, _address(inv_scale), _address(found_inf),
        )  # fmt: skip
        self._backend.adam(problem, launch_on(self._device))


def _address(tensor: Tensor | None) -> int:
    return 0 if tensor is None else tensor.data_ptr()
