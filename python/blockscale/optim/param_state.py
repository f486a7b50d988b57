# SPDX-License-Identifier: Apache-2.0
"""The state that `FusedAdam` keeps for a parameter: FP32 tensors of its local shape, whatever the parameter is made of.

A DTensor's state is DTensors of the same placement, so that distributed checkpoints treat it as any other.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch import Tensor

from .._codes import FLOAT_INPUTS
from ..errors import type_error, value_error
from ..tensor import NVFP4Tensor
from .adam_list import AdamItem

OP = "FusedAdam"
FLOAT_STATE = ("exp_avg", "exp_avg_sq", "master")
"""Keys of the state that are FP32 and never rounded to the parameter's dtype."""


def is_dtensor(tensor: Tensor) -> bool:
    """Whether it is a torch.distributed.tensor.DTensor; does not import that package, which takes a second."""
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(tensor, module.DTensor)


def local(tensor: Tensor) -> Tensor:
    """This rank's part of a DTensor, sharing storage; any other tensor itself."""
    return tensor._local_tensor if is_dtensor(tensor) else tensor  # type: ignore[attr-defined]


def local_grad(param: Tensor) -> Tensor:
    """The gradient as a plain tensor in the order of the parameter's elements; copied only where strides differ.

    Raises:
        TypeError: sparse, of another dtype than float32, bfloat16 and float16, or itself NVFP4.
    """
    grad = param.grad
    if grad is None:
        raise value_error(OP, "grad", "there", None)
    grad = local(grad)
    if isinstance(grad, NVFP4Tensor) or grad.layout is not torch.strided or grad.dtype not in FLOAT_INPUTS:
        got = f"{type(grad).__name__} of {grad.dtype}, {grad.layout}"
        raise type_error(OP, "grad", "a dense float32, bfloat16 or float16 tensor", got)
    values = local(param)
    strides = torch.empty(values.shape, device="meta").stride() if isinstance(values, NVFP4Tensor) else values.stride()
    if grad.stride() == strides or (grad.is_contiguous() and row_major(values)):
        return grad
    return torch.empty_strided(values.shape, strides, dtype=grad.dtype, device=grad.device).copy_(grad)


def row_major(values: Tensor) -> bool:
    """Whether elements stand in row-major order; NVFP4 data counts as such."""
    return isinstance(values, NVFP4Tensor) or values.is_contiguous()


def check_param(param: Tensor) -> None:
    """A parameter that can be stepped.

    Raises:
        TypeError: of another dtype than float32, bfloat16 and float16. ValueError: elements that overlap or have gaps.
    """
    values = local(param)
    if values.dtype not in FLOAT_INPUTS or values.layout is not torch.strided:
        raise type_error(OP, "params", "of dense float32, bfloat16 or float16", f"{values.dtype}, {values.layout}")
    if not row_major(values) and not _is_dense(values):
        raise value_error(OP, "params", "dense, without gaps or overlaps", f"strides {values.stride()}")


def _is_dense(values: Tensor) -> bool:
    """Whether the elements fill a run of memory, in any order of the axes."""
    expected = 1
    for size, stride in sorted(zip(values.shape, values.stride(), strict=True), key=lambda axis: axis[1]):
        if size != 1 and stride != expected:
            return False
        expected *= size
    return True


def has_own_master(param: Tensor) -> bool:
    """Whether the FP32 master is a tensor of its own: for all but FP32 parameters."""
    values = local(param)
    return isinstance(values, NVFP4Tensor) or values.dtype is not torch.float32


def init_state(param: Tensor, state: dict[str, Any], given_master: Tensor | None) -> None:
    """Fills in what the state lacks: zeros, step 0, and the master.

    The master is `given_master` in FP32; without one, the parameter's value: for NVFP4 its dequantized value, which has
    lost what quantizing lost.

    Raises:
        ValueError: a given master of another shape; an NVFP4 parameter that cannot be read.
    """
    values = local(param)
    for name in ("exp_avg", "exp_avg_sq"):
        if name not in state:
            state[name] = _around(param, _new_zeros(values))
    if "step" not in state:
        state["step"] = torch.zeros((), dtype=torch.float32, device=values.device)
    if has_own_master(param) and "master" not in state:
        if given_master is None:
            with torch.no_grad():
                source = values.dequantize(torch.float32) if isinstance(values, NVFP4Tensor) else values
        else:
            source = local(given_master).detach()
            if source.shape != values.shape:
                raise value_error(OP, "master_weights", f"of shape {tuple(values.shape)}", tuple(source.shape))
        state["master"] = _around(param, _new_zeros(values).copy_(source))


def _new_zeros(values: Tensor) -> Tensor:
    """FP32 zeros in the order of the parameter's elements."""
    if row_major(values):
        return torch.zeros(values.shape, dtype=torch.float32, device=values.device)
    return torch.zeros_like(values, dtype=torch.float32, memory_format=torch.preserve_format)


def _around(param: Tensor, part: Tensor) -> Tensor:
    """A local tensor as a DTensor of the parameter's placement, if the parameter is one."""
    if not is_dtensor(param):
        return part
    module = sys.modules["torch.distributed.tensor"]
    made: Tensor = module.DTensor.from_local(
        part, param.device_mesh, param.placements, run_check=False, shape=param.shape, stride=param.stride(),  # type: ignore[attr-defined]
    )  # fmt: skip
    return made


def pack_steps(states: list[dict[str, Any]], device: torch.device) -> Tensor:
    """The states' step counts as one tensor (n,), of which each state then holds an element: one launch counts all."""
    packed = torch.stack([state["step"].to(device=device, dtype=torch.float32).reshape(()) for state in states])
    for index, state in enumerate(states):
        state["step"] = packed[index]
    return packed


def item_of(param: Tensor, state: dict[str, Any]) -> AdamItem:
    """What the kernel works on.

    Raises:
        TypeError: state of another dtype than float32. ValueError: state of another shape or order.
    """
    values = local(param)
    parts = {name: local(state[name]) for name in FLOAT_STATE if name in state}
    for name, part in parts.items():
        if part.dtype is not torch.float32:
            raise type_error(OP, f"state[{name!r}]", "float32", part.dtype)
        fits = part.is_contiguous() if row_major(values) else part.stride() == values.stride()
        if part.shape != values.shape or not fits or part.device != values.device:
            got = f"{tuple(part.shape)} with strides {part.stride()} on {part.device}"
            rule = f"of shape {tuple(values.shape)} in the order of the parameter on {values.device}"
            raise value_error(OP, f"state[{name!r}]", rule, got)
    master = parts.get("master", values.detach())
    copy = values.detach() if has_own_master(param) and not isinstance(values, NVFP4Tensor) else None
    return AdamItem(master, parts["exp_avg"], parts["exp_avg_sq"], state["step"], copy)
