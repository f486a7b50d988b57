# SPDX-License-Identifier: Apache-2.0
"""`NVFP4Tensor`: NVFP4 data as a `torch.Tensor` subclass. Start with `nvfp4_tensor.py`."""

from . import dispatch  # noqa: F401  (fills the table of ops)
from .nvfp4_tensor import NVFP4Tensor

__all__ = ["NVFP4Tensor"]
