# SPDX-License-Identifier: Apache-2.0
"""`nn.Linear`: the bits of quantize and gemm, in a module that moves, copies, saves and refuses gradients."""

from __future__ import annotations

import copy
import io
from typing import Any

import pytest
import torch
from torch import Tensor

import blockscale as bs

from ..bits import assert_bits_equal, assert_same_operand

RECIPES = [
    bs.Recipe(),
    bs.Recipe(row_scaled_activation=False),
    bs.Recipe(weight_block=(1, 16)),
    bs.Recipe(row_scaled_activation=False, weight_block=(1, 16), e4m3_max=256),
    bs.Recipe(e4m3_max=256),
]
DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def float_layer(
    k: int, n: int, gen: torch.Generator, bias: bool = True, dtype: torch.dtype = torch.float32
) -> torch.nn.Linear:
    layer = torch.nn.Linear(k, n, bias)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=gen))
    return layer.to(dtype)


def by_hand(x: Tensor, layer: torch.nn.Linear, recipe: bs.Recipe, api: Any = bs) -> Tensor:
    """What the layer promises, by the functional API or the reference."""
    a = api.quantize(
        x.reshape(-1, x.shape[-1]).contiguous(),
        scaling="row" if recipe.row_scaled_activation else "tensor",
        e4m3_max=recipe.e4m3_max,
    )
    w = api.quantize(layer.weight.detach(), block=recipe.weight_block, e4m3_max=recipe.e4m3_max)
    bias = None if layer.bias is None else layer.bias.detach()
    y: Tensor = api.gemm(a, w, bias=bias, out_dtype=layer.weight.dtype)
    return y.view(*x.shape[:-1], layer.out_features)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("recipe", RECIPES, ids=str)
def test_output_is_gemm_of_quantized(
    recipe: bs.Recipe, dtype: torch.dtype, bias: bool, gen: torch.Generator, device: torch.device
) -> None:
    source = float_layer(80, 41, gen, bias, dtype)
    # Rows of different sizes, so that row and tensor scaling differ.
    x = (torch.randn(37, 80, generator=gen) * torch.exp(2 * torch.randn(37, 1, generator=gen))).to(dtype)
    layer = bs.nn.Linear.from_linear(source.to(device), recipe)
    y = layer(x.to(device))
    assert_bits_equal(y, by_hand(x.to(device), source, recipe), "y")
    assert y.dtype is dtype and (layer.bias is None) is not bias
    if device.type == "cpu":
        assert_bits_equal(y, by_hand(x, source, recipe, bs.reference), "y by the reference")


def test_each_part_of_the_recipe_changes_the_output(gen: torch.Generator) -> None:
    source = float_layer(64, 48, gen)
    x = torch.randn(32, 64, generator=gen) * torch.exp(2 * torch.randn(32, 1, generator=gen))
    base = bs.nn.Linear.from_linear(source)(x)
    for recipe in (bs.Recipe(row_scaled_activation=False), bs.Recipe(weight_block=(1, 16)), bs.Recipe(e4m3_max=256)):
        assert not torch.equal(bs.nn.Linear.from_linear(source, recipe)(x), base), recipe


@pytest.mark.parametrize("recipe", RECIPES, ids=str)
def test_near_the_float_layer(recipe: bs.Recipe, gen: torch.Generator) -> None:
    k, n, m = 256, 64, 96
    source = float_layer(k, n, gen)
    x = torch.randn(m, k, generator=gen)
    y = bs.nn.Linear.from_linear(source, recipe)(x)
    exact = x.double() @ source.weight.detach().double().T + source.bias.detach().double()
    # An element is off by at most 1 * block scale: half of the widest gap of E2M1, [4, 6]. A block scale is its block's
    # maximum over 6, and E4M3 rounds it by at most 1/16: elements above 6 block scales are clipped by less than that.
    x_error = _block_maxima(x, (1, 16)) / 6 * (17 / 16)
    w = source.weight.detach()
    w_error = _block_maxima(w, recipe.weight_block) / 6 * (17 / 16)
    bound = x_error @ w.abs().double().T + (x.abs().double() + x_error) @ w_error.T + 2.0**-20 * exact.abs()
    assert bool(((y - exact).abs() <= bound).all())
    # Rounding errors are independent, so that in norm they are far below the bound: about 9 % of each operand.
    relative = float((y - exact).norm() / exact.norm())
    assert 0.05 < relative < 0.18


