# SPDX-License-Identifier: Apache-2.0
"""`info`: the answer with and without a GPU, a CUDA build or a driver; `select_target`."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import blockscale as bs
from blockscale import _native, evidence, info
from blockscale.info import select_target

from ..conftest import why_no_cuda

PACKAGE = Path(bs.__file__).parent


@pytest.mark.parametrize(
    ("capability", "target"),
    [((9, 0), "sm_90a"), ((10, 0), "sm_100a"), ((10, 3), "sm_103a"), ((12, 0), "sm_120a")],
)
def test_bug_84_select_target(capability: tuple[int, int], target: str) -> None:
    assert select_target(capability) == target
    assert target in evidence.CUDA_TARGETS


@pytest.mark.parametrize("capability", [(8, 9), (8, 0), (9, 1), (10, 1), (10, 7), (11, 0), (12, 1), (13, 0), (0, 0)])
def test_bug_84_capabilities_without_kernels(capability: tuple[int, int]) -> None:
    got = re.escape(".".join(map(str, capability)))
    with pytest.raises(
        NotImplementedError, match=rf"^select_target: compute capability .*; got {got}\. Use CPU tensors"
    ):
        select_target(capability)


class FakeBackend:
    """A backend that was built with some of the GEMM kernels."""

    def __init__(self, kernels: frozenset[str]) -> None:
        self.kernels = kernels

    def gemm_built(self, kernel: int) -> int:
        return int(bs.dispatch.KERNELS[kernel].name in self.kernels)


class FakeLibrary:
    """A CUDA library of given targets, whose probe fails with a reason if there is one."""

    def __init__(self, targets: str, reason: str | None = None, kernels: frozenset[str] = frozenset()) -> None:
        self.targets = targets
        self.reason = reason
        self.backend = FakeBackend(kernels)

    def probe(self, device: int) -> None:
        if self.reason is not None:
            raise RuntimeError(self.reason)


def fake_cuda(
    monkeypatch: pytest.MonkeyPatch, library: FakeLibrary | None, capabilities: list[tuple[int, int]]
) -> None:
    def cuda_library() -> FakeLibrary:
        if library is None:
            raise RuntimeError("blockscale was built without CUDA: rebuild")
        return library

    monkeypatch.setattr(_native, "cuda_library", cuda_library)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: bool(capabilities))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: len(capabilities))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda index: capabilities[index])
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda index: f"GPU {index}")


def test_without_a_cuda_library(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_cuda(monkeypatch, None, [])
    answer = info.collect()
    assert answer["backends"] == ["cpu"] and answer["cuda"]["usable"] is False
    assert answer["cuda"]["reason"] == "blockscale was built without CUDA: rebuild"
    for path in answer["paths"]:
        on_cpu = path["target"] == "cpu"
        assert path["built"] is on_cpu
        assert path["grade"] == ("bit-exact on CPU" if on_cpu else None)
        assert (path["path"] == "not built") is not on_cpu


def test_a_gpu_without_a_cuda_library(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_cuda(monkeypatch, None, [(9, 0)])
    answer = info.collect()
    assert answer["backends"] == ["cpu"]
    assert answer["cuda"]["devices"] == [
        {
            "index": 0,
            "name": "GPU 0",
            "capability": "9.0",
            "target": "sm_90a",
            "reason": "this build has no CUDA library",
        }
    ]


def test_with_a_usable_device(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    fake_cuda(monkeypatch, FakeLibrary("90a;100a"), [(8, 6), (9, 0)])
    answer = info.collect()
    assert answer["backends"] == ["cpu", "cuda"] and answer["cuda"]["reason"] is None
    assert answer["cuda"]["library"] == ["sm_90a", "sm_100a"]
    first, second = answer["cuda"]["devices"]
    assert first["target"] is None and "8.6" in first["reason"] and second["reason"] is None
    built = {path["target"] for path in answer["paths"] if path["built"]}
    assert built == {"cpu", "sm_90a", "sm_100a"}
    gemm = next(path for path in answer["paths"] if (path["operation"], path["target"]) == ("gemm", "sm_100a"))
    assert gemm["path"] == f"kernel: {evidence.FUSED['sm_100a']}" and gemm["grade"] == "compiled only"
    from blockscale._terminal import Terminal

    info.show(answer, Terminal())
    text = capsys.readouterr().out
    assert "backends" in text and "cpu, cuda" in text and "cuda:1  GPU 1, capability 9.0: runs sm_90a" in text


def test_gemm_kernels_of_a_target(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    core = frozenset(kernel.name for kernel in bs.dispatch.KERNELS if kernel.core)
    fake_cuda(monkeypatch, FakeLibrary("90a;100a", kernels=core - {"sm90_128x128x64_f32"}), [(10, 0)])
    hopper, blackwell = info.collect()["gemm_kernels"]
    assert hopper["target"] == "sm_90a" and hopper["known"] == 4
    assert hopper["built"] == ["sm90_128x128x64_b16", "sm90_128x128x64_nvfp4"]
    assert blackwell["target"] == "sm_100a" and len(blackwell["built"]) == 5
    assert {choice["config"].split()[0] for choice in blackwell["choices"]} <= core
    assert blackwell["choices"][-1] == {"m": 8192, "n": 8192, "k": 8192, "config": "sm100_256x256x256_b16 2x1"}
    json.dumps(blackwell)
    from blockscale._terminal import Terminal

    info.show(info.collect(), Terminal())
    text = capsys.readouterr().out
    assert "Fused GEMM kernels for sm_100a: 5 of 16 built" in text and "sm100_256x256x256_b16 2x1" in text
    assert "an estimate, not a measurement" in text


def test_a_library_without_gemm_kernels(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    fake_cuda(monkeypatch, FakeLibrary("90a"), [(9, 0)])
    answer = info.collect()
    assert answer["gemm_kernels"][0]["built"] == []
    assert all(choice["config"] is None for choice in answer["gemm_kernels"][0]["choices"])
    from blockscale._terminal import Terminal

    info.show(answer, Terminal())
    assert "Fused GEMM kernels for sm_90a: 0 of 4 built" in capsys.readouterr().out


def test_no_cuda_library_has_no_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_cuda(monkeypatch, None, [])
    assert info.collect()["gemm_kernels"] == []


OLD_DRIVER = "CUDA driver 12.8 is older than the runtime 13.0, which needs driver 580 or newer"


@pytest.mark.parametrize("capabilities", [[], [(9, 0)]], ids=["torch sees none", "torch sees it"])
def test_bug_87_driver_older_than_the_runtime(
    capabilities: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fake_cuda(monkeypatch, FakeLibrary("90a", OLD_DRIVER), capabilities)
    answer = info.collect()
    assert answer["backends"] == ["cpu"] and answer["cuda"]["reason"] == OLD_DRIVER
    from blockscale.cli import main

    assert main(["check"]) == 0
    assert f"cuda: not checked: {OLD_DRIVER}" in capsys.readouterr().out


def test_a_library_without_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_cuda(monkeypatch, FakeLibrary("90a"), [])
    reason = info.collect()["cuda"]["reason"]
    assert reason.startswith(f"torch {torch.__version__} ") and "CUDA" in reason


def test_bug_82_import_and_info_without_a_gpu() -> None:
    """No GPU is visible, and nothing at import looks for one."""
    program = (
        "import torch\n"
        "def fail(*args, **kwargs): raise AssertionError('CUDA was touched at import')\n"
        "for name in ('is_available', 'device_count', 'init', '_lazy_init', 'current_device'):\n"
        "    setattr(torch.cuda, name, fail)\n"
        "import blockscale as bs\n"
        "print(bs.dequantize(bs.quantize(torch.ones(1, 16))).tolist())\n"
    )
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    options: dict[str, Any] = {"capture_output": True, "text": True, "check": True, "env": environment}
    done = subprocess.run([sys.executable, "-c", program], **options)
    assert done.stdout.strip() == str([[1.0] * 16])
    done = subprocess.run([sys.executable, "-m", "blockscale", "info", "--json"], **options)
    answer = json.loads(done.stdout)
    assert answer["backends"] == ["cpu"] and answer["cuda"]["reason"]
    assert answer["versions"]["blockscale"] == bs.__version__


@pytest.mark.skipif(not why_no_cuda(), reason="there is a GPU here")
def test_bug_82_a_cuda_request_says_why() -> None:
    with pytest.raises((RuntimeError, AssertionError), match=r"CUDA"):
        bs.quantize(torch.ones(1, 16, device="cuda"))
    with pytest.raises(RuntimeError, match=r"quantize|blockscale|CUDA"):
        _native.backend_of("quantize", torch.device("cuda", 0))


def test_bug_82_no_module_level_cuda_call() -> None:
    """Lines that call torch.cuda stand inside functions."""
    for path in PACKAGE.rglob("*.py"):
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            assert not re.match(r"[^\s#].*torch\.cuda\.\w+\(", line), f"{path.name}:{number}: {line}"


FOREIGN_BUILD = """
import sys

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "blockscale._C":
            raise ImportError("undefined symbol: _ZN3c1013MessageLoggerC1EPKciib")

