# SPDX-License-Identifier: Apache-2.0
"""Which GPUs a build is for: what configure accepts, what it says to a mistake, and what the libraries depend on."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import blockscale as bs
from blockscale.info import select_target

ROOT = Path(__file__).parents[2]
CMAKE = shutil.which("cmake")
needs_cmake = pytest.mark.skipif(CMAKE is None, reason="needs cmake: pip install cmake")

_SCRIPT = """
cmake_minimum_required(VERSION 3.25)
set(Python_EXECUTABLE "{python}")
list(APPEND CMAKE_MODULE_PATH "{root}/third_party")
include(cuda_archs)
blockscale_select_archs()
message(STATUS "selected=[${{BLOCKSCALE_SELECTED_ARCHS}}] architectures=[${{CMAKE_CUDA_ARCHITECTURES}}]")
"""


class Configure:
    """Runs the choice of targets alone, with an nvcc and an nvidia-smi that are shell scripts."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        (folder / "choose.cmake").write_text(_SCRIPT.format(python=sys.executable, root=ROOT))

    def _tool(self, name: str, text: str) -> Path:
        path = self._folder / "bin" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)
        return path

    def __call__(self, archs: str, *, nvcc: str = "13.0", capabilities: str = "") -> tuple[int, str]:
        """(exit status, output with white space folded) for BLOCKSCALE_CUDA_ARCHS=archs."""
        compiler = self._tool(
            "nvcc", f'case "$1" in --version) echo "release {nvcc}, V{nvcc}.1";; *) echo "#$ TOP=/x";; esac'
        )
        listed = "".join(f"echo {capability}\n" for capability in capabilities.split())
        self._tool("nvidia-smi", listed or "exit 9")
        environment = {**os.environ, "CUDACXX": str(compiler)}
        environment["PATH"] = f"{compiler.parent}{os.pathsep}{os.environ['PATH']}"
        command = [str(CMAKE), f"-DBLOCKSCALE_CUDA_ARCHS={archs}", "-P", "choose.cmake"]
        done = subprocess.run(command, cwd=self._folder, env=environment, capture_output=True, text=True, check=False)
        return done.returncode, " ".join((done.stdout + done.stderr).split())


@pytest.fixture
def configure(tmp_path: Path) -> Configure:
    return Configure(tmp_path)


@needs_cmake
@pytest.mark.parametrize("arch", ["90", "100", "103", "120", "121"])
def test_bug_83_a_plain_architecture_is_refused_with_a_hint(arch: str, configure: Configure) -> None:
    for archs in (arch, f"90a;{arch}"):
        status, text = configure(archs)
        assert status != 0
        assert f"BLOCKSCALE_CUDA_ARCHS: {arch} must be written {arch}a" in text, text


@needs_cmake
@pytest.mark.parametrize("arch", ["107a", "89", "89a", "100f", "sm_100a", "all"])
def test_bug_84_an_unknown_architecture_is_refused(arch: str, configure: Configure) -> None:
    status, text = configure(arch)
    assert status != 0
    assert f"BLOCKSCALE_CUDA_ARCHS must be none or a list of 90a;100a;103a;120a;121a; got {arch}." in text, text


@needs_cmake
@pytest.mark.parametrize("archs", ["90a", "90a;100a;103a;120a", "90a,100a"])
def test_the_list_that_is_asked_for_is_built(archs: str, configure: Configure) -> None:
    status, text = configure(archs)
    wanted = re.split("[;,]", archs)
    assert status == 0, text
    assert f"selected=[{';'.join(wanted)}]" in text
    assert f"architectures=[{';'.join(arch + '-real' for arch in wanted)}]" in text


@needs_cmake
def test_no_targets_and_no_gpu(configure: Configure) -> None:
    for archs in ("none", ""):
        status, text = configure(archs)
        assert status == 0, text
        assert "selected=[]" in text


@needs_cmake
def test_bug_84_the_gpus_of_this_machine_by_their_exact_capability(configure: Configure) -> None:
    status, text = configure("", capabilities="10.3 10.3 12.0 8.9 10.7")
    assert status == 0, text
    assert "selected=[103a;120a]" in text
    for other in ("8.9", "10.7"):
        assert f"a GPU of compute capability {other} is not supported; it is left out" in text


@needs_cmake
@pytest.mark.parametrize(
    ("archs", "nvcc", "arch", "since"),
    [("90a;100a", "12.6", "100a", "12.8"), ("103a", "12.8", "103a", "12.9"), ("120a", "12.4", "120a", "12.8")],
)
def test_bug_86_a_toolkit_that_is_too_old(archs: str, nvcc: str, arch: str, since: str, configure: Configure) -> None:
    status, text = configure(archs, nvcc=nvcc)
    assert status != 0
    wanted = f"sm_{arch} needs CUDA >= {since} (found {nvcc}); build with BLOCKSCALE_CUDA_ARCHS=90a or without CUDA"
    assert wanted in text, text
    assert configure("90a", nvcc=nvcc)[0] == 0


