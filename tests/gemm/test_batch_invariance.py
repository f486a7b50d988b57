# SPDX-License-Identifier: Apache-2.0
"""A row of D has the same bits whatever other rows there are, if batch_invariant says so (docs/dispatch.md)."""

from __future__ import annotations

import pytest
import torch

import blockscale as bs
from tests.bits import assert_bits_equal


@pytest.mark.parametrize("out_dtype", [torch.bfloat16, torch.float32])
def test_a_row_does_not_depend_on_m(out_dtype: torch.dtype, device: torch.device, gen: torch.Generator) -> None:
    """Rows of a batch of 300 against the same rows in smaller batches, first, last and in the middle."""
    x = torch.randn(300, 2048, generator=gen).to(device)
    w = bs.quantize(torch.randn(272, 2048, generator=gen).to(device))
    a = bs.quantize(x, scaling="row")

    def product(start: int, stop: int) -> torch.Tensor:
        rows = bs.NVFP4Operand(
            a.qdata[start:stop], a.block_scale[start:stop], a.amax[start:stop], (stop - start, 2048), format=a.format
        )
        d: torch.Tensor = bs.gemm(rows, w, out_dtype=out_dtype, batch_invariant=True)
        return d

    try:
        whole = product(0, 300)
    except NotImplementedError as error:
        pytest.skip(f"{error} Run where a kernel is built for the GPU.")
    for start, stop in ((0, 1), (299, 300), (7, 24), (100, 164), (0, 128), (130, 259), (1, 300)):
        assert_bits_equal(product(start, stop), whole[start:stop], f"rows {start} to {stop}")


def test_it_survives_torch_compile(device: torch.device, gen: torch.Generator) -> None:
    a, b = (bs.quantize(torch.randn(n, 512, generator=gen).to(device)) for n in (40, 48))

    def product(p: bs.NVFP4Operand, q: bs.NVFP4Operand) -> torch.Tensor:
        d: torch.Tensor = bs.gemm(p, q, batch_invariant=True)
        return d

    try:
        eager = product(a, b)
    except NotImplementedError as error:
        pytest.skip(f"{error} Run where a kernel is built for the GPU.")
    compiled = torch.compile(product, backend="aot_eager", fullgraph=True)
    assert_bits_equal(compiled(a, b), eager, "compiled")
