# SPDX-License-Identifier: Apache-2.0
"""What a CUDA request meets where there is no CUDA build, no such device, or a foreign library; and its routes."""

from __future__ import annotations

import ast
import inspect
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import blockscale as bs
from blockscale import gemm_ops, ops, primary_ops

CUDA = torch.device("cuda", 0)
PROBLEMS = {"amax", "quantize", "dequantize", "transpose", "relayout", "accumulate", "epilogue", "primary"}


@pytest.fixture
def no_cuda_library(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As if the installation had no CUDA library."""
    native = bs._native
    native.cuda_library.cache_clear()
    native._cuda_backend.cache_clear()
    monkeypatch.setattr(native, "_CUDA_LIBRARY_NAME", "absent.so")
    yield
    native.cuda_library.cache_clear()
    native._cuda_backend.cache_clear()


def test_a_cuda_tensor_without_a_cuda_build(no_cuda_library: None) -> None:
    message = (
        r'built without CUDA: CUDA tensors cannot be used\. Rebuild with BLOCKSCALE_CUDA_ARCHS="90a" .*"100a".*"120a"'
    )
    for _ in range(2):  # a failure is not cached as a success
        with pytest.raises(RuntimeError, match=message):
            bs._native.backend_of("quantize", CUDA)
    assert bs._native.backend_of("quantize", torch.device("cpu")).name == "cpu"
    assert float(bs.amax(torch.ones(1, 16))) == 1.0


@pytest.mark.gpu
def test_every_function_says_so(no_cuda_library: None) -> None:
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA GPU and a CUDA build of torch; run there with -m gpu")
    x = torch.ones(16, 32, device=CUDA)
    op = bs.quantize(torch.ones(16, 32), block=(16, 16)).to("cuda:0")
    for call in (
        lambda: bs.quantize(x),
        lambda: bs.quantize_both(x),
        lambda: bs.amax(x),
        lambda: bs.dequantize(op),
        lambda: bs.transpose(op),
        lambda: bs.swizzle_scales(op),
        lambda: bs.gemm(op, op),
        lambda: bs.gemm(x.bfloat16(), op),
        lambda: bs.partial_amax(x, (16, 32), 0),
        lambda: bs.fused_scale(x[:1, :2].contiguous(), op.amax, (16, 32)),
        lambda: bs.multi_tensor_transpose([op]),
        lambda: bs.MultiTensorPlan.partial_amax([x], [(16, 32)], [0]),
    ):
        with pytest.raises(RuntimeError, match="built without CUDA"):
            call()


def test_a_file_that_is_no_library(tmp_path: Path) -> None:
    path = tmp_path / "libblockscale_cuda.so"
    path.write_text("not a library")
    with pytest.raises(RuntimeError, match=r"load_cuda: cannot open the CUDA library: .*libblockscale_cuda.so"):
        bs._C.CudaLibrary(str(path))


def test_a_library_of_another_version() -> None:
    with pytest.raises(RuntimeError, match=r"load_cuda: .* lacks a symbol of this version\. Reinstall blockscale\."):
        bs._C.CudaLibrary(bs._C.__file__)


@pytest.mark.parametrize("kind", ["meta", "xpu", "mps"])
def test_a_device_without_a_backend(kind: str) -> None:
    with pytest.raises(NotImplementedError, match=f"^amax: device must be cpu or cuda; got {kind}"):
        bs._native.backend_of("amax", torch.device(kind))


@pytest.mark.parametrize("key", ["CPU", "CUDA", "Meta"])
def test_bug_90_every_op_has_every_route(key: str) -> None:
    """No op of ours lacks the CPU or CUDA entry, or the fake, that the others have."""
    names = [name for name in torch._C._dispatch_get_all_op_names() if name.startswith("blockscale::")]
    assert len(names) >= 12
    missing = [name for name in names if not torch._C._dispatch_has_kernel_for_dispatch_key(name, key)]
    assert not missing


def test_bug_90_every_native_call_goes_through_one_routing_function() -> None:
    """In the modules of ops a function of a backend is called on what backend_of returned, and on nothing else."""
    called: set[str] = set()
    for module in (ops, gemm_ops, primary_ops):
        for function in ast.walk(ast.parse(inspect.getsource(module))):
            if not isinstance(function, ast.FunctionDef):
                continue
            calls = [node for node in ast.walk(function) if isinstance(node, ast.Call)]
            routed = any(isinstance(node.func, ast.Name) and node.func.id == "backend_of" for node in calls)
            made = {
                node.func.attr
                for node in calls
                if isinstance(node.func, ast.Attribute) and node.func.attr.endswith("Problem")
            }
            assert routed or not made, f"{module.__name__}.{function.name} makes {made} without backend_of"
            called |= {node.func.attr for node in calls if isinstance(node.func, ast.Attribute)} & PROBLEMS
    assert called >= PROBLEMS - {"epilogue"}
    assert all(hasattr(bs._C.cpu_backend(), name) for name in PROBLEMS)


def test_bug_66_meta_tensors_among_cpu_ones() -> None:
    q = bs.quantize(torch.ones(16, 64))
    meta = torch.device("meta")
    for keywords, arg in (
        ({"bias": torch.ones(16, device=meta)}, "bias"),
        ({"alpha": torch.ones((), device=meta)}, "alpha"),
        ({"c": torch.ones(16, 16, device=meta)}, "c"),
        ({"out": torch.empty(16, 16, dtype=torch.bfloat16, device=meta)}, "out"),
    ):
        with pytest.raises(ValueError, match=f"^gemm: {arg} must be on cpu, where the other arguments are; got meta"):
            bs.gemm(q, q, **keywords)
    with pytest.raises(ValueError, match="amax must be on cpu, where qdata is; got meta"):
        bs.NVFP4Operand(q.qdata, q.block_scale, q.amax.to(meta), q.shape)
    assert bs.gemm(q, q, alpha=0.5).shape == (16, 16)


def test_the_library_is_looked_for_beside_the_native_module() -> None:
    name = bs._native._CUDA_LIBRARY_NAME
    beside = os.path.join(os.path.dirname(bs._C.__file__), name)
    if os.path.exists(beside):
        assert bs._native.cuda_library().targets
    else:
        with pytest.raises(RuntimeError, match="built without CUDA"):
            bs._native.cuda_library()
