# SPDX-License-Identifier: Apache-2.0
"""`nn.functional.linear`: the bits of its forward and input gradient, a bound for the weight gradient."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

import blockscale as bs
from blockscale import NVFP4Tensor, Recipe
from blockscale.nn.functional import linear
from tests.bits import assert_bits_equal, assert_same_operand

TILES = {"block": (16, 16)}
N, K = 48, 80


def weight(gen: torch.Generator, device: torch.device, dtype: torch.dtype, **options: Any) -> torch.nn.Parameter:
    x = torch.randn(N, K, generator=gen).to(device, dtype)
    return torch.nn.Parameter(NVFP4Tensor.quantize(x, columnwise=True, **(options or TILES)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("shape", [(K,), (7, K), (2, 3, K), (0, K)], ids=str)
@pytest.mark.parametrize("with_bias", [False, True])
def test_forward_and_gradients(
    shape: tuple[int, ...], dtype: torch.dtype, with_bias: bool, gen: torch.Generator, device: torch.device
) -> None:
    w = weight(gen, device, dtype)
    x = torch.randn(shape, generator=gen).to(device, dtype).requires_grad_()
    bias = torch.randn(N, generator=gen).to(device, dtype).requires_grad_() if with_bias else None
    y = linear(x, w, bias)
    assert y.shape == (*shape[:-1], N) and y.dtype is dtype and not y._is_view()
    rows = x.detach().reshape(-1, K)
    quantized = bs.quantize(rows, scaling="row")
    expected = bs.gemm(quantized, w.detach().rowwise, bias=None if bias is None else bias.detach(), out_dtype=dtype)
    assert_bits_equal(y.detach().reshape(-1, N), expected, "y")
    with torch.no_grad():
        assert_bits_equal(F.linear(x, w, bias), y.detach(), "without a graph")

    dy = torch.randn(y.shape, generator=gen).to(device, dtype)
    y.backward(dy)
    flat = dy.reshape(-1, N)
    if dtype is not torch.float32:
        dx = bs.gemm(flat, w.detach().columnwise, out_dtype=dtype)
        assert_bits_equal(x.grad.reshape(-1, K), dx, "dx")
    for grad, left, right, terms in (
        (x.grad.reshape(-1, K), flat, w.dequantize(torch.float32).detach(), N),
        (w.grad, flat.t(), bs.dequantize(quantized), len(flat)),
    ):
        _within_bound(grad, left, right, terms)
    assert type(w.grad) is torch.Tensor and (w.grad.shape, w.grad.dtype) == (w.shape, dtype)
    if bias is not None:
        exact, spread = flat.double().sum(0), flat.double().abs().sum(0)
        bound = torch.finfo(dtype).eps / 2 * exact.abs() + len(flat) * 2.0**-24 * spread + 2.0**-25
        assert ((bias.grad.double() - exact).abs() <= bound).all() and bias.grad.dtype is dtype


def _within_bound(grad: torch.Tensor, left: torch.Tensor, right: torch.Tensor, terms: int) -> None:
    """Operands rounded to the gradient's dtype, the product rounded to it, and sums in FP32 of `terms` products."""
    left, right = left.double(), right.double()
    exact, spread = left @ right, left.abs() @ right.abs()
    half = torch.finfo(grad.dtype).eps / 2
    rounded = 0 if grad.dtype is torch.float32 else half
    tiny = torch.finfo(grad.dtype).smallest_normal
    bound = half * exact.abs() + (terms * 2.0**-24 + 2 * rounded) * spread + tiny
    assert ((grad.double() - exact).abs() <= bound).all()


def test_bug_74_torch_linear_takes_any_batch(gen: torch.Generator, device: torch.device) -> None:
    t = NVFP4Tensor.quantize(torch.randn(32, 64, generator=gen).to(device), **TILES)
    inputs = [torch.randn(shape, generator=gen).to(device) for shape in ((64,), (2, 3, 64), (4, 2, 64))]
    inputs[2] = inputs[2].transpose(0, 1)
    for x in inputs:
        y = F.linear(x, t)
        assert y.shape == (*x.shape[:-1], 32)
        rows = bs.quantize(x.reshape(-1, 64), scaling="row")
        assert_bits_equal(y.reshape(-1, 32), bs.gemm(rows, t.rowwise, out_dtype=torch.float32), "y")
    layer = torch.nn.Linear(64, 32, bias=False)
    layer.weight = torch.nn.Parameter(t)
    assert_bits_equal(layer(inputs[1]).detach(), F.linear(inputs[1], t), "a torch.nn.Linear")


