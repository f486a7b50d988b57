# SPDX-License-Identifier: Apache-2.0
"""`nn.convert`: which layers are replaced, which are left alone and why, and what stays as it was."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.utils import parametrizations, prune

import blockscale as bs

from ..bits import assert_bits_equal, assert_same_operand


class Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = torch.nn.Linear(32, 64)
        self.down = torch.nn.Linear(64, 32, bias=False)
        self.norm = torch.nn.LayerNorm(32)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.norm(x + self.down(torch.relu(self.up(x))))
        return y


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(50, 32)
        self.blocks = torch.nn.ModuleList(Block() for _ in range(2))
        self.head = torch.nn.Linear(32, 10)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        y: Tensor = self.head(x)
        return y


@pytest.fixture
def model() -> Model:
    torch.manual_seed(11)
    return Model().eval()


TOKENS = torch.arange(12).view(3, 4)
NAMES = ("blocks.0.up", "blocks.0.down", "blocks.1.up", "blocks.1.down", "head")


def test_every_linear_by_its_name(model: Model) -> None:
    sources = {name: module for name, module in model.named_modules() if isinstance(module, torch.nn.Linear)}
    with torch.no_grad():
        before = model(TOKENS)
    names_before = [name for name, _ in model.named_modules()]
    seen: list[str] = []
    report = bs.nn.convert(model, on_layer=seen.append)
    assert report.converted == NAMES == tuple(seen) and report.skipped == {} and report.unmatched_skips == ()
    assert [name for name, _ in model.named_modules()] == names_before
    for name, source in sources.items():
        layer = model.get_submodule(name)
        assert type(layer) is bs.nn.Linear and not layer.training
        assert_same_operand(layer.operand, bs.quantize(source.weight, block=(16, 16)))
    with torch.no_grad():
        after = model(TOKENS)
    relative = float((after - before).norm() / before.norm())
    assert 0.001 < relative < 0.3
    assert bs.nn.convert(model).converted == ()


def test_bytes_are_counted(model: Model) -> None:
    weights = 2 * (32 * 64 * 2) + 32 * 10
    whole = sum(tensor.nbytes for tensor in model.state_dict().values())
    report = bs.nn.convert(model)
    # Half a byte an element, one byte for 16 of them, four for an amax.
    packed = weights // 2 + weights // 16 + 5 * 4
    assert (report.weight_bytes_before, report.weight_bytes_after) == (4 * weights, packed)
    assert (report.bytes_before, report.bytes_after) == (whole, whole - 4 * weights + packed)
    held = sum(tensor.nbytes for name, tensor in model.state_dict().items() if not name.endswith("_extra_state"))
    assert report.bytes_after == held
    assert f"{packed:,}" in str(report)


@pytest.mark.parametrize(
    ("skip", "left"),
    [
        (("head",), {"head"}),
        (("blocks.0.*",), {"blocks.0.up", "blocks.0.down"}),
        (("*.up", "head"), {"blocks.0.up", "blocks.1.up", "head"}),
        (lambda name, linear: linear.bias is None, {"blocks.0.down", "blocks.1.down"}),
    ],
)
def test_skip(model: Model, skip: Any, left: set[str]) -> None:
    report = bs.nn.convert(model, bs.Recipe(skip=skip))
    assert report.skipped == dict.fromkeys(report.skipped, "skipped by the recipe")
    assert set(report.skipped) == left and set(report.converted) == set(NAMES) - left
    for name in left:
        assert type(model.get_submodule(name)) is torch.nn.Linear


def test_a_skip_that_matches_nothing_is_reported(model: Model) -> None:
    report = bs.nn.convert(model, bs.Recipe(skip=("head", "lm_head")))
    assert report.unmatched_skips == ("lm_head",)
    assert "skip='lm_head' matched no layer" in str(report)


def test_reasons_to_leave_a_layer_alone() -> None:
    class Special(torch.nn.Linear):
        pass

    broken = torch.nn.Linear(32, 16)
    with torch.no_grad():
        broken.weight[3, 5] = float("inf")
    patched = torch.nn.Linear(32, 16)
    patched.forward = lambda x: x  # type: ignore[method-assign]
    model = torch.nn.ModuleDict(
        {
            "odd": torch.nn.Linear(24, 16),
            "wide": torch.nn.Linear(32, 16, dtype=torch.float64),
            "special": Special(32, 16),
            "lazy": torch.nn.LazyLinear(16),
            "normed": parametrizations.weight_norm(torch.nn.Linear(32, 16)),
            "pruned": prune.random_unstructured(torch.nn.Linear(32, 16), "weight", 0.5),
            "broken": broken,
            "patched": patched,
            "good": torch.nn.Linear(32, 16),
        }
    )
    modules = dict(model.items())
    report = bs.nn.convert(model)
    assert report.converted == ("good",)
    assert report.skipped == {
        "odd": "in_features 24 is not a multiple of 16 up to 1048576",
        "wide": "its weight is torch.float64",
        "special": "a subclass of torch.nn.Linear, Special",
        "lazy": "a subclass of torch.nn.Linear, LazyLinear",
        "normed": "a subclass of torch.nn.Linear, ParametrizedLinear",
        "pruned": "its weight is computed by a hook",
        "broken": "its weight holds NaN or inf",
        "patched": "its forward was replaced",
    }
    for name in report.skipped:
        assert model[name] is modules[name]
        assert f"left alone: {name}: " in str(report)


def test_attention_and_encoder_layers_still_run() -> None:
    torch.manual_seed(3)
    layer = torch.nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
    model = torch.nn.Sequential(
        torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), torch.nn.Linear(32, 16)
    )
    model.eval()
    x = torch.randn(2, 5, 32)
    before = model[0](x)
    report = bs.nn.convert(model)
    assert report.converted == ("1",)
    assert report.skipped["0.layers.0.linear1"] == "torch.nn.TransformerEncoderLayer reads its weight directly"
    assert "NonDynamicallyQuantizableLinear" in report.skipped["0.layers.0.self_attn.out_proj"]
    with torch.no_grad():  # the fast path
        torch.testing.assert_close(model[0](x), before)
        assert model(x).shape == (2, 5, 16)


def test_a_module_in_two_places_is_converted_once() -> None:
    torch.manual_seed(1)
    shared = torch.nn.Linear(32, 32)
    model = torch.nn.ModuleDict({"net": torch.nn.Sequential(shared, torch.nn.ReLU(), shared), "alias": shared})
    net = model["net"]
    seen: list[str] = []
    report = bs.nn.convert(model, on_layer=seen.append)
    assert report.converted == ("net.0",) and seen == ["net.0"]
    assert type(net[0]) is bs.nn.Linear and net[0] is net[2] is model["alias"]
    assert report.weight_bytes_before == 32 * 32 * 4
    x = torch.randn(3, 32)
    layer = bs.nn.Linear.from_linear(shared)
    with torch.no_grad():
        assert_bits_equal(net(x), layer(torch.relu(layer(x))), "y")


def test_a_weight_tied_to_an_embedding_is_left_alone(model: Model) -> None:
    model.head = torch.nn.Linear(32, 50, bias=False)
    model.head.weight = model.embed.weight
    report = bs.nn.convert(model)
    assert report.skipped == {"head": "its weight is also embed.weight"}
    assert model.head.weight is model.embed.weight
    with torch.no_grad():
        assert model(TOKENS).shape == (3, 4, 50)


def test_linears_that_share_a_weight_share_its_codes() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(32, 32), torch.nn.Linear(32, 32))
    model[1].weight = model[0].weight
    report = bs.nn.convert(model)
    assert report.converted == ("0", "1")
    assert model[0].qdata.data_ptr() == model[1].qdata.data_ptr()
    assert report.weight_bytes_after == 32 * 16 + 32 * 2 + 4
    assert not torch.equal(model[0].bias, model[1].bias)


def test_forward_hooks_stay_and_can_be_removed(model: Model) -> None:
    calls: list[str] = []

    def forward_hook(module: torch.nn.Module, args: Any, output: Tensor) -> Tensor:
        calls.append(f"forward {type(module) is bs.nn.Linear}")
        return output + 1

    def pre_hook(module: torch.nn.Module, args: Any, kwargs: Any) -> None:
        calls.append("pre")

    handle = model.head.register_forward_hook(forward_hook)
    pre = model.head.register_forward_pre_hook(pre_hook, with_kwargs=True)
    bs.nn.convert(model)
    with torch.no_grad():
        hooked = model(TOKENS)
        assert calls == ["pre", "forward True"]
        handle.remove()
        pre.remove()
        plain = model(TOKENS)
    assert len(calls) == 2
    assert_bits_equal(hooked, plain + 1, "the hook's output")


def test_training_mode_and_grad_mode(model: Model) -> None:
    model.train()
    bs.nn.convert(model)
    assert model.head.training
    # Tokens carry no gradient, but the embedding does.
    with pytest.raises(NotImplementedError, match=r"nn.Linear: x must be free of requires_grad"):
        model(TOKENS)


def test_meta_models_are_converted() -> None:
    with torch.device("meta"):
        model = torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.Linear(32, 16))
    report = bs.nn.convert(model)
    assert report.converted == ("0", "1")
    assert model(torch.empty(3, 64, device="meta")).shape == (3, 16)


def test_what_cannot_be_converted() -> None:
    with pytest.raises(TypeError, match=r"nn.convert: model must be a module that contains layers.*from_linear"):
        bs.nn.convert(torch.nn.Linear(16, 16))
    with pytest.raises(TypeError, match=r"nn.convert: model must be a torch.nn.Module; got str"):
        bs.nn.convert("model")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"nn.convert: recipe must be a Recipe"):
        bs.nn.convert(torch.nn.Sequential(), {"e4m3_max": 448})  # type: ignore[arg-type]
