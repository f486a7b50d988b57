# SPDX-License-Identifier: Apache-2.0
"""The run that sharded runs are compared with: one process, whole weights, every rank's part of the batch in turn."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from blockscale import NVFP4Tensor
from blockscale.optim import FusedAdam
from tests.distributed.models import MODELS

RATE = 2e-3


def masters_of(model: nn.Module) -> dict[str, torch.Tensor]:
    """FP32 masters that all runs start from: the decoded weights, so that they can be told from a parameter alone."""
    return {
        name: (p.dequantize(torch.float32) if isinstance(p, NVFP4Tensor) else p).detach().clone()
        for name, p in model.named_parameters()
    }


def _summed_gradients(model: nn.Module, loss: Any, step: int, ranks: int) -> tuple[list[float], list[torch.Tensor]]:
    """Losses of all ranks' parts, and the FP32 sum of their gradients, in the order of the ranks."""
    losses, totals = [], None
    for rank in range(ranks):
        for p in model.parameters():
            p.grad = None
        value = loss(model, step, rank)
        value.backward()
        losses.append(value.item())
        grads = [p.grad.float() for p in model.parameters()]
        totals = grads if totals is None else [a + b for a, b in zip(totals, grads, strict=True)]
    assert totals is not None
    return losses, totals


def whole_run(
    name: str, steps: int, ranks: int, device: torch.device, gradient_dtype: torch.dtype = torch.float32
) -> tuple[list[list[float]], nn.Module]:
    """Without shards: masters are rounded to BF16, and whole BF16 weights are quantized each step.

    Returns:
        The loss of each rank's part at each step, and the model after the last one.
    """
    make, loss = MODELS[name]
    model = make().to(device)
    masters = [nn.Parameter(m) for m in masters_of(model).values()]
    optimizer = FusedAdam(masters, lr=RATE)
    history = []
    for step in range(steps):
        losses, totals = _summed_gradients(model, loss, step, ranks)
        history.append(losses)
        for master, total in zip(masters, totals, strict=True):
            master.grad = (total / ranks).to(gradient_dtype).float()
        optimizer.step()
        with torch.no_grad():
            for p, master in zip(model.parameters(), masters, strict=True):
                if isinstance(p, NVFP4Tensor):
                    p.quantize_(master.to(torch.bfloat16))
                else:
                    p.copy_(master)
    return history, model