def test_recipes(gen: torch.Generator, device: torch.device) -> None:
    x = torch.randn(4, K, generator=gen).to(device)
    for recipe in (
        Recipe(row_scaled_activation=False),
        Recipe(e4m3_max=256),
        Recipe(weight_block=(1, 16), row_scaled_activation=False),
    ):
        w = weight(gen, device, torch.float32, block=recipe.weight_block, e4m3_max=recipe.e4m3_max)
        a = recipe.activation_format
        quantized = bs.quantize(x, scaling=a.scaling, e4m3_max=a.e4m3_max)
        expected = bs.gemm(quantized, w.detach().rowwise, out_dtype=torch.float32)
        assert_bits_equal(linear(x, w, recipe=recipe).detach(), expected, str(recipe))
    w = weight(gen, device, torch.float32, e4m3_max=256, **TILES)
    expected = bs.gemm(bs.quantize(x, scaling="row", e4m3_max=256), w.detach().rowwise, out_dtype=torch.float32)
    assert_bits_equal(linear(x, w).detach(), expected, "the weight's e4m3_max")
    with pytest.raises(ValueError, match="weight must be of the recipe's format"):
        linear(x, w, recipe=Recipe())


def test_what_is_missing_is_said_in_forward(gen: torch.Generator) -> None:
    cpu = torch.device("cpu")
    x = torch.randn(4, K, generator=gen).requires_grad_()
    row_only = NVFP4Tensor.quantize(torch.randn(N, K, generator=gen), **TILES)
    with pytest.raises(ValueError, match=r"columnwise must be there.*update_usage\(columnwise=True\)"):
        linear(x, row_only)
    assert linear(x.detach(), torch.nn.Parameter(row_only)).requires_grad, "dw needs no columnwise data"
    w = weight(gen, cpu, torch.float32)
    w.mark_columnwise_stale(manual=True)
    with pytest.raises(ValueError, match="post_all_gather_processing"):
        linear(x, w)
    for call, error in (
        (lambda: linear(x, torch.ones(N, K)), TypeError),
        (lambda: linear(x.double(), w), TypeError),
        (lambda: linear(x, w, torch.ones(N, dtype=torch.int32)), TypeError),
        (lambda: linear(x[:, :64], w), ValueError),
        (lambda: linear(x, w, recipe="default"), TypeError),
        (lambda: linear(x, w.view(-1)), ValueError),
    ):
        with pytest.raises(error, match=r"nn\.functional\.linear"):
            call()


def test_a_weight_changed_before_backward_is_noticed(gen: torch.Generator) -> None:
    w = weight(gen, torch.device("cpu"), torch.float32)
    y = linear(torch.ones(2, K, requires_grad=True), w)
    with torch.no_grad():
        w.copy_(torch.ones(N, K))
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_inference_layers_take_the_codes(gen: torch.Generator, device: torch.device) -> None:
    """`convert` and `from_linear` keep the codes of a trained weight, rather than quantizing it again."""
    layer = torch.nn.Linear(K, N, device=device)
    layer.weight = weight(gen, device, torch.float32, layout=bs.ScaleLayout.SWIZZLED_128X4, **TILES)
    model = torch.nn.Sequential(layer)
    x = torch.randn(5, K, generator=gen).to(device)
    expected = model(x).detach()
    for made in (bs.nn.Linear.from_linear(layer), None):
        if made is None:
            report = bs.nn.convert(model)
            assert report.converted == ("0",)
            made = model[0]
        assert_same_operand(made.operand, bs.unswizzle_scales(layer.weight.detach().rowwise))
        assert made.qdata.data_ptr() != layer.weight.detach().rowwise.qdata.data_ptr()
        with torch.no_grad():
            assert_bits_equal(made(x), expected, "y")
    other = torch.nn.Sequential(torch.nn.Linear(K, N, device=device))
    other[0].weight = weight(gen, device, torch.float32, e4m3_max=256, **TILES)
    assert "NVFP4 of another format" in bs.nn.convert(other).skipped["0"]
    with pytest.raises(ValueError, match="recipe's format"):
        bs.nn.Linear.from_linear(other[0])
