# SPDX-License-Identifier: Apache-2.0
"""One step of Adam or AdamW in plain torch, one FP32 operation a line. numerics, section 18."""

from __future__ import annotations

import math

import torch

from .fp32 import constant, divide, ieee_subnormals


def adam(
    master: torch.Tensor,
    exp_avg: torch.Tensor,
    exp_avg_sq: torch.Tensor,
    grad: torch.Tensor,
    *,
    step: int,
    lr: float = 1e-3,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
    weight_decay: float = 1e-2,
    adam_w_mode: bool = True,
    maximize: bool = False,
    inv_scale: float = 1.0,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The state after one step, as new tensors.

    Args:
        master: float32, of any shape.
        exp_avg: float32, the running mean of gradients.
        exp_avg_sq: float32, the running mean of squared gradients.
        grad: float32, bfloat16 or float16.
        step: number of this step; 1 for the first.
        lr: learning rate.
        betas: decay of the two running means.
        eps: added to the root of the second one.
        weight_decay: decay of the master: decoupled (AdamW), or added to the gradient (L2).
        adam_w_mode: True for AdamW.
        maximize: climb instead of descend.
        inv_scale: what gradients are multiplied by; a float32 value.

    Returns:
        master, exp_avg, exp_avg_sq; float32.
    """
    correction1 = 1.0 - _power(betas[0], step)  # FP64, as all Python arithmetic
    correction2 = 1.0 - _power(betas[1], step)
    decay = lr * weight_decay
    with ieee_subnormals():

        def narrow(value: float) -> torch.Tensor:
            return torch.tensor(value, dtype=torch.float64, device=master.device).to(torch.float32)

        g = grad.to(torch.float32) * constant(-inv_scale if maximize else inv_scale, master)
        if not adam_w_mode and float(narrow(weight_decay)) != 0.0:
            g = g + master * narrow(weight_decay)
        kept = master * narrow(1.0 - decay) if adam_w_mode else master
        old_mean = exp_avg * narrow(betas[0])
        new_mean = g * narrow(1.0 - betas[0])
        old_square = exp_avg_sq * narrow(betas[1])
        new_square = (g * g) * narrow(1.0 - betas[1])
        mean = old_mean + new_mean
        square = old_square + new_square
        root = _square_root(square)
        corrected = root * narrow(1.0 / math.sqrt(correction2))
        ratio = divide(mean, corrected + narrow(eps))
        return kept - ratio * narrow(lr / correction1), mean, square


def _square_root(x: torch.Tensor) -> torch.Tensor:
    """The correctly rounded FP32 root, which torch.sqrt of FP32 on a CPU is not.

    By way of FP64: no root of an FP32 number is closer than 2^-50 (relative) to the middle between two FP32 numbers, so
    an FP64 root that is a unit off still rounds to the right one.
    """
    return torch.sqrt(x.to(torch.float64)).to(torch.float32)


def _power(beta: float, step: int) -> float:
    """beta^step by squaring: the order of the products is part of the contract."""
    result, square = 1.0, beta
    while step > 0:
        if step & 1:
            result = result * square
        square = square * square
        step >>= 1
    return result
