# SPDX-License-Identifier: Apache-2.0
"""The steps of `blockscale demo`: load, convert, measure, embed, print, draw."""

from __future__ import annotations

import copy
import importlib.util
import json
import re
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .. import evidence, nn
from .._terminal import Terminal, UsageError
from ..info import cuda_state
from ..version import __version__
from .compare import EmbeddingComparison, LayerError, compare_embeddings, layer_errors
from .model import Batch, embed, find_model, load, tokenize
from .sentences import GROUP, SENTENCES

RECIPE = nn.Recipe(row_scaled_activation=True, weight_block=(16, 16), skip=("pooler.*",))
"""2D weights and an amax for each token; a pooler takes no part in mean pooling and stays as it is."""

_BATCH = 16
_REPEATS = 3


@dataclass(frozen=True)
class Options:
    """Arguments of the command; None stands for the default.

    Attributes:
        model: a Hugging Face folder.
        sentences: a file with one sentence a line.
        out: where the figure goes.
        json: where the numbers go, if anywhere.
        device: "cpu" or "cuda".
    """

    model: Path | None = None
    sentences: Path | None = None
    out: Path | None = None
    json: Path | None = None
    device: str = "cpu"


def run(options: Options, terminal: Terminal) -> dict[str, Any]:
    """Runs the demo, prints its results and saves the figure.

    Returns:
        What is written to options.json: numbers as JSON holds them.

    Raises:
        UsageError: a missing package, file or device; a model without a layer to convert.
    """
    _check_packages()
    _check_device(options.device)
    folder, name = find_model(options.model)
    out = options.out or Path(f"demo-{re.sub(r'[^A-Za-z0-9._-]+', '-', name)}.png")
    for path in (out, options.json):
        if path is not None and not path.resolve().parent.is_dir():
            raise UsageError(f"{path} cannot be written: its folder does not exist")
    sentences = _read_sentences(options.sentences)
    reference, tokenizer = load(folder, options.device)
    terminal.line(f"{name}: FP32 against NVFP4 on {options.device}", style="bold")
    terminal.line(f"{RECIPE}; {len(sentences)} sentences, mean pooling, L2 norm")

    converted, report = _converted(reference, terminal)
    batches = tokenize(reference, tokenizer, sentences, _BATCH, options.device)
    with torch.inference_mode():
        with terminal.progress("comparing layers", len(report.converted) * len(batches)) as step:
            layers = layer_errors(reference, converted, report.converted, batches, step)
        fp32, nvfp4, seconds = _timed(reference, converted, batches, terminal)
    embeddings = compare_embeddings(fp32, nvfp4)

    _show_sizes(report, terminal)
    _show_layers(layers, terminal)
    _show_embeddings(embeddings, sentences, terminal)
    _show_times(seconds, options.device, terminal)
    from .figure import draw

    summary = f"{len(layers)} linear layers, {len(sentences)} sentences, median cosine {_median(embeddings):.4f}"
    draw(layers, f"{name} in NVFP4: error of each linear layer", f"{RECIPE}\n{summary}", out)
    terminal.line()
    terminal.line(f"figure: {out}")
    result = _as_json(name, options.device, report, layers, embeddings, seconds, sentences)
    if options.json is not None:
        _write(options.json, json.dumps(result, indent=2) + "\n")
        terminal.line(f"numbers: {options.json}")
    return result


def _check_packages() -> None:
    missing = [name for name in ("transformers", "safetensors", "matplotlib") if importlib.util.find_spec(name) is None]
    if missing:
        raise UsageError(f"{', '.join(missing)} not installed: pip install blockscale[demo]")


def _check_device(device: str) -> None:
    if device == "cuda":
        cuda = cuda_state()
        if not cuda.usable:
            raise UsageError(f"--device cuda cannot be used: {cuda.reason}")


def _read_sentences(path: Path | None) -> list[str]:
    if path is None:
        return list(SENTENCES)
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} cannot be read: {error}") from error
    sentences = [line.strip() for line in lines if line.strip()]
    if len(sentences) < 2:
        raise UsageError(f"{path} holds {len(sentences)} sentences; two are needed to have a neighbour")
    return sentences


def _converted(reference: torch.nn.Module, terminal: Terminal) -> tuple[torch.nn.Module, nn.ConversionReport]:
    converted = copy.deepcopy(reference)
    total = sum(isinstance(module, torch.nn.Linear) for module in reference.modules())
    with terminal.progress("converting", total) as step:
        report = nn.convert(converted, RECIPE, on_layer=step)
    if not report.converted:
        raise UsageError("the model has no torch.nn.Linear that can be converted")
    return converted, report