sys.meta_path.insert(0, Finder())
import blockscale
"""


def test_bug_88_a_foreign_build_says_what_to_do() -> None:
    done = subprocess.run([sys.executable, "-c", FOREIGN_BUILD], capture_output=True, text=True, check=False)
    assert done.returncode != 0
    last = done.stderr.strip().splitlines()[-1]
    for part in ("ImportError", "_ZN3c10", f"Python {sys.version.split()[0]}", f"torch {torch.__version__}", "Rebuild"):
        assert part in last, last


def test_bug_88_no_native_library_refers_to_torch() -> None:
    libraries = list(Path(bs._native._C.__file__).parent.glob("*.so"))  # type: ignore[attr-defined]
    assert libraries
    for library in libraries:
        content = library.read_bytes()
        for symbol in (b"_ZN3c10", b"_ZNK3c10", b"_ZN2at", b"_ZNK2at", b"_ZN5torch", b"libtorch", b"libc10"):
            assert symbol not in content, f"{library.name}: {symbol.decode()}"


@pytest.mark.gpu
def test_the_device_here_is_usable(cuda: torch.device) -> None:
    answer = info.collect()
    assert answer["backends"] == ["cpu", "cuda"]
    assert answer["cuda"]["devices"][0]["target"] == select_target(torch.cuda.get_device_capability(cuda))
