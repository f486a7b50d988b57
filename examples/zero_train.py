# SPDX-License-Identifier: Apache-2.0
"""ZeRO-1 with NVFP4 weights: FP32 masters are sharded, weights are cast in place and gathered as packed codes.

torchrun --nproc_per_node=2 examples/zero_train.py                  on a CPU
torchrun --nproc_per_node=2 examples/zero_train.py --device cuda    one GPU a rank
"""

from __future__ import annotations

import argparse
import itertools
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional

import blockscale as bs
from blockscale import NVFP4Tensor
from blockscale.distributed import packed_range, shard_range
from blockscale.optim import FusedAdam

WIDTHS = (128, 512, 256, 128)


class Layer(nn.Module):
    """x @ weight.T with an NVFP4 weight."""

    def __init__(self, values: torch.Tensor) -> None:
        super().__init__()
        self.weight = nn.Parameter(NVFP4Tensor.quantize(values.bfloat16(), block=(16, 16), columnwise=True))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.linear(x, self.weight.dequantize().float())


class Zero:
    """The sharded half of training: this rank's masters, their optimizer, and the way back into the weights."""

    def __init__(self, weights: list[nn.Parameter], initial: list[torch.Tensor], lr: float) -> None:
        rank, ranks = dist.get_rank(), dist.get_world_size()
        self.weights = weights
        self.runs = [shard_range(w.numel(), rank, ranks) for w in weights]
        self.masters = [
            nn.Parameter(values.view(-1)[run.start : run.stop].clone())
            for values, run in zip(initial, self.runs, strict=True)
        ]
        self.optimizer = FusedAdam(self.masters, lr=lr, weight_decay=0.0)

    def step(self) -> None:
        for weight, master, run in zip(self.weights, self.masters, self.runs, strict=True):
            grad = weight.grad.float()
            dist.all_reduce(grad)  # a reduce-scatter in earnest
            master.grad = (grad / dist.get_world_size()).view(-1)[run.start : run.stop]
            weight.grad = None
        self.optimizer.step()
        bs.cast_master_weights_to_nvfp4(self.weights, self.masters, [run.start for run in self.runs])
        for weight, run in zip(self.weights, self.runs, strict=True):
            codes, mine = weight.rowwise.qdata.view(-1), packed_range(run)
            dist.all_gather_into_tensor(codes, codes[mine.start : mine.stop].clone())
        bs.post_all_gather_processing(self.weights)


def train(device: torch.device, steps: int) -> list[float]:
    """The loss of each step, averaged over the ranks."""
    gen = torch.Generator().manual_seed(0)  # the same weights on every rank
    shapes = [(n, k) for k, n in itertools.pairwise(WIDTHS)]
    initial = [(torch.randn(n, k, generator=gen) * k**-0.5).to(device) for n, k in shapes]
    layers = [Layer(values) for values in initial]
    model = nn.Sequential(*[part for layer in layers[:-1] for part in (layer, nn.GELU())], layers[-1])
    zero = Zero([layer.weight for layer in layers], initial, lr=2e-3)
    data = torch.Generator().manual_seed(1 + dist.get_rank())  # other samples on every rank
    losses = []
    for _ in range(steps):
        x = torch.randn(64, WIDTHS[0], generator=data).to(device)
        loss = (model(x) - x.roll(1, dims=1)).square().mean()
        loss.backward()
        zero.step()
        mean = loss.detach()
        dist.all_reduce(mean)
        losses.append(mean.item() / dist.get_world_size())
    return losses


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--steps", type=int, default=100)
    options = parser.parse_args()
    device = torch.device(options.device, int(os.environ["LOCAL_RANK"]) if options.device == "cuda" else None)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    losses = train(device, options.steps)
    if dist.get_rank() == 0:
        for step in range(0, options.steps, max(1, options.steps // 10)):
            print(f"step {step:4d}  loss {losses[step]:.4f}")
        print(f"step {options.steps - 1:4d}  loss {losses[-1]:.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
