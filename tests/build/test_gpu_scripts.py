# SPDX-License-Identifier: Apache-2.0
"""What runs on GPU machines only is kept working on the others: the sanitizer's target, and the syntax of the suite."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
import torch

from tests.gpu import sanitizer_target
from tests.gpu.operations import assert_same_results, make_inputs, operations

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_gpu_suite_parses() -> None:
    script = ROOT / "scripts" / "gpu_suite.sh"
    subprocess.run(["bash", "-n", str(script)], check=True)
    usage = subprocess.run(["bash", str(script)], capture_output=True, text=True, check=False)
    assert usage.returncode == 2
    assert "SUMMARY.json" in usage.stderr


def test_sanitizer_target_runs() -> None:
    assert sanitizer_target.run("racecheck", torch.device("cpu")) > 40


@pytest.mark.parametrize(("m", "n"), [(0, 0), (0, 32), (16, 0), (5, 16)])
def test_operations_of_any_size(m: int, n: int) -> None:
    """The calls that the GPU tests make, on the CPU: each gives the same bytes twice, also where there is nothing."""
    inputs = make_inputs(m, n, 48, seed=1)
    for name, call in operations(m).items():
        assert_same_results(call(inputs), call(inputs), name)


def test_inputs_are_copied_in_place() -> None:
    """What the graph tests rely on."""
    first, second = make_inputs(16, 32, 48, seed=1), make_inputs(16, 32, 48, seed=2)
    address = first.a["row"].qdata.data_ptr()
    first.copy_(second)
    assert first.a["row"].qdata.data_ptr() == address
    for name, call in operations(16).items():
        assert_same_results(call(first), call(second), name)
