# SPDX-License-Identifier: Apache-2.0
"""Weights that are sharded over ranks: from FP32 masters to NVFP4. Start with `master_cast.py`."""

from .master_cast import cast_master_weights_to_nvfp4
from .post_gather import post_all_gather_processing
from .ranges import ElementRange, PackedRange, packed_range, shard_range

__all__ = [
    "ElementRange",
    "PackedRange",
    "cast_master_weights_to_nvfp4",
    "packed_range",
    "post_all_gather_processing",
    "shard_range",
]