@needs_cmake
def test_bug_83_the_real_configure_stops(tmp_path: Path) -> None:
    """The same through the project itself."""
    if importlib.util.find_spec("pybind11") is None:
        pytest.skip("needs pybind11: pip install pybind11")
    import pybind11

    command = [
        str(CMAKE), "-S", str(ROOT), "-B", str(tmp_path), "-DBLOCKSCALE_CUDA_ARCHS=120",
        f"-DPython_EXECUTABLE={sys.executable}", f"-Dpybind11_DIR={pybind11.get_cmake_dir()}",
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    text = " ".join((done.stdout + done.stderr).split())
    assert done.returncode != 0
    assert "must be written 120a" in text or "needs nvcc" in text, text
    assert "Configuring incomplete" in text


@pytest.mark.parametrize(
    ("capability", "target"),
    [((9, 0), "sm_90a"), ((10, 0), "sm_100a"), ((10, 3), "sm_103a"), ((12, 0), "sm_120a")],
)
def test_bug_84_target_of_a_capability(capability: tuple[int, int], target: str) -> None:
    assert select_target(capability) == target


@pytest.mark.parametrize("capability", [(10, 7), (12, 1), (8, 9), (8, 0), (11, 0), (9, 1), (10, 1), (13, 0)])
def test_bug_84_every_other_capability_is_refused(capability: tuple[int, int]) -> None:
    got = ".".join(map(str, capability))
    with pytest.raises(
        NotImplementedError, match=rf"must be one of 9\.0 .*12\.0.*; got {re.escape(got)}\. Use CPU tensors"
    ):
        select_target(capability)


def shipped_libraries() -> list[Path]:
    folder = Path(bs._C.__file__).parent
    return sorted(path for path in folder.glob("*.so"))


@pytest.mark.parametrize("path", shipped_libraries(), ids=lambda path: path.name)
def test_bug_88_no_symbol_of_torch(path: Path) -> None:
    nm = shutil.which("nm")
    if nm is None:
        pytest.skip("needs nm (binutils)")
    done = subprocess.run([nm, "-D", str(path)], capture_output=True, text=True, check=True)
    symbols = [line.split()[-1] for line in done.stdout.splitlines() if line.strip()]
    assert any("Py" in symbol or "blockscale" in symbol for symbol in symbols)
    foreign = re.compile(r"^_ZNK?(3c10|2at|5torch)|^_ZT[ISV]N(3c10|2at|5torch)|^(aoti|torch)_|^cu[A-Z]|^cudaMalloc")
    assert not [symbol for symbol in symbols if foreign.match(symbol)]


@pytest.mark.parametrize("path", shipped_libraries(), ids=lambda path: path.name)
def test_bug_88_no_library_but_the_systems(path: Path) -> None:
    readelf = shutil.which("readelf")
    if readelf is None:
        pytest.skip("needs readelf (binutils)")
    done = subprocess.run([readelf, "-d", str(path)], capture_output=True, text=True, check=True)
    needed = re.findall(r"\(NEEDED\).*\[(.+)\]", done.stdout)
    system = re.compile(r"(libstdc\+\+|libgcc_s|libgomp|libc|libm|libdl|libpthread|librt|ld-linux.*)\.so")
    assert not [name for name in needed if not system.match(name)]


def test_bug_88_a_native_module_that_does_not_load(monkeypatch: pytest.MonkeyPatch) -> None:
    """The message has the versions that run and how to rebuild; not only a mangled name."""
    source = Path(bs._native.__file__)
    spec = importlib.util.spec_from_file_location("blockscale._native_again", source)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.delattr(bs, "_C")
    monkeypatch.setitem(sys.modules, "blockscale._C", None)
    with pytest.raises(ImportError) as caught:
        spec.loader.exec_module(module)
    text = str(caught.value)
    for part in ("native module does not load", sys.version.split()[0], torch.__version__, "Rebuild with `pip install"):
        assert part in text


@pytest.mark.gpu
def test_bug_83_the_library_lists_its_targets(cuda: torch.device) -> None:
    targets = bs._native.cuda_library().targets
    assert re.fullmatch(r"(\d+a)([;, ]+\d+a)*", targets), targets
    assert select_target(torch.cuda.get_device_capability(cuda)).removeprefix("sm_") in re.split("[;, ]+", targets)