def _block_maxima(x: Tensor, block: tuple[int, int]) -> Tensor:
    """The maximum of the block of each element, FP64."""
    rows, cols = x.shape
    tiles = x.abs().double().view(rows // block[0], block[0], cols // block[1], block[1])
    return tiles.amax(dim=(1, 3), keepdim=True).expand_as(tiles).reshape(rows, cols)


def _views(gen: torch.Generator) -> dict[str, Tensor]:
    return {
        "1-D": torch.randn(64, generator=gen),
        "2-D": torch.randn(5, 64, generator=gen),
        "3-D": torch.randn(2, 3, 64, generator=gen),
        "4-D": torch.randn(2, 1, 3, 64, generator=gen),
        "transposed batch": torch.randn(4, 2, 64, generator=gen).transpose(0, 1),
        "transposed K": torch.randn(64, 5, generator=gen).t(),
        "strided K": torch.randn(5, 128, generator=gen)[:, ::2],
        "column slice": torch.randn(5, 256, generator=gen)[:, 64:128],
        "row slice": torch.randn(10, 64, generator=gen)[::2],
        "3-D slice": torch.randn(4, 6, 64, generator=gen)[:, 1:4],
        "expanded": torch.randn(1, 1, 64, generator=gen).expand(3, 2, 64),
        "empty batch": torch.randn(0, 64, generator=gen),
        "empty 3-D": torch.randn(2, 0, 64, generator=gen),
    }


@pytest.mark.parametrize("recipe", RECIPES[:2], ids=str)
@pytest.mark.parametrize("name", list(_views(torch.Generator())))
def test_bug_74_leading_dimensions_and_views(
    name: str, recipe: bs.Recipe, gen: torch.Generator, device: torch.device
) -> None:
    source = float_layer(64, 32, gen).to(device)
    layer = bs.nn.Linear.from_linear(source, recipe)
    x = _views(gen)[name].to(device)
    y = layer(x)
    assert y.shape == (*x.shape[:-1], 32)
    expected = by_hand(x, source, recipe)
    assert_bits_equal(y, expected, name)


def test_a_row_does_not_depend_on_its_batch(gen: torch.Generator) -> None:
    layer = bs.nn.Linear.from_linear(float_layer(64, 32, gen))
    x = torch.randn(9, 64, generator=gen) * torch.exp(3 * torch.randn(9, 1, generator=gen))
    y = layer(x)
    for row in range(9):
        assert_bits_equal(layer(x[row]), y[row], f"row {row}")
    order = torch.randperm(9, generator=gen)
    assert_bits_equal(layer(x[order]), y[order], "permuted rows")


def test_wrong_inputs(gen: torch.Generator) -> None:
    layer = bs.nn.Linear.from_linear(float_layer(64, 32, gen))
    for x in (torch.randn(3, 48), torch.randn(64, 3), torch.tensor(1.0)):
        with pytest.raises(ValueError, match=r"nn.Linear: x must be of shape \(\.\.\., 64\)"):
            layer(x)
    for wrong in (torch.randn(3, 64).double(), torch.zeros(3, 64, dtype=torch.int32)):
        with pytest.raises(TypeError, match=r"nn.Linear: x must be float32, bfloat16 or float16"):
            layer(wrong)
    with pytest.raises(TypeError, match=r"nn.Linear: x must be a torch.Tensor"):
        layer(bs.quantize(torch.randn(3, 64)))


def test_other_float_inputs_keep_the_nominal_dtype(gen: torch.Generator) -> None:
    layer = bs.nn.Linear.from_linear(float_layer(64, 32, gen, dtype=torch.bfloat16))
    for dtype in DTYPES:
        assert layer(torch.randn(3, 64, generator=gen).to(dtype)).dtype is torch.bfloat16


def test_no_graph_is_cut_in_silence(gen: torch.Generator) -> None:
    layer = bs.nn.Linear.from_linear(float_layer(64, 32, gen))
    x = torch.randn(3, 64, generator=gen, requires_grad=True)
    with pytest.raises(NotImplementedError, match=r"nn.Linear: x must be free of requires_grad.*no_grad"):
        layer(x)
    with pytest.raises(NotImplementedError, match=r"nn.Linear: x must"):
        layer(x * 2)
    plain = layer(x.detach())
    assert not plain.requires_grad
    for context in (torch.no_grad(), torch.inference_mode()):
        with context:
            assert_bits_equal(layer(x), plain, "without grad mode")
    assert layer.bias is not None and not layer.bias.requires_grad
    layer.requires_grad_(True)
    with pytest.raises(NotImplementedError, match=r"nn.Linear: bias must be free of requires_grad"):
        layer(x.detach())


@pytest.mark.parametrize("k", [8, 17, 40, 100])
def test_in_features_are_whole_blocks(k: int) -> None:
    with pytest.raises(ValueError, match=f"in_features must be a multiple of 16 up to 1048576; got {k}"):
        bs.nn.Linear(k, 32)
    with pytest.raises(ValueError, match="in_features must be a multiple of 16"):
        bs.nn.Linear.from_linear(torch.nn.Linear(k, 32))


def test_from_linear_refuses_what_it_does_not_know(gen: torch.Generator) -> None:
    class Special(torch.nn.Linear):
        pass

    for wrong in (Special(16, 16), torch.nn.Conv1d(16, 16, 1), None):
        with pytest.raises(TypeError, match=r"linear must be a torch.nn.Linear"):
            bs.nn.Linear.from_linear(wrong)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"dtype must be torch.float32, torch.bfloat16 or torch.float16"):
        bs.nn.Linear.from_linear(torch.nn.Linear(16, 16, dtype=torch.float64))
    with pytest.raises(TypeError, match="dtype must be"):
        bs.nn.Linear(16, 16, dtype=torch.float64)
    with pytest.raises(TypeError, match="recipe must be a Recipe"):
        bs.nn.Linear(16, 16, recipe="nvfp4")  # type: ignore[arg-type]
    source = float_layer(32, 16, gen)
    with torch.no_grad():
        source.weight[3, 5] = float("nan")
    with pytest.raises(ValueError, match=r"1 NaN or inf, the first at \(3, 5\)"):
        bs.nn.Linear.from_linear(source)


