# SPDX-License-Identifier: Apache-2.0
"""Every float through E2M1, E4M3, BF16 and FP16: exhaustive_codecs.cpp, compiled and run. numerics, section 1."""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

HERE = Path(__file__).parent
KERNELS = HERE.parents[1] / "kernels"
FLAGS = ["-std=c++17", "-O3", "-march=native", "-fopenmp", "-ffp-contract=off"]
WHEELS = "nvidia-cuda-runtime nvidia-cuda-cccl nvidia-cuda-crt"
INSTALL = f"no cuda_fp4.h: put nvcc on PATH, set CUDA_HOME, or pip install {WHEELS}"


def _toolkit_of(nvcc: str) -> Path | None:
    """The root of an nvcc, which may be a wrapper: asked from a dry run."""
    done = subprocess.run([nvcc, "--dryrun", "-x", "cu", os.devnull], capture_output=True, text=True, check=False)
    found = re.search(r"TOP=(\S+)", done.stdout + done.stderr)
    return Path(found[1]) if found else None


@functools.cache
def cuda_include() -> Path | None:
    """A folder with cuda_fp4.h: of nvcc on PATH, of CUDA_HOME, or of the wheels in this environment."""
    roots: list[Path | None] = []
    nvcc = shutil.which("nvcc")
    if nvcc is not None:
        roots.append(_toolkit_of(nvcc))
    if os.environ.get("CUDA_HOME"):
        roots.append(Path(os.environ["CUDA_HOME"]))
    roots += [Path(p) / "nvidia" / "cu13" for p in dict.fromkeys([*sys.path, sysconfig.get_path("purelib")]) if p]
    folders = [root / "include" for root in roots if root is not None]
    return next((folder for folder in folders if (folder / "cuda_fp4.h").exists()), None)


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The compiled program; with the CUDA comparison where there are headers."""
    compiler = os.environ.get("CXX") or shutil.which("g++") or shutil.which("clang++") or shutil.which("c++")
    if compiler is None:
        pytest.skip("needs a C++ compiler: install g++ or set CXX")
    out = tmp_path_factory.mktemp("codecs") / "exhaustive_codecs"
    command = [compiler, *FLAGS, f"-I{KERNELS}", str(HERE / "exhaustive_codecs.cpp"), "-o", str(out)]
    folder = cuda_include()
    if folder is not None:
        command += ["-DHAVE_CUDA_HEADERS", f"-isystem{folder}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    return out


@pytest.fixture(scope="module")
def all_floats(program: Path) -> dict[str, tuple[int, str]]:
    """Mismatches and the bits of the first one, by check."""
    done = subprocess.run([str(program)], capture_output=True, text=True, timeout=600, check=False)
    lines = [line.split() for line in done.stdout.splitlines()]
    assert len(lines) == 8, done.stdout + done.stderr
    return {name: (int(count), first) for name, count, first in lines}


@pytest.fixture(scope="module")
def tables(program: Path) -> list[list[str]]:
    done = subprocess.run([str(program), "tables"], capture_output=True, text=True, timeout=60, check=True)
    return [line.split() for line in done.stdout.splitlines()]


CHECKS = ("e2m1_lanes", "e2m1_scalar", "e4m3_lanes", "e4m3_scalar", "narrow_bf16", "narrow_f16")


@pytest.mark.parametrize("check", CHECKS)
def test_all_floats(check: str, all_floats: dict[str, tuple[int, str]]) -> None:
    count, first = all_floats[check]
    assert count == 0, f"{check}: {count} of 2^32 floats differ, the first has bits {first}"


@pytest.mark.parametrize("check", ["cuda_fp4", "cuda_fp8"])
def test_all_floats_against_the_cuda_headers(check: str, all_floats: dict[str, tuple[int, str]]) -> None:
    if cuda_include() is None:
        pytest.skip(INSTALL)
    count, first = all_floats[check]
    assert count == 0, f"{check}: {count} of 2^32 floats differ, the first has bits {first}"


def _values(tables: list[list[str]], name: str, column: int) -> np.ndarray:
    return np.array([int(row[column], 16) for row in tables if row[0] == name], dtype=np.uint32)


def test_values_of_codes_and_bytes(tables: list[list[str]]) -> None:
    codes = np.arange(16, dtype=np.uint8).view(ml_dtypes.float4_e2m1fn).astype(np.float32)
    np.testing.assert_array_equal(_values(tables, "e2m1_value", 2), codes.view(np.uint32))
    wanted = np.arange(128, dtype=np.uint8).view(ml_dtypes.float8_e4m3fn).astype(np.float32)
    got = _values(tables, "e4m3_value", 2).view(np.float32)
    np.testing.assert_array_equal(got[:127].view(np.uint32), wanted[:127].view(np.uint32))
    assert np.isnan(got[127])


def test_values_of_16_bit_inputs(tables: list[list[str]]) -> None:
    words = np.arange(1 << 16, dtype=np.uint16)
    for column, dtype in ((2, np.float16), (3, ml_dtypes.bfloat16)):
        got = _values(tables, "half", column).view(np.float32)
        wanted = words.view(dtype).astype(np.float32)
        nan = np.isnan(wanted)
        np.testing.assert_array_equal(np.isnan(got), nan)
        np.testing.assert_array_equal(got[~nan].view(np.uint32), wanted[~nan].view(np.uint32))


def test_codes_of_every_bf16_against_ml_dtypes(tables: list[list[str]]) -> None:
    """Finite inputs; ml_dtypes gives NaN for E4M3 above 464, where the rule here is to clamp."""
    x = np.arange(1 << 16, dtype=np.uint16).view(ml_dtypes.bfloat16).astype(np.float32)
    finite = np.isfinite(x)
    codes = _values(tables, "half", 4)
    np.testing.assert_array_equal(codes[finite], x[finite].astype(ml_dtypes.float4_e2m1fn).view(np.uint8))
    assert (codes[np.isnan(x)] == 7).all()
    clamped = np.minimum(np.abs(x), 448)[finite]
    np.testing.assert_array_equal(
        _values(tables, "half", 5)[finite], clamped.astype(ml_dtypes.float8_e4m3fn).view(np.uint8)
    )


def test_constants(tables: list[list[str]]) -> None:
    constants = {row[1]: row[2] for row in tables if row[0] == "constant"}
    assert constants == {
        "sixth": "3E2AAAAB",
        "used_sixth": "3E2AAAAB",
        "range_448": "39C30C31",
        "range_256": "3A2AAAAB",
    }


def test_the_program_sees_a_wrong_conversion(program: Path, tmp_path: Path) -> None:
    """A mutant of e2m1.h that sends ties away from zero must be found by the walk along the boundaries."""
    copy = tmp_path / "kernels"
    shutil.copytree(KERNELS / "numerics", copy / "numerics")
    header = copy / "numerics" / "e2m1.h"
    text = header.read_text()
    assert text.count("+ 6u)") == 1
    header.write_text(text.replace("+ 6u)", "+ 7u)"))
    source = (HERE / "exhaustive_codecs.cpp").read_text()
    few = source.replace("chunk = 0; chunk < (int64_t{1} << 32) / kChunk", "chunk = 1000; chunk < 1032")  # 0.25 to 4
    assert few != source
    (tmp_path / "mutant.cpp").write_text(few)
    compiler = os.environ.get("CXX") or shutil.which("g++") or "c++"
    out = tmp_path / "mutant"
    flags = [flag for flag in FLAGS if flag != "-O3"]
    subprocess.run([compiler, *flags, "-O1", f"-I{copy}", str(tmp_path / "mutant.cpp"), "-o", str(out)], check=True)
    done = subprocess.run([str(out)], capture_output=True, text=True, check=False)
    counts = {line.split()[0]: int(line.split()[1]) for line in done.stdout.splitlines()}
    assert done.returncode == 1
    assert counts["e2m1_lanes"] > 0
    assert counts["e4m3_lanes"] == 0
