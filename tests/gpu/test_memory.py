# SPDX-License-Identifier: Apache-2.0
"""Memory on a GPU: every byte written, none outside, no sticky error, 64-bit offsets. Bugs 28, 31 and 66."""

from __future__ import annotations

import pytest
import torch

import blockscale as bs
from tests.bits import assert_bits_equal
from tests.gemm.operands import SWIZZLED
from tests.gpu.operations import Result, assert_same_results, make_inputs, operations
from tests.memory import Guards

SIZES = ((16, 16, 16), (5, 32, 48), (48, 64, 80), (144, 272, 208), (1, 16, 1040), (257, 48, 464))


@pytest.mark.parametrize("kind", ["wide", "ties", "tiny", "nonfinite"])
@pytest.mark.parametrize(("m", "n", "k"), SIZES)
def test_every_operation_against_the_cpu(m: int, n: int, k: int, kind: str, cuda: torch.device) -> None:
    """With the poison of tests/conftest.py: what a kernel leaves out shows as NaN or FF."""
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        inputs = make_inputs(m, n, k, m + n + k, dtype, kind)
        on_gpu = inputs.to(cuda)
        for name, call in operations(m).items():
            assert_same_results(call(on_gpu), call(inputs), f"{name}, {dtype}")


@pytest.mark.parametrize(("m", "n", "k"), SIZES)
def test_nothing_is_written_outside(m: int, n: int, k: int, cuda: torch.device, guards: Guards) -> None:
    inputs = make_inputs(m, n, k, seed=1).to(cuda)
    a, b = inputs.a["row"], inputs.b["tiles"]
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        out = guards.empty((m, n), dtype, cuda)
        bs.gemm(a, b, out=out, bias=inputs.bias)
        assert_bits_equal(out, bs.gemm(a, b, out_dtype=dtype, bias=inputs.bias), "gemm")
        decoded = guards.empty((m, k), dtype, cuda)
        bs.dequantize(a, out=decoded)
    for fmt in ({}, {"scaling": "row"}, {"block": (16, 16)}):
        form = bs.NVFP4(**fmt)
        made = guards.operand((m, k), SWIZZLED, form, device=cuda)
        bs.quantize(inputs.x, layout=SWIZZLED, out=made, **fmt)
        if m % 16 == 0:
            pair = made, guards.operand((k, m), SWIZZLED, form, "columnwise", cuda)
            bs.quantize_both(inputs.x, layout=SWIZZLED, out=pair, **fmt)
            if fmt.get("block"):
                bs.transpose(made, out=pair[1])
        if not fmt.get("block"):
            out_amax = inputs.row_amax if fmt else inputs.amax
            quantized = guards.operand((m, n), SWIZZLED, form, device=cuda)
            bs.gemm(a, b, out_format=form, out_amax=out_amax, out=quantized)


def test_bug_28_no_sticky_error(cuda: torch.device) -> None:
    for m in (0, 16):
        for n in (0, 16):
            inputs = make_inputs(m, n, 48, seed=2).to(cuda)
            for name, call in operations(m).items():
                call(inputs)
                torch.cuda.synchronize()
                assert float(torch.ones(1, device=cuda)) == 1.0, name
    empty = bs.quantize(torch.empty(4, 0, device=cuda))
    assert (bs.gemm(empty, empty, bias=torch.ones(4, device=cuda)) == 1).all()
    torch.cuda.synchronize()


def test_bug_66_a_host_tensor_never_reaches_a_kernel(cuda: torch.device) -> None:
    q = bs.quantize(torch.randn(16, 64, device=cuda))
    for keywords, arg in (
        ({"bias": torch.ones(16)}, "bias"),
        ({"alpha": torch.ones(())}, "alpha"),
        ({"c": torch.ones(16, 16)}, "c"),
        ({"out": torch.empty(16, 16, dtype=torch.bfloat16)}, "out"),
        ({"out_format": bs.NVFP4(), "out_amax": torch.ones(())}, "out_amax"),
        ({"out_format": bs.NVFP4(scaling="row"), "out_amax": torch.ones(16)}, "out_amax"),
    ):
        with pytest.raises(
            ValueError, match=rf"^gemm: {arg} must be on cuda:0, where the other arguments are; got cpu"
        ):
            bs.gemm(q, q, **keywords)
    with pytest.raises(ValueError, match=r"^gemm: a must be on cuda:0, where the other arguments are; got cpu"):
        bs.gemm(q.to("cpu"), q)
    with pytest.raises(ValueError, match=r"amax must be on cuda:0, where qdata is; got cpu"):
        bs.NVFP4Operand(q.qdata, q.block_scale, q.amax.cpu(), q.shape)
    torch.cuda.synchronize()


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_the_device_of_the_tensors_is_used(cuda: torch.device) -> None:
    """Not the current one, which stays as it was; and no two devices in one call."""
    inputs = make_inputs(48, 64, 80, seed=3)
    second = inputs.to("cuda:1")
    with torch.cuda.device(0):
        for name, call in operations(48).items():
            results = call(second)
            assert {result.device.index for result in results} == {1}, name
            assert torch.cuda.current_device() == 0, name
            assert_same_results(results, call(inputs), name)
    with pytest.raises(ValueError, match=r"^gemm: a must be on cuda:1, where the other arguments are; got cuda:0"):
        bs.gemm(second.a["row"].to("cuda:0"), second.b["row"])


@pytest.mark.slow
def test_bug_31_more_than_2_31_elements(cuda: torch.device) -> None:
    """Beyond 2^31 elements and 2^31 bytes of output: the far end of every buffer is right, and the rest untouched."""
    if torch.cuda.get_device_properties(cuda).total_memory < 60 * 2**30:
        pytest.skip("needs a GPU with 60 GiB")
    rows, k = 2**17 + 16, 2**14
    x = torch.zeros(rows, k, dtype=torch.bfloat16, device=cuda)
    x[-1] = 3.0
    for keywords in ({"scaling": "row"}, {"block": (16, 16)}, {}):
        op = bs.quantize(x, layout=SWIZZLED, **keywords)
        y = bs.dequantize(op, torch.bfloat16)
        assert (y[-1] == 3).all()
        assert not y[:-1].any()
        del y
    tiles = bs.transpose(bs.quantize(x, block=(16, 16), layout=SWIZZLED))
    last = bs.dequantize(tiles, torch.bfloat16)[:, -1]
    assert (last == 3).all()
    del tiles, last
    column = bs.quantize(x, orientation="columnwise", scaling="row")
    assert (column.qdata[:, -1] == 0x70).all()
    assert (column.amax == 3).all()
    del column


@pytest.mark.slow
def test_bug_31_an_output_of_more_than_2_31_elements(cuda: torch.device) -> None:
    if torch.cuda.get_device_properties(cuda).total_memory < 60 * 2**30:
        pytest.skip("needs a GPU with 60 GiB")
    m, n = 2**16 + 1, 2**15 + 16
    x = torch.zeros(m, 16, device=cuda)
    x[-1] = 1.0
    a, b = bs.quantize(x, scaling="row"), bs.quantize(torch.ones(n, 16, device=cuda))
    made: list[Result] = [*bs.gemm(a, b, return_amax="row")]
    d, r = made
    assert isinstance(d, torch.Tensor)
    assert isinstance(r, torch.Tensor)
    assert (d[-1] == 16).all()
    assert int(d.count_nonzero()) == n
    assert int(r.count_nonzero()) == 1
    del d, made
    op = bs.gemm(a, b, out_format=bs.NVFP4(), out_amax=16.0)
    assert (op.qdata[-1] == 0x77).all()
    assert not op.qdata[:-1].any()
