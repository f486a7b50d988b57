# SPDX-License-Identifier: Apache-2.0
"""NVFP4 parameters from their stepped masters, by the code of `cast_master_weights_to_nvfp4`.

A parameter is a whole weight or rows of one. Rows start at tile boundaries, so that the ranks share no tile, and only
the amax is reduced: over the mesh of a DTensor, or over the optimizer's group.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..distributed.master_cast import cast
from ..distributed.post_gather import post_all_gather_processing
from ..tensor import NVFP4Tensor
from .param_state import is_dtensor


class WriteBack:
    """Quantizes parameters in place, in one cast for each process group, device and nominal dtype."""

    def __init__(self, group: Any, rounded: bool) -> None:
        self._group = group
        self._rounded = rounded

    def __call__(self, written: list[tuple[NVFP4Tensor, Tensor, Tensor]]) -> None:
        """Casts (local parameter, its master, the parameter) of every NVFP4 parameter that was stepped."""
        lists: dict[tuple[int, torch.device, torch.dtype], tuple[Any, list[NVFP4Tensor], list[Tensor]]] = {}
        for values, master, param in written:
            group = _mesh_group(param) if is_dtensor(param) else self._group
            found = lists.setdefault((id(group), values.device, values.dtype), (group, [], []))
            found[1].append(values)
            found[2].append(master)
        for group, weights, masters in lists.values():
            cast(
                weights, masters, [0] * len(weights), group, None, manual=False, rounded=self._rounded,
                tiles_shared=False,
            )  # fmt: skip
            post_all_gather_processing([weight for weight in weights if weight._held.columnwise is not None])


def _mesh_group(param: Any) -> Any:
    """The ranks that hold the other rows of a DTensor: those of the mesh dimension that shards it, or None."""
    sharded = [dim for dim, placement in enumerate(param.placements) if placement.is_shard()]
    if not sharded:
        return None
    return param.device_mesh.get_group(sharded[-1])