def test_from_linear_leaves_its_source_alone(gen: torch.Generator) -> None:
    source = float_layer(32, 16, gen)
    before = {name: tensor.clone() for name, tensor in source.state_dict().items()}
    layer = bs.nn.Linear.from_linear(source.eval())
    assert not layer.training
    assert layer.bias is not None
    layer.bias.data.fill_(7.0)
    for name, tensor in source.state_dict().items():
        assert_bits_equal(tensor, before[name], name)
    assert all(parameter.requires_grad for parameter in source.parameters())


def test_constructor_quantizes_the_weight_of_a_float_layer() -> None:
    torch.manual_seed(5)
    layer = bs.nn.Linear(48, 20, recipe=bs.Recipe(weight_block=(1, 16)), dtype=torch.bfloat16)
    torch.manual_seed(5)
    source = torch.nn.Linear(48, 20, dtype=torch.bfloat16)
    assert_same_operand(layer.operand, bs.quantize(source.weight))
    assert layer.bias is not None
    assert_bits_equal(layer.bias, source.bias, "bias")
    assert bs.nn.Linear(48, 20, False).bias is None
    assert bs.nn.Linear(16, 8).dtype is torch.get_default_dtype()


@pytest.mark.parametrize("weight", ["transposed", "sliced"])
def test_a_strided_weight(weight: str, gen: torch.Generator) -> None:
    source = torch.nn.Linear(32, 48, bias=False)
    data = (
        torch.randn(32, 48, generator=gen).t() if weight == "transposed" else torch.randn(48, 64, generator=gen)[:, 32:]
    )
    source.weight = torch.nn.Parameter(data)
    assert_same_operand(bs.nn.Linear.from_linear(source).operand, bs.quantize(data.contiguous(), block=(16, 16)))


