# SPDX-License-Identifier: Apache-2.0
"""Two small models whose matrices are NVFP4Tensor parameters, for runs that are compared bit by bit.

A layer decodes its weight and multiplies with torch: what is tested is how weights come to be, not the product.
"""

from __future__ import annotations

import itertools

import torch
from torch import Tensor, nn
from torch.nn import functional

from blockscale import NVFP4Tensor


class Layer(nn.Module):
    """x @ weight.T; the weight is NVFP4, float32 nominally, so that gradients are float32."""

    def __init__(self, values: Tensor, columnwise: bool = True) -> None:
        super().__init__()
        quantized = NVFP4Tensor.quantize(values, block=(16, 16), columnwise=columnwise)
        self.weight = nn.Parameter(quantized)

    def forward(self, x: Tensor) -> Tensor:
        weight = self.weight
        values = weight.dequantize() if isinstance(weight, NVFP4Tensor) else weight
        return functional.linear(x, values.to(x.dtype))


class MLP(nn.Module):
    """128 - 320 - 768 - 128."""

    WIDTHS = (128, 320, 768, 128)

    def __init__(self, dtype: torch.dtype = torch.bfloat16) -> None:
        super().__init__()
        gen = torch.Generator().manual_seed(1)
        pairs = itertools.pairwise(self.WIDTHS)
        values = [torch.randn(n, k, generator=gen) * k**-0.5 for k, n in pairs]
        self.layers = nn.ModuleList(Layer(v.to(dtype)) for v in values)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers[:-1]:
            x = functional.gelu(layer(x))
        return self.layers[-1](x)


class Transformer(nn.Module):
    """One block of attention and MLP over tokens, with float32 embeddings and NVFP4 matrices."""

    VOCABULARY, WIDTH, HEADS = 48, 64, 2

    def __init__(self, dtype: torch.dtype = torch.bfloat16) -> None:
        super().__init__()
        gen = torch.Generator().manual_seed(2)
        width = self.WIDTH

        def layer(n: int, k: int) -> Layer:
            return Layer((torch.randn(n, k, generator=gen) * k**-0.5).to(dtype))

        self.embedding = nn.Parameter(torch.randn(self.VOCABULARY, width, generator=gen) * 0.5)
        self.qkv, self.out = layer(3 * width, width), layer(width, width)
        self.up, self.down = layer(2 * width, width), layer(width, 2 * width)
        self.head = layer(self.VOCABULARY, width)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding[tokens]
        batch, length, width = x.shape
        heads = functional.layer_norm(x, (width,))
        q, k, v = self.qkv(heads).view(batch, length, 3, self.HEADS, -1).permute(2, 0, 3, 1, 4)
        mask = torch.ones(length, length, dtype=torch.bool, device=x.device).tril()
        scores = (q @ k.transpose(-1, -2)) * (width // self.HEADS) ** -0.5
        mixed = scores.masked_fill(~mask, float("-inf")).softmax(-1) @ v
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        x = x + self.down(functional.gelu(self.up(functional.layer_norm(x, (width,)))))
        return self.head(functional.layer_norm(x, (width,)))


def _device(model: nn.Module) -> torch.device:
    return next(model.parameters()).device


def mlp_loss(model: nn.Module, step: int, rank: int) -> Tensor:
    """The loss on this rank's part of a batch: a fixed random map is learned."""
    gen = torch.Generator().manual_seed(step * 64 + rank)
    x = torch.randn(8, MLP.WIDTHS[0], generator=gen).to(_device(model))
    return (model(x) - x.roll(1, 1)).square().mean()


def transformer_loss(model: nn.Module, step: int, rank: int) -> Tensor:
    """Next-token loss on this rank's part of a batch: each token follows from the last by a fixed rule."""
    gen = torch.Generator().manual_seed(step * 64 + rank)
    start = torch.randint(0, Transformer.VOCABULARY, (4, 1), generator=gen)
    tokens = ((start + torch.arange(13) * 5) % Transformer.VOCABULARY).to(_device(model))
    return functional.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())


MODELS = {"MLP": (MLP, mlp_loss), "transformer": (Transformer, transformer_loss)}
