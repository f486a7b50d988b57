# SPDX-License-Identifier: Apache-2.0
"""Contracts of gemm that must not depend on how Python was started. Bug 59; the table of refusals has the others."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest
import torch

import blockscale as bs
from blockscale.operand import make_operand


def _with_amax(op: Any, amax: Any) -> Any:
    """An operand made around the checks, as a caller's own object could be."""
    return make_operand(op.qdata, op.block_scale, amax, op.shape, op.layout, op.format, op.orientation)


def bad_calls(device: Any) -> dict[str, tuple[str, str]]:
    """Name to (exception type, message) of calls that break a contract."""
    square = torch.ones(64, 64, device=device)
    w, row = bs.quantize(square), bs.quantize(square, scaling="row")
    float64 = w.amax.double()
    calls: dict[str, Any] = {
        "other K": lambda: bs.gemm(bs.quantize(square[:, :48].contiguous()), w),
        "no amax": lambda: bs.gemm(_with_amax(w, None), w),
        "no amax of b": lambda: bs.gemm(w, _with_amax(w, None)),
        "amax of the wrong length": lambda: bs.gemm(_with_amax(row, row.amax[:63]), w),
        "amax of the wrong length of b": lambda: bs.gemm(w, _with_amax(row, row.amax[:1])),
        "a row amax for a tensor": lambda: bs.gemm(_with_amax(w, row.amax), w),
        "columnwise of square": lambda: bs.gemm(bs.quantize(square, orientation="columnwise"), w),
        "bias": lambda: bs.gemm(w, w, bias=torch.ones(63, device=device)),
        "c": lambda: bs.gemm(w, w, c=torch.ones(64, 63, device=device)),
        "alpha": lambda: bs.gemm(w, w, alpha=float64),
        "out_amax": lambda: bs.gemm(w, w, out_format=bs.NVFP4(scaling="row"), out_amax=row.amax[:3]),
        "config": lambda: bs.gemm(w, w, config=1),  # type: ignore[arg-type]
        "unknown keyword": lambda: bs.gemm(w, w, transpose=True),  # type: ignore[call-arg]
    }
    seen = {}
    for name, call in calls.items():
        try:
            call()
            seen[name] = ("accepted", "")
        except Exception as error:
            seen[name] = (type(error).__name__, str(error))
    return seen


EXPECTED = {
    "other K": ("ValueError", "gemm: b must be of the K of a, 48; got 64"),
    "no amax": ("TypeError", "gemm: a.amax must be a float32 tensor; got NoneType"),
    "no amax of b": ("TypeError", "gemm: b.amax must be a float32 tensor; got NoneType"),
    "amax of the wrong length": ("ValueError", "gemm: a.amax must be of shape (64,); got (63,)"),
    "amax of the wrong length of b": ("ValueError", "gemm: b.amax must be of shape (64,); got (1,)"),
    "a row amax for a tensor": ("ValueError", "gemm: a.amax must be of shape (); got (64,)"),
    "columnwise of square": ("ValueError", "gemm: a must be rowwise when b is rowwise; got a columnwise operand"),
    "bias": ("ValueError", "gemm: bias must be of shape (64,); got (63,)"),
    "c": ("ValueError", "gemm: c must be of shape (64, 64); got (64, 63)"),
    "alpha": ("TypeError", "gemm: alpha must be float32; got torch.float64"),
    "out_amax": ("ValueError", "gemm: out_amax must be of shape (64,) with scaling='row'; got (3,)"),
    "config": ("TypeError", "gemm: config must be a GemmConfig or None; got int"),
    "unknown keyword": ("TypeError", "gemm() got an unexpected keyword argument 'transpose'"),
}


@pytest.mark.parametrize("name", EXPECTED)
def test_bug_59_contract(name: str, device: torch.device) -> None:
    kind, message = bad_calls(device)[name]
    assert kind == EXPECTED[name][0], message
    assert message.startswith(EXPECTED[name][1]), message
    assert "{" not in message


def test_bug_59_checks_stay_under_dash_o() -> None:
    code = "import json; from tests.gemm.test_bugs_contract import bad_calls; print(json.dumps(bad_calls('cpu')))"
    seen = subprocess.run([sys.executable, "-O", "-c", code], capture_output=True, text=True, check=False)
    assert seen.returncode == 0, seen.stderr
    optimised = {name: tuple(value) for name, value in json.loads(seen.stdout).items()}
    assert optimised == bad_calls("cpu")