def _timed(
    reference: torch.nn.Module, converted: torch.nn.Module, batches: Sequence[Batch], terminal: Terminal
) -> tuple[Tensor, Tensor, dict[str, float]]:
    """Embeddings in FP32 and NVFP4, and the median seconds of each over a few interleaved passes."""
    seconds: dict[str, list[float]] = {"fp32": [], "nvfp4": []}
    results: dict[str, Tensor] = {}
    with terminal.progress("embedding", 2 * _REPEATS * len(batches)) as step:
        for _ in range(_REPEATS):
            for label, model in (("fp32", reference), ("nvfp4", converted)):
                results[label], spent = embed(model, batches, step)
                seconds[label].append(spent)
    medians = {label: statistics.median(samples) for label, samples in seconds.items()}
    return results["fp32"], results["nvfp4"], medians


def _show_sizes(report: nn.ConversionReport, terminal: Terminal) -> None:
    terminal.heading("Bytes")
    sizes = (
        (f"weights of {len(report.converted)} linear layers", report.weight_bytes_before, report.weight_bytes_after),
        ("whole model", report.bytes_before, report.bytes_after),
    )
    rows = [[what, f"{before:,}", f"{after:,}", f"{before / after:.2f}x"] for what, before, after in sizes]
    terminal.table(("", "FP32", "NVFP4", "ratio"), rows, numbers=(1, 2, 3))
    for name, reason in report.skipped.items():
        terminal.line(f"left in FP32: {name}: {reason}")


def _show_layers(layers: Sequence[LayerError], terminal: Terminal) -> None:
    terminal.heading("Relative error of each layer's output")
    rows = [
        [
            layer.name,
            str(layer.in_features),
            str(layer.out_features),
            f"{100 * layer.same_input:.2f} %",
            f"{100 * layer.propagated:.2f} %",
        ]
        for layer in layers
    ]
    terminal.table(("layer", "in", "out", "same input", "propagated"), rows, numbers=(1, 2, 3, 4))
    terminal.line("same input: NVFP4 layer fed with what the FP32 model feeds it. propagated: with all layers before.")


def _show_embeddings(comparison: EmbeddingComparison, sentences: Sequence[str], terminal: Terminal) -> None:
    terminal.heading("Embeddings")
    cosines = comparison.cosines
    terminal.line(
        f"cosine similarity of FP32 and NVFP4: min {min(cosines):.4f}, median {_median(comparison):.4f}, "
        f"mean {statistics.fmean(cosines):.4f}"
    )
    terminal.line(f"same nearest neighbour: {comparison.agreements}/{len(sentences)}")
    if tuple(sentences) == SENTENCES:
        before, after = comparison.within_groups(GROUP)
        terminal.line(f"nearest neighbour is of the same subject: FP32 {before}/{len(sentences)}, NVFP4 {after}")
    changed = [(index, pair) for index, pair in enumerate(comparison.neighbours) if pair[0] != pair[1]]
    if changed:
        rows = [[_short(sentences[index]), _short(sentences[p]), _short(sentences[q])] for index, (p, q) in changed]
        terminal.table(("sentence", "nearest in FP32", "nearest in NVFP4"), rows[:10])


def _show_times(seconds: dict[str, float], device: str, terminal: Terminal) -> None:
    terminal.heading("Time")
    terminal.line(f"all sentences: FP32 {seconds['fp32']:.2f} s, NVFP4 {seconds['nvfp4']:.2f} s")
    if device == "cpu":
        terminal.line("On a CPU NVFP4 is emulated exactly, in FP64, to show its numbers; it is not faster than FP32.")
    else:
        terminal.line(f"On this GPU {evidence.BF16_ROUTE}.")


def _as_json(
    name: str, device: str, report: nn.ConversionReport, layers: Sequence[LayerError],
    comparison: EmbeddingComparison, seconds: dict[str, float], sentences: Sequence[str],
) -> dict[str, Any]:  # fmt: skip
    cosines = comparison.cosines
    return {
        "version": 1,
        "model": name,
        "recipe": str(RECIPE),
        "device": device,
        "blockscale": __version__,
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "conversion": asdict(report),
        "layers": [asdict(layer) for layer in layers],
        "cosine": {"min": min(cosines), "median": _median(comparison), "mean": statistics.fmean(cosines)},
        "neighbours": {"same": comparison.agreements, "of": len(sentences)},
        "seconds": seconds,
    }


def _median(comparison: EmbeddingComparison) -> float:
    return statistics.median(comparison.cosines)


def _short(text: str) -> str:
    return text if len(text) <= 44 else text[:43] + "…"


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}") from error