def test_repr_says_what_it_holds(gen: torch.Generator) -> None:
    text = repr(bs.nn.Linear.from_linear(float_layer(64, 32, gen), bs.Recipe(e4m3_max=256)))
    for part in ("in_features=64", "out_features=32", "bias=True", "NVFP4", "16x16", "row-scaled", "256", "float32"):
        assert part in text, part


def test_weight_attribute_says_where_it_is(gen: torch.Generator) -> None:
    layer = bs.nn.Linear.from_linear(float_layer(64, 32, gen))
    with pytest.raises(AttributeError, match=r"use \.operand"):
        _ = layer.weight
    assert not hasattr(layer, "weight") and not hasattr(layer, "nothing")


# From an operand ------------------------------------------------------------------------------------------------------


def test_from_operand_holds_imported_bytes(gen: torch.Generator) -> None:
    source = float_layer(64, 48, gen)
    operand = bs.quantize(source.weight, block=(16, 16), layout=bs.ScaleLayout.SWIZZLED_128X4)
    layer = bs.nn.Linear.from_operand(operand, source.bias.detach(), dtype=torch.float32)
    twin = bs.nn.Linear.from_linear(source)
    assert_same_operand(layer.operand, twin.operand)
    x = torch.randn(3, 64, generator=gen)
    assert_bits_equal(layer(x), twin(x), "y")
    assert bs.nn.Linear.from_operand(operand)(x).dtype is torch.bfloat16


def test_bug_80_the_missing_orientation_is_named(gen: torch.Generator) -> None:
    weight = torch.randn(32, 64, generator=gen)
    columnwise = bs.quantize(weight, block=(16, 16), orientation="columnwise")
    with pytest.raises(
        ValueError, match=r"operand must be rowwise; got columnwise.*rowwise operand.*is missing.*transpose"
    ):
        bs.nn.Linear.from_operand(columnwise)
    layer = bs.nn.Linear.from_operand(bs.transpose(columnwise), dtype=torch.float32)
    assert (layer.in_features, layer.out_features) == (64, 32)
    x = torch.randn(3, 64, generator=gen)
    rowwise = bs.nn.Linear.from_operand(bs.quantize(weight, block=(16, 16)), dtype=torch.float32)
    assert_bits_equal(layer(x), rowwise(x), "y")


def test_from_operand_checks_the_rest(gen: torch.Generator) -> None:
    weight = torch.randn(32, 64, generator=gen)
    with pytest.raises(ValueError, match="operand must be of the recipe's format"):
        bs.nn.Linear.from_operand(bs.quantize(weight))
    with pytest.raises(ValueError, match="operand must be of the recipe's format"):
        bs.nn.Linear.from_operand(bs.quantize(weight, block=(16, 16), e4m3_max=256))
    good = bs.quantize(weight, block=(16, 16))
    with pytest.raises(ValueError, match=r"operand must be of shape \(out, in\)"):
        bs.nn.Linear.from_operand(bs.quantize(weight.view(2, 16, 64), block=(16, 16)))
    with pytest.raises(ValueError, match=r"bias must be of shape \(32,\)"):
        bs.nn.Linear.from_operand(good, torch.zeros(64))
    with pytest.raises(TypeError, match="bias must be float32"):
        bs.nn.Linear.from_operand(good, torch.zeros(32, dtype=torch.float64))
    with pytest.raises(TypeError, match="operand must be an NVFP4Operand"):
        bs.nn.Linear.from_operand(weight)  # type: ignore[arg-type]


# Moving, copying, saving ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_to_dtype_changes_the_output_and_not_the_bytes(dtype: torch.dtype, gen: torch.Generator) -> None:
    layer = bs.nn.Linear.from_linear(float_layer(64, 32, gen))
    # An amax that BF16 and FP16 do not hold: a round trip through them would be seen.
    layer.amax.fill_(4.2000003)
    before = layer.operand.clone()
    assert layer.to(dtype) is layer
    assert_same_operand(layer.operand, before)
    assert layer.amax.dtype is torch.float32 and layer.bias is not None and layer.bias.dtype is dtype
    x = torch.randn(3, 64, generator=gen)
    assert layer(x).dtype is layer.dtype is dtype
    without_bias = bs.nn.Linear.from_linear(float_layer(64, 32, gen, bias=False)).to(dtype)
    assert without_bias(x).dtype is dtype


