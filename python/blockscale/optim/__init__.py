# SPDX-License-Identifier: Apache-2.0
"""Optimizers that keep FP32 master weights: start with `FusedAdam`."""

from .fused_adam import FusedAdam

__all__ = ["FusedAdam"]
