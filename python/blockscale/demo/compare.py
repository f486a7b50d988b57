# SPDX-License-Identifier: Apache-2.0
"""What NVFP4 changes: the error of each layer, and of the embeddings at the end."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .model import Batch, embed_batch


@dataclass(frozen=True)
class LayerError:
    """Relative errors ``|y_nvfp4 - y_fp32| / |y_fp32|`` (Frobenius norms over all real tokens) of one layer.

    Attributes:
        name: the layer's name in the model.
        kind: its name inside its block ("attention.self.query"), the same at every depth.
        depth: number of its block; None outside blocks.
        in_features, out_features: K and N.
        same_input: error when both layers are fed what the FP32 model feeds it: this layer's own.
        propagated: error when each model feeds its own: with that of all layers before.
    """

    name: str
    kind: str
    depth: int | None
    in_features: int
    out_features: int
    same_input: float
    propagated: float


@dataclass(frozen=True)
class EmbeddingComparison:
    """FP32 and NVFP4 embeddings of the same sentences.

    Attributes:
        cosines: cosine similarity of the two embeddings of each sentence.
        neighbours: for each sentence, the index of the nearest other one, (in FP32, in NVFP4).
    """

    cosines: tuple[float, ...]
    neighbours: tuple[tuple[int, int], ...]

    @property
    def agreements(self) -> int:
        """Sentences whose nearest neighbour is the same."""
        return sum(p == q for p, q in self.neighbours)

    def within_groups(self, size: int) -> tuple[int, int]:
        """Sentences whose nearest neighbour is in their own group of `size` consecutive ones, (in FP32, in NVFP4)."""
        same = [(p // size == i // size, q // size == i // size) for i, (p, q) in enumerate(self.neighbours)]
        return sum(p for p, _ in same), sum(q for _, q in same)


class _Sums:
    """Squared norms of one layer, summed over batches."""

    def __init__(self) -> None:
        self.reference = 0.0
        self.same_input = 0.0
        self.propagated = 0.0


def layer_errors(
    reference: torch.nn.Module,
    converted: torch.nn.Module,
    names: Sequence[str],
    batches: Sequence[Batch],
    on_layer: Callable[[str], None],
) -> list[LayerError]:
    """Runs both models on all batches and compares the output of each converted layer; padding is left out.

    Args:
        reference: the FP32 model.
        converted: the same with NVFP4 layers.
        names: the converted layers, in the order of the model.
        batches: model inputs with an attention_mask.
        on_layer: called for each layer of each batch.
    """
    sums = {name: _Sums() for name in names}
    outputs: dict[str, list[Tensor]] = defaultdict(list)
    mask = torch.empty(0)

    def watch_reference(name: str) -> Callable[[torch.nn.Module, tuple[Tensor, ...], Tensor], None]:
        layer = converted.get_submodule(name)

        def hook(module: torch.nn.Module, args: tuple[Tensor, ...], y: Tensor) -> None:
            sums[name].reference += _square(_real(y, mask))
            sums[name].same_input += _square(_real(layer(args[0]) - y, mask))
            outputs[name].append(y)
            on_layer(name)

        return hook

    def watch_converted(name: str) -> Callable[[torch.nn.Module, tuple[Tensor, ...], Tensor], None]:
        def hook(module: torch.nn.Module, args: tuple[Tensor, ...], y: Tensor) -> None:
            sums[name].propagated += _square(_real(y - outputs[name].pop(0), mask))

        return hook

    for batch in batches:
        mask = batch["attention_mask"].bool()
        # One model at a time: the hooks of the first call layers of the second.
        for model, watch in ((reference, watch_reference), (converted, watch_converted)):
            handles = [model.get_submodule(name).register_forward_hook(watch(name)) for name in names]
            try:
                embed_batch(model, batch)
            finally:
                for handle in handles:
                    handle.remove()
    return [_layer_error(name, converted.get_submodule(name), sums[name]) for name in names]


def compare_embeddings(fp32: Tensor, nvfp4: Tensor) -> EmbeddingComparison:
    """Compares embeddings (N, hidden) of norm 1, N at least 2."""
    cosines = (fp32.double() * nvfp4.double()).sum(dim=1)
    pairs = zip(_nearest(fp32), _nearest(nvfp4), strict=True)
    return EmbeddingComparison(tuple(cosines.tolist()), tuple(pairs))


def _nearest(embeddings: Tensor) -> list[int]:
    similarity = embeddings @ embeddings.T
    similarity.fill_diagonal_(-2.0)
    return [int(index) for index in similarity.argmax(dim=1)]


def _layer_error(name: str, layer: torch.nn.Module, sums: _Sums) -> LayerError:
    match = re.search(r"(?:^|\.)(\d+)\.", name)
    kind, depth = (name[match.end() :], int(match.group(1))) if match else (name, None)
    in_features, out_features = (int(getattr(layer, field)) for field in ("in_features", "out_features"))

    def relative(square: float) -> float:
        return float((square / sums.reference) ** 0.5) if sums.reference > 0 else 0.0

    return LayerError(
        name, kind, depth, in_features, out_features, relative(sums.same_input), relative(sums.propagated)
    )


def _real(y: Tensor, mask: Tensor) -> Tensor:
    """The rows of real tokens, where y is (B, T, ...)."""
    return y[mask] if y.shape[:2] == mask.shape else y


def _square(y: Tensor) -> float:
    return float(y.double().square().sum())