def test_to_double_is_refused(gen: torch.Generator) -> None:
    layer = bs.nn.Linear.from_linear(float_layer(64, 32, gen))
    before = layer.operand.clone()
    with pytest.raises(TypeError, match=r"nn.Linear: dtype must be"):
        layer.double()
    assert_same_operand(layer.operand, before)
    assert layer.dtype is torch.float32


def test_deepcopy_is_independent(gen: torch.Generator) -> None:
    layer = bs.nn.Linear.from_linear(float_layer(64, 32, gen))
    twin = copy.deepcopy(layer)
    assert_same_operand(twin.operand, layer.operand)
    assert twin.recipe == layer.recipe and twin.dtype is layer.dtype
    twin.qdata.fill_(0x77)
    assert not torch.equal(layer.qdata, twin.qdata)


def _saved(state: Any) -> Any:
    buffer = io.BytesIO()
    torch.save(state, buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=True)


def test_state_dict_round_trip(gen: torch.Generator) -> None:
    layer = bs.nn.Linear.from_linear(float_layer(64, 32, gen))
    state = _saved(layer.state_dict())
    assert {name: (tensor.dtype, tuple(tensor.shape)) for name, tensor in state.items()} == {
        "bias": (torch.float32, (32,)),
        "qdata": (torch.uint8, (32, 32)),
        "block_scale": (torch.uint8, (32, 4)),
        "amax": (torch.float32, ()),
        "_extra_state": (torch.int64, (3,)),
    }
    other = bs.nn.Linear(64, 32)
    assert not torch.equal(other.qdata, layer.qdata)
    other.load_state_dict(state)
    assert_same_operand(other.operand, layer.operand)
    x = torch.randn(3, 64, generator=gen)
    assert_bits_equal(other(x), layer(x), "y")
    as_e4m3 = {**state, "block_scale": state["block_scale"].view(torch.float8_e4m3fn)}
    third = bs.nn.Linear(64, 32)
    third.load_state_dict(as_e4m3)
    assert_same_operand(third.operand, layer.operand)
    assert as_e4m3["block_scale"].dtype is torch.float8_e4m3fn


def test_state_dict_onto_meta_by_assignment(gen: torch.Generator) -> None:
    layer = bs.nn.Linear.from_linear(float_layer(64, 32, gen))
    meta = bs.nn.Linear(64, 32, device="meta")
    assert meta.qdata.is_meta and meta(torch.empty(3, 64, device="meta")).shape == (3, 32)
    meta.load_state_dict(_saved(layer.state_dict()), assign=True)
    assert_same_operand(meta.operand, layer.operand)


def test_safetensors_holds_a_state_dict(gen: torch.Generator, tmp_path: Any) -> None:
    safetensors = pytest.importorskip("safetensors.torch", reason="needs safetensors: pip install safetensors")
    model = torch.nn.Sequential(float_layer(64, 32, gen), torch.nn.ReLU(), float_layer(32, 16, gen))
    bs.nn.convert(model)
    safetensors.save_file(model.state_dict(), tmp_path / "model.safetensors")
    fresh = torch.nn.Sequential(bs.nn.Linear(64, 32), torch.nn.ReLU(), bs.nn.Linear(32, 16))
    fresh.load_state_dict(safetensors.load_file(tmp_path / "model.safetensors"))
    x = torch.randn(3, 64, generator=gen)
    assert_bits_equal(fresh(x), model(x), "y")


