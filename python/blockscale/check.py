# SPDX-License-Identifier: Apache-2.0
"""`blockscale check`: this installation against `blockscale.reference`, on random data, in a second or two.

Casts and everything that a CPU computes are compared byte for byte. A GEMM on a GPU is compared byte for byte on
operands whose sums FP32 holds exactly, and within the bound of numerics, section 11.1, on others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from . import evidence, functional, matmul, multi_tensor, primary, reference
from .distributed import cast_master_weights_to_nvfp4, post_all_gather_processing
from .formats import NVFP4, ScaleLayout
from .operand import NVFP4Operand
from .optim import FusedAdam
from .tensor import NVFP4Tensor

Found = str | None
"""What is wrong; None if nothing is."""

_CASTS: tuple[dict[str, Any], ...] = (
    {"scaling": "tensor"},
    {"scaling": "row"},
    {"scaling": "tensor", "block": (16, 16)},
    {"scaling": "tensor", "e4m3_max": 256},
    {"scaling": "row", "orientation": "columnwise"},
    {"scaling": "tensor", "layout": ScaleLayout.SWIZZLED_128X4},
)
_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
_ROWS, _K, _N = 144, 208, 80
"""Sizes that no tile of a kernel divides."""


@dataclass(frozen=True)
class Check:
    """One comparison.

    Attributes:
        operation: a key of `evidence.OPERATIONS`.
        what: what was compared.
        found: None, or the first difference.
        grade: how far the path is proven, from the table.
    """

    operation: str
    what: str
    found: Found
    grade: str


def run_checks(device: torch.device, target: str, seed: int = 0) -> Iterator[Check]:
    """Runs every check on a device, one after another.

    Args:
        device: "cpu", or a CUDA device that is usable.
        target: its key in `evidence.TARGETS`.
        seed: of the random data.
    """
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(_ROWS, _K, generator=generator) * torch.exp(2 * torch.randn(_ROWS, 1, generator=generator))
    weight = torch.randn(_N, _K, generator=generator)
    bias = torch.randn(_N, generator=generator)

    def check(operation: str, what: str, compare: Callable[[], Found]) -> Check:
        try:
            found = compare()
        except (RuntimeError, TypeError, ValueError) as error:
            found = f"{type(error).__name__}: {error}"
        return Check(operation, what, found, evidence.grade_of(operation, target).value)

    yield check("amax", "tensor, row and column, 3 dtypes, bytes", lambda: _compare_amax(x, device))
    for options in _CASTS:
        text = ", ".join(f"{key}={getattr(value, 'name', value)}" for key, value in options.items())
        yield check("quantize", f"{text}, 3 dtypes, bytes", lambda options=options: _compare_cast(x, device, options))  # type: ignore[misc]
    yield check("quantize_both", "block=(16, 16), bytes", lambda: _compare_both(x, device))
    yield check("dequantize", "tensor and row, 3 dtypes, bytes", lambda: _compare_dequantize(x, device))
    yield check("transpose", "FP4 to FP4, bytes", lambda: _compare_transpose(x, device))
    yield check("swizzle_scales, unswizzle_scales", "there and back, bytes", lambda: _compare_swizzle(x, device))
    yield check("partial_amax, fused_scale, partial_cast", "odd shards, bytes", lambda: _compare_shards(x, device))
    yield check("multi_tensor_*", "every stage and transpose, bytes", lambda: _compare_lists(x, device))
    cast = "cast_master_weights_to_nvfp4, post_all_gather_processing"
    yield check(cast, "FP32 masters to both orientations, bytes", lambda: _compare_master_cast(x, device))
    yield check("optim.FusedAdam", "3 dtypes and NVFP4, 3 steps, bytes", lambda: _compare_adam(x, device))
    exact, exact_weight = _exact_operand(_ROWS, _K, generator), _exact_operand(_N, _K, generator)
    yield check("gemm", "exact sums, bias, bytes", lambda: _compare_gemm(exact, exact_weight, bias, device))
    a, b = functional.quantize(x, scaling="row"), functional.quantize(weight, block=(16, 16))
    if device.type == "cpu":
        yield check("gemm", "random data, bias, bytes", lambda: _compare_gemm(a, b, bias, device))
    else:
        yield check("gemm", "random data, within K * 2^-24 * sum|ab|", lambda: _compare_bounded(a, b, device))
    yield check(
        "gemm with NVFP4 output", "exact sums, bytes", lambda: _compare_nvfp4_gemm(exact, exact_weight, bias, device)
    )
    dense = functional.dequantize(exact, torch.bfloat16)
    what = "BF16 activations, exact sums, bytes"
    yield check("gemm of BF16 or FP16 activations", what, lambda: _compare_half(dense, exact_weight, bias, device))


def _exact_operand(rows: int, k: int, generator: torch.Generator) -> NVFP4Operand:
    """Codes on a sparse grid with block scales that are powers of two: every sum of products is exact in FP32."""
    codes = torch.randint(0, 16, (rows, k), generator=generator, dtype=torch.uint8)
    codes = codes * (torch.rand(rows, k, generator=generator) > 0.75)
    qdata = codes[:, 0::2] | (codes[:, 1::2] << 4)
    exponents = torch.randint(-2, 3, (rows, k // 16), generator=generator)
    scales = torch.exp2(exponents.float()).to(torch.float8_e4m3fn)
    return NVFP4Operand(qdata.contiguous(), scales, torch.tensor(2688.0), (rows, k))


def _difference(got: Tensor, want: Tensor, what: str) -> Found:
    """The first element whose bits differ, any NaN being equal to any NaN."""
    got, want = got.detach().cpu(), want.detach().cpu()
    if got.shape != want.shape or got.dtype is not want.dtype:
        return f"{what}: {got.dtype} {tuple(got.shape)} where {want.dtype} {tuple(want.shape)} is right"
    bits = {1: torch.uint8, 2: torch.int16, 4: torch.int32}[want.element_size()]
    differs = got.reshape(-1).view(bits) != want.reshape(-1).view(bits)
    if want.dtype.is_floating_point:
        differs &= ~(got.reshape(-1).isnan() & want.reshape(-1).isnan())
    count = int(differs.sum())
    if count == 0:
        return None
    first = int(differs.to(torch.uint8).argmax())
    index = tuple(int(i) for i in torch.unravel_index(torch.tensor(first), want.shape))
    values = f"{got[index].item()} where {want[index].item()} is right"
    return f"{what}: {count} of {want.numel()} elements differ, the first at {index}: {values}"


def _operand_difference(got: NVFP4Operand, want: NVFP4Operand) -> Found:
    fields = ("shape", "layout", "format", "orientation")
    for name in fields:
        if getattr(got, name) != getattr(want, name):
            return f"{name}: {getattr(got, name)} where {getattr(want, name)} is right"
    return (
        _difference(got.amax, want.amax, "amax")
        or _difference(got.block_scale.view(torch.uint8), want.block_scale.view(torch.uint8), "block_scale")
        or _difference(got.qdata, want.qdata, "qdata")
    )


def _first(found: Iterator[Found]) -> Found:
    return next((text for text in found if text is not None), None)


def _compare_amax(x: Tensor, device: torch.device) -> Found:
    return _first(
        _difference(functional.amax(x.to(dtype).to(device), kind), reference.amax(x.to(dtype), kind), f"{kind} {dtype}")
        for kind in ("tensor", "row", "column")
        for dtype in _DTYPES
    )


def _compare_cast(x: Tensor, device: torch.device, options: dict[str, Any]) -> Found:
    return _first(
        _operand_difference(
            functional.quantize(x.to(dtype).to(device), **options), reference.quantize(x.to(dtype), **options)
        )
        for dtype in _DTYPES
    )


def _compare_both(x: Tensor, device: torch.device) -> Found:
    got = functional.quantize_both(x.to(device), block=(16, 16))
    want = reference.quantize_both(x, block=(16, 16))
    return _first(_operand_difference(p, q) for p, q in zip(got, want, strict=True))


def _compare_dequantize(x: Tensor, device: torch.device) -> Found:
    operands = [reference.quantize(x), reference.quantize(x, scaling="row")]
    return _first(
        _difference(functional.dequantize(op.to(device), dtype), reference.dequantize(op, dtype), f"{dtype}")
        for op in operands
        for dtype in _DTYPES
    )


def _compare_transpose(x: Tensor, device: torch.device) -> Found:
    op = reference.quantize(x, block=(16, 16))
    return _operand_difference(functional.transpose(op.to(device)), reference.transpose(op))


def _compare_shards(x: Tensor, device: torch.device) -> Found:
    """Two shards that share a byte, merged, against the full cast."""
    shape, flat, cut = (_ROWS, _K), x.flatten(), _ROWS * _K // 2 + 1
    shards = [(flat[:cut].to(device), 0), (flat[cut:].to(device), cut)]
    tiles = torch.stack([primary.partial_amax(shard, shape, start) for shard, start in shards]).amax(0)
    scales = primary.fused_scale(tiles, tiles.amax(), shape)
    codes = []
    for shard, start in shards:
        size = ((start + shard.numel() + 1) >> 1) - (start >> 1)
        out = torch.empty(size, dtype=torch.uint8, device=device)
        codes.append(primary.partial_cast(shard, out, scales.tile_scales, scales.amax, shape, start))
    qdata = primary.merge_fragments(codes, [0, cut], [cut, x.numel() - cut], shape)
    got = NVFP4Operand(qdata, scales.block_scale, scales.amax, shape, format=NVFP4(block=(16, 16)))
    return _operand_difference(got, reference.quantize(x, block=(16, 16)))


def _compare_lists(x: Tensor, device: torch.device) -> Found:
    """Weights of two shapes, a whole list a call."""
    weights = [x, x[:32, :48].contiguous()]
    masters, shapes, starts = [w.to(device) for w in weights], [tuple(w.shape) for w in weights], [0, 0]
    amax = torch.empty(2, device=device)
    tiles = multi_tensor.multi_tensor_partial_amax(masters, shapes, starts, amax=amax)
    scales = multi_tensor.multi_tensor_fused_scale(tiles, amax, shapes)
    outs = [torch.empty(w.numel() // 2, dtype=torch.uint8, device=device) for w in weights]
    tile_scales = [one.tile_scales for one in scales]
    multi_tensor.multi_tensor_partial_cast(masters, outs, tile_scales, amax, shapes, starts)
    fmt = NVFP4(block=(16, 16))
    made = [
        NVFP4Operand(out.view(shape[0], -1), one.block_scale, one.amax, shape, format=fmt)
        for out, one, shape in zip(outs, scales, shapes, strict=True)
    ]
    want = [reference.quantize(w, block=(16, 16)) for w in weights]
    turned = multi_tensor.multi_tensor_transpose(made)
    pairs = [*zip(made, want, strict=True), *zip(turned, map(reference.transpose, want), strict=True)]
    return _first(_operand_difference(got, right) for got, right in pairs)


def _compare_swizzle(x: Tensor, device: torch.device) -> Found:
    op = reference.quantize(x)
    swizzled = functional.swizzle_scales(op.to(device))
    return _operand_difference(swizzled, reference.swizzle_scales(op)) or _operand_difference(
        functional.unswizzle_scales(swizzled), op
    )


def _compare_master_cast(x: Tensor, device: torch.device) -> Found:
    zeros = torch.zeros_like(x, device=device, dtype=torch.bfloat16)
    weight = NVFP4Tensor.quantize(zeros, block=(16, 16), columnwise=True)
    cast_master_weights_to_nvfp4([weight], [x.view(-1).to(device)], [0])
    post_all_gather_processing([weight])
    pairs = zip((weight.rowwise, weight.columnwise), reference.quantize_both(x.bfloat16(), block=(16, 16)), strict=True)
    return _first(_operand_difference(got, want) for got, want in pairs)


def _compare_adam(x: Tensor, device: torch.device) -> Found:
    """Three steps of a float32, a bfloat16, a float16 and an NVFP4 parameter."""
    values = [x, *(x.to(dtype) for dtype in _DTYPES[1:])]
    quantized = NVFP4Tensor.quantize(x.bfloat16().to(device), block=(16, 16))
    params = [torch.nn.Parameter(value.to(device, copy=True)) for value in (*values, quantized)]
    optimizer = FusedAdam(params)
    starts = [value.float() for value in (*values, quantized.dequantize(torch.float32).cpu())]
    states = [(start, torch.zeros_like(x), torch.zeros_like(x)) for start in starts]
    for step in range(1, 4):
        grads = [(x * 0.1 * step).to(param.dtype) for param in params]
        states = [reference.adam(*state, grad, step=step) for state, grad in zip(states, grads, strict=True)]
        for param, grad in zip(params, grads, strict=True):
            param.grad = grad.to(device)
        optimizer.step()
    masters = [optimizer.master(param) for param in params]
    found = (_difference(got, want[0], "master") for got, want in zip(masters, states, strict=True))
    codes = reference.quantize(states[-1][0].bfloat16(), block=(16, 16)).qdata
    weight = params[-1]
    if not isinstance(weight, NVFP4Tensor):
        return f"the parameter has become a {type(weight).__name__}"
    return _first(found) or _difference(weight.rowwise.qdata, codes, "codes")


def _compare_gemm(a: NVFP4Operand, b: NVFP4Operand, bias: Tensor, device: torch.device) -> Found:
    return _first(
        _difference(
            matmul.gemm(a.to(device), b.to(device), bias=bias.to(device), out_dtype=dtype),
            _tensor(reference.gemm(a, b, bias=bias, out_dtype=dtype)),
            f"{dtype}",
        )
        for dtype in _DTYPES
    )


def _compare_bounded(a: NVFP4Operand, b: NVFP4Operand, device: torch.device) -> Found:
    got = matmul.gemm(a.to(device), b.to(device), out_dtype=torch.float32).cpu()
    want = _tensor(reference.gemm(a, b, out_dtype=torch.float32))
    positive = [replace(op, qdata=op.qdata & 0x77) for op in (a, b)]
    sum_of_magnitudes = _tensor(reference.gemm(*positive, out_dtype=torch.float32))
    # K * 2^-24 for the sum, and four roundings of 2^-24: the exact sum's own, and two products on either side.
    bound = a.k * 2.0**-24 * sum_of_magnitudes + 4 * 2.0**-24 * want.abs()
    error = (got - want).abs()
    worst = int((error / bound.clamp_min(1e-38)).argmax())
    if bool((error <= bound).all()):
        return None
    index = divmod(worst, want.shape[1])
    return f"{float(got[index])} at {index} where {float(want[index])} +- {float(bound[index])} is right"


def _compare_nvfp4_gemm(a: NVFP4Operand, b: NVFP4Operand, bias: Tensor, device: torch.device) -> Found:
    options: dict[str, Any] = {"out_format": NVFP4(), "out_amax": 100.0}
    got = matmul.gemm(a.to(device), b.to(device), bias=bias.to(device), **options)
    want = reference.gemm(a, b, bias=bias, **options)
    if not isinstance(want, NVFP4Operand):
        return "the reference gave no operand"
    return _operand_difference(got, want)


def _compare_half(a: Tensor, b: NVFP4Operand, bias: Tensor, device: torch.device) -> Found:
    got = matmul.gemm(a.to(device), b.to(device), bias=bias.to(device))
    return _difference(got, _tensor(reference.gemm(a, b, bias=bias)), "bfloat16")


def _tensor(result: Any) -> Tensor:
    """The float result of a reference GEMM."""
    if not isinstance(result, Tensor):
        raise TypeError(f"a tensor was expected, not {type(result).__name__}")
    return result
