# SPDX-License-Identifier: Apache-2.0
"""The conversions that this GPU's kernels use, over every float, against the headers of CUDA."""

from __future__ import annotations

import torch

import blockscale as bs
from blockscale._native import cuda_library, launch_on
from tests.bits import assert_bits_equal, assert_same_operand


def test_all_2_32_floats(cuda: torch.device) -> None:
    """E2M1 of every number by every path of a block, E4M3 of every magnitude: {E2M1, E4M3} mismatches."""
    mismatches = torch.full((2,), -1, dtype=torch.int64, device=cuda)
    cuda_library().check_codecs(mismatches.data_ptr(), launch_on(cuda))
    assert mismatches.tolist() == [0, 0]


def test_every_16_bit_input_against_the_cpu(cuda: torch.device) -> None:
    """All 65,536 values of BF16 and FP16, each in a block of its own neighbours, under several second levels."""
    bits = torch.arange(1 << 16, dtype=torch.int32).to(torch.int16).view(-1, 64)
    for dtype in (torch.bfloat16, torch.float16):
        x = bits.view(dtype)
        for amax in (1.0, 448.0, 2688.0, 1e-30, 3e38):
            for block in ((1, 16), (16, 16)):
                want = bs.quantize(x, amax=amax, block=block)
                got = bs.quantize(x.to(cuda), amax=amax, block=block)
                assert_same_operand(got, want)
                assert_bits_equal(bs.dequantize(got, dtype), bs.dequantize(want, dtype), f"{dtype}", nan_equal=True)


def test_every_byte_decodes_as_on_the_cpu(cuda: torch.device) -> None:
    """256 code bytes under 128 block scales and second levels on both sides of 1."""
    qdata = torch.arange(256, dtype=torch.uint8).view(1, 256).expand(128, 256).contiguous()
    scales = torch.arange(128, dtype=torch.uint8).view(128, 1).expand(128, 32).contiguous()
    for amax in (0.0, 1e-40, 0.75, 1.0, 3.4e38, float("inf"), float("nan")):
        op = bs.NVFP4Operand(qdata, scales, torch.tensor(amax), (128, 512))
        for dtype in (torch.float32, torch.bfloat16, torch.float16):
            got = bs.dequantize(op.to(cuda), dtype)
            assert_bits_equal(got, bs.dequantize(op, dtype), f"amax {amax}, {dtype}", nan_equal=True)