@pytest.mark.parametrize(
    ("recipe", "message"),
    [
        (bs.Recipe(weight_block=(1, 16)), r"_extra_state must be .*\[1, 1, 448\].*got \[1, 16, 448\]"),
        (bs.Recipe(e4m3_max=256), r"_extra_state must be .*\[1, 16, 256\].*got \[1, 16, 448\]"),
    ],
    ids=["block", "e4m3_max"],
)
def test_bytes_of_another_meaning_are_not_loaded(recipe: bs.Recipe, message: str, gen: torch.Generator) -> None:
    state = bs.nn.Linear.from_linear(float_layer(64, 32, gen)).state_dict()
    other = bs.nn.Linear(64, 32, recipe=recipe)
    before = other.operand.clone()
    for strict in (True, False):
        with pytest.raises(RuntimeError, match=message):
            other.load_state_dict(state, strict=strict)
        assert_same_operand(other.operand, before)


def test_another_state_version_is_not_loaded(gen: torch.Generator) -> None:
    layer = bs.nn.Linear.from_linear(float_layer(64, 32, gen))
    state = {**layer.state_dict(), "_extra_state": torch.tensor([2, 16, 448])}
    with pytest.raises(RuntimeError, match="_extra_state must be"):
        layer.load_state_dict(state)
    del state["_extra_state"]
    with pytest.raises(RuntimeError, match=r"Missing key.*_extra_state"):
        layer.load_state_dict(state)


@pytest.mark.parametrize(
    ("key", "convert"),
    [
        ("qdata", lambda t: t.to(torch.int8)),
        ("block_scale", lambda t: t.view(torch.float8_e4m3fn).float()),
        ("block_scale", lambda t: t.view(torch.float8_e4m3fn).bfloat16()),
        ("amax", lambda t: t.bfloat16()),
        ("block_scale", lambda t: torch.full_like(t, 0x80)),
    ],
)
def test_bug_64_a_state_of_another_dtype_is_not_loaded(key: str, convert: Any, gen: torch.Generator) -> None:
    layer = bs.nn.Linear.from_linear(float_layer(64, 32, gen))
    before = layer.operand.clone()
    state = {name: tensor.clone() for name, tensor in layer.state_dict().items()}
    state[key] = convert(state[key])
    with pytest.raises(RuntimeError, match=f"{key} must be"):
        layer.load_state_dict(state)
    assert_same_operand(layer.operand, before)


def test_bug_73_a_whole_module_is_saved(gen: torch.Generator) -> None:
    layer = bs.nn.Linear.from_linear(float_layer(64, 32, gen, dtype=torch.bfloat16), bs.Recipe(e4m3_max=256))
    buffer = io.BytesIO()
    torch.save(layer, buffer)
    buffer.seek(0)
    loaded = torch.load(buffer, weights_only=False)
    assert_same_operand(loaded.operand, layer.operand)
    assert loaded.recipe == layer.recipe and loaded.dtype is torch.bfloat16


# Without reading the device -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("recipe", RECIPES[:2], ids=str)
def test_bug_100_forward_reads_no_value(recipe: bs.Recipe, gen: torch.Generator) -> None:
    """On "meta" there are no values: whatever reads one on the host raises."""
    layer = bs.nn.Linear.from_linear(float_layer(64, 32, gen), recipe).to("meta")
    for shape in ((64,), (7, 64), (2, 3, 64), (0, 64)):
        y = layer(torch.empty(shape, device="meta"))
        assert y.is_meta and y.shape == (*shape[:-1], 32)


@pytest.mark.gpu
@pytest.mark.parametrize("recipe", RECIPES[:2], ids=str)
def test_bug_100_forward_does_not_wait_for_the_device(
    recipe: bs.Recipe, gen: torch.Generator, cuda: torch.device
) -> None:
    layer = bs.nn.Linear.from_linear(float_layer(64, 32, gen), recipe).to(cuda)
    x = torch.randn(7, 64, generator=gen).to(cuda)
    expected = layer(x)
    torch.cuda.set_sync_debug_mode("error")
    try:
        y = layer(x)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert_bits_equal(y, expected, "y")


def test_compiles_without_a_graph_break(gen: torch.Generator) -> None:
    model = torch.nn.Sequential(float_layer(64, 32, gen), torch.nn.GELU(), float_layer(32, 16, gen))
    bs.nn.convert(model)
    x = torch.randn(5, 64, generator=gen)
    with torch.no_grad():
        compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
        assert_bits_equal(compiled(x), model(x), "y")
