# SPDX-License-Identifier: Apache-2.0
"""Options are keywords, each of them alone changes what it says, and a call does no work beyond the call."""

from __future__ import annotations

import ast
import builtins
import inspect
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import blockscale as bs
from blockscale import functional, gemm_ops, matmul, operand, ops
from blockscale.dispatch import candidates, choice, config, device, problem
from tests.bits import assert_bits_equal, assert_same_operand
from tests.inputs import LINEAR, SWIZZLED

TENSORS_FIRST = {
    "amax": ["x", "scaling"],
    "quantize": ["x"],
    "quantize_both": ["x"],
    "dequantize": ["op", "dtype", "out"],
    "transpose": ["op", "out"],
    "swizzle_scales": ["op"],
    "unswizzle_scales": ["op"],
    "gemm": ["a", "b"],
    "partial_amax": ["shard", "shape", "start"],
    "fused_scale": ["tile_amax", "amax", "shape"],
    "partial_cast": ["shard", "out", "tile_scales", "amax", "shape", "start"],
    "merge_fragments": ["fragments", "starts", "lengths", "shape"],
    "multi_tensor_partial_amax": ["shards", "shapes", "starts"],
    "multi_tensor_fused_scale": ["tile_amaxes", "amaxes", "shapes"],
    "multi_tensor_partial_cast": ["shards", "outs", "tile_scales", "amaxes", "shapes", "starts"],
    "multi_tensor_transpose": ["ops", "out"],
    "gemm_candidates": ["m", "n", "k"],
    "autotune": ["a", "b"],
    "cast_master_weights_to_nvfp4": [
        "model_weights", "master_weights", "start_offsets", "group", "fsdp_shard_model_weights",
        "manual_post_all_gather_processing",
    ],
    "post_all_gather_processing": ["model_weights"],
}  # fmt: skip
"""Tensors, and what places them; every option goes by name. (The master cast has the order of arguments that callers
of other libraries' master casts know.)"""


def test_bug_75_only_tensors_are_positional() -> None:
    functions = {name: getattr(bs, name) for name in bs.__all__ if inspect.isfunction(getattr(bs, name))}
    assert functions.keys() == TENSORS_FIRST.keys()
    for name, function in functions.items():
        parameters = inspect.signature(function).parameters.values()
        positional = [p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
        assert positional == TENSORS_FIRST[name]
        assert all(p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY, p.VAR_KEYWORD) for p in parameters), name


def test_bug_75_positional_flags_are_refused() -> None:
    x = torch.ones(16, 16)
    for call in (
        lambda: bs.quantize(x, "row", True, False),
        lambda: bs.quantize(x, "row"),
        lambda: bs.quantize_both(x, "row"),
        lambda: bs.gemm(bs.quantize(x), bs.quantize(x), torch.float32),
    ):
        with pytest.raises(TypeError, match="positional argument"):
            call()


def test_bug_17_a_tensor_is_no_address() -> None:
    """A one-element tensor where the binding wants a pointer: never its value."""
    t = torch.ones(1, dtype=torch.int64)
    for call in (
        lambda: bs._C.Matrix(t, 0, 1, 1, 1),
        lambda: bs._C.Operand(0, t, 0, 16, 16, 0, 0, 448),
        lambda: bs._C.Launch(t, 0, 1, 0, 0),
        lambda: bs._C.Launch(0, 0, 1, t, 0),
        lambda: bs._C.Matrix(1.0, 0, 1, 1, 1),
    ):
        with pytest.raises(TypeError, match="incompatible constructor arguments"):
            call()


def _same(p: Any, q: Any) -> bool:
    try:
        assert_same_operand(p, q)
    except AssertionError:
        return False
    return True


def test_bug_75_each_option_of_quantize_alone_changes_its_field(gen: torch.Generator) -> None:
    x = torch.randn(32, 32, generator=gen)
    x[:16] *= 9
    base = bs.quantize(x)
    changes: dict[str, tuple[dict[str, Any], Callable[[Any], bool]]] = {
        "scaling": ({"scaling": "row"}, lambda q: q.format.scaling == "row" and q.amax.shape == (32,)),
        "block": ({"block": (16, 16)}, lambda q: q.format.block == (16, 16)),
        "orientation": ({"orientation": "columnwise"}, lambda q: q.orientation == "columnwise"),
        "amax": ({"amax": 100.0}, lambda q: float(q.amax) == 100.0),
        "e4m3_max": ({"e4m3_max": 256}, lambda q: q.format.e4m3_max == 256),
        "layout": ({"layout": SWIZZLED}, lambda q: q.layout is SWIZZLED),
    }
    for name, (keywords, holds) in changes.items():
        q = bs.quantize(x, **keywords)
        assert holds(q), name
        assert not _same(q, base), name
        if name != "layout":
            assert not torch.equal(q.block_scale.view(torch.uint8), base.block_scale.view(torch.uint8)), name
    for layout in bs.ScaleLayout:
        assert bs.quantize(x, layout=layout).layout is layout
        assert all(op.layout is layout for op in bs.quantize_both(x, layout=layout))
    names = set(inspect.signature(bs.quantize).parameters)
    elsewhere = {"x", "out", "amax_group", "four_over_six", "rht", "rounding", "seed", "nonfinite"}
    assert names == elsewhere | changes.keys(), "a new option needs a row here"


def test_bug_75_each_option_of_gemm_alone_changes_its_output(gen: torch.Generator) -> None:
    a, b = (bs.quantize(torch.randn(16, 32, generator=gen)) for _ in range(2))
    base = bs.gemm(a, b, out_dtype=torch.float32)
    out = torch.empty(16, 16)
    c = torch.randn(16, 16, generator=gen)
    assert bs.gemm(a, b, out=out) is out
    assert_bits_equal(out, base, "out")
    assert bs.gemm(a, b).dtype is torch.bfloat16
    assert bs.gemm(a, b, out_dtype=torch.float16).dtype is torch.float16
    for keywords in (
        {"bias": torch.ones(16)},
        {"alpha": 0.5},
        {"c": c},
        {"c": c, "beta": 2.0},
        {"c": c, "beta": -1.0},
        {"activation": "relu"},
        {"activation": "silu"},
        {"activation": "gelu"},
        {"activation": "gelu_tanh"},
    ):
        changed = bs.gemm(a, b, out_dtype=torch.float32, **keywords)
        assert not torch.equal(changed, base), keywords
    d, largest = bs.gemm(a, b, out_dtype=torch.float32, return_amax="row")
    assert_bits_equal(d, base, "d")
    assert_bits_equal(largest, base.abs().amax(dim=1), "return_amax")
    q = bs.gemm(a, b, out_format=bs.NVFP4(), out_amax=100.0)
    assert_same_operand(q, bs.quantize(base, amax=100.0, layout=SWIZZLED))


class _Watch:
    """What a call does besides its work; recorded while `active`."""

    def __init__(self) -> None:
        self.active = False
        self.seen: list[str] = []

    def hook(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self.active and event in ("import", "open", "exec", "compile", "subprocess.Popen", "ctypes.dlopen"):
            self.seen.append(f"{event} {arguments[:1]}")


_WATCH = _Watch()
sys.addaudithook(_WATCH.hook)  # cannot be taken away again; inactive outside of the test


class _Environment(dict[str, str]):
    """os.environ that records reads."""

    def __getitem__(self, key: str) -> str:
        if _WATCH.active:
            _WATCH.seen.append(f"environment {key}")
        return super().__getitem__(key)

    def get(self, key: str, default: Any = None) -> Any:
        if _WATCH.active:
            _WATCH.seen.append(f"environment {key}")
        return super().get(key, default)


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Iterator[_Watch]:
    real_build = builtins.__build_class__

    def build(*args: Any, **keywords: Any) -> Any:
        if _WATCH.active:
            _WATCH.seen.append(f"class {args[1]}")
        return real_build(*args, **keywords)

    monkeypatch.setattr(os, "environ", _Environment(os.environ))
    monkeypatch.setattr(builtins, "__build_class__", build)
    _WATCH.seen.clear()
    yield _WATCH
    _WATCH.active = False


def test_bug_93_a_call_imports_reads_and_builds_nothing(watch: _Watch) -> None:
    x, w = torch.randn(16, 64), bs.quantize(torch.randn(32, 64))
    tiles = bs.quantize(x, block=(16, 16))
    calls = {
        "quantize": lambda m: bs.quantize(x[:m], scaling="row"),
        "quantize_both": lambda m: bs.quantize_both(x, layout=SWIZZLED),
        "amax": lambda m: bs.amax(x[:m], "column"),
        "dequantize": lambda m: bs.dequantize(w),
        "transpose": lambda m: bs.transpose(tiles),
        "swizzle_scales": lambda m: bs.swizzle_scales(w),
        "gemm": lambda m: bs.gemm(bs.quantize(x[:m]), w, bias=torch.ones(32), alpha=0.5),
        "W4A16": lambda m: bs.gemm(x[:m].bfloat16(), w),
    }
    for call in calls.values():
        call(16)
    for name, call in calls.items():
        watch.active = True
        for m in (16, 3, 1):  # other sizes: no plan is built again
            call(m)
        watch.active = False
        assert not watch.seen, f"{name}: {watch.seen}"
    watch.active = True
    os.environ.get("HOME")
    watch.active = False
    assert watch.seen, "the watch itself is blind"


def test_bug_93_no_import_inside_the_hot_functions() -> None:
    hot = (ops, gemm_ops, functional, matmul, operand, bs._native)
    for module in (*hot, candidates, choice, config, device, problem):
        for function in ast.walk(ast.parse(inspect.getsource(module))):
            if isinstance(function, ast.FunctionDef):
                inner = [n.lineno for n in ast.walk(function) if isinstance(n, ast.Import | ast.ImportFrom)]
                assert not inner, f"{module.__name__}.{function.name}: import at line {inner}"


def test_layout_default_is_linear() -> None:
    assert bs.quantize(torch.ones(1, 16)).layout is LINEAR
