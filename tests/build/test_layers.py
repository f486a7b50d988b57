# SPDX-License-Identifier: Apache-2.0
"""The rules of the source tree that a reviewer would forget: layers, licences, sizes, no assert, no CUDA at import."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import blockscale

ROOT = Path(__file__).parents[2]
KERNELS = ROOT / "kernels"
PACKAGE = ROOT / "python" / "blockscale"

LAYERS = {"numerics": 0, "contract": 1, "cpu": 2, "cuda": 2, "dispatch": 3, "bind": 4}
"""A file includes its own layer or a lower one; cpu and cuda, side by side, do not include each other."""

SOURCES = {".h", ".cpp", ".cu", ".cuh"}
_INCLUDE = re.compile(r'^\s*#\s*include\s*(["<])([^">]+)[">]', re.MULTILINE)


def kernel_files() -> list[Path]:
    return sorted(path for path in KERNELS.rglob("*") if path.suffix in SOURCES)


def python_files(folder: Path = PACKAGE) -> list[Path]:
    return sorted(path for path in folder.rglob("*.py") if "__pycache__" not in path.parts)


def written_files() -> list[Path]:
    """Everything with a licence line: sources, tests, build scripts."""
    cmake = [ROOT / "CMakeLists.txt", *KERNELS.rglob("CMakeLists.txt"), *(ROOT / "third_party").rglob("*.cmake")]
    native = [path for path in (ROOT / "tests").rglob("*") if path.suffix in SOURCES]
    scripts = [path for name in ("tests", "perf", "scripts") for path in python_files(ROOT / name)]
    return [*kernel_files(), *python_files(), *PACKAGE.rglob("*.pyi"), *cmake, *native, *scripts]


def includes(path: Path) -> list[tuple[str, str]]:
    """(quote, name) of each include line."""
    return _INCLUDE.findall(path.read_text())


def layer_of(path: Path) -> str:
    return path.relative_to(KERNELS).parts[0]


def target_layer(path: Path, name: str) -> str | None:
    """The layer that a quoted include reaches, or None for a header that is not ours."""
    beside, rooted = path.parent / name, KERNELS / name
    for candidate in (beside, rooted):
        if candidate.exists():
            return layer_of(candidate.resolve())
    return None


def test_the_tree_is_found() -> None:
    assert len(kernel_files()) > 20
    assert {layer_of(path) for path in kernel_files()} <= LAYERS.keys()
    assert len(python_files()) > 10


@pytest.mark.parametrize("path", kernel_files(), ids=lambda path: str(path.relative_to(KERNELS)))
def test_an_include_goes_to_a_lower_layer(path: Path) -> None:
    own = layer_of(path)
    for quote, name in includes(path):
        if quote != '"':
            continue
        other = target_layer(path, name)
        assert other is not None, f"{path}: {name} is not in the tree; foreign headers stand in <>"
        allowed = other == own or LAYERS[other] < LAYERS[own]
        assert allowed, f"{path.relative_to(ROOT)} ({own}) includes {name} ({other})"


@pytest.mark.parametrize("path", kernel_files(), ids=lambda path: str(path.relative_to(KERNELS)))
def test_what_a_layer_may_know(path: Path) -> None:
    names = [name for _, name in includes(path)]
    own = layer_of(path)
    foreign = {name for name in names if re.match(r"(torch|ATen|c10|pytorch)/|torch\.h", name)}
    assert not foreign, f"{path}: no torch in the native libraries: {foreign}"
    if own != "cuda":
        cuda = {name for name in names if re.match(r"cuda|cutlass|cute|cub/", name)}
        assert not cuda, f"{path}: {cuda}"
    if own != "bind":
        assert not [name for name in names if "pybind11" in name or name == "Python.h"], path


def test_the_rule_sees_a_wrong_include(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for layer in LAYERS:
        (tmp_path / layer).mkdir()
        (tmp_path / layer / "x.h").write_text("")
    bad = tmp_path / "cpu" / "bad.cpp"
    bad.write_text('  #  include "cuda/x.h"\n#include <vector>\n')
    monkeypatch.setattr(sys.modules[__name__], "KERNELS", tmp_path)
    monkeypatch.setattr(sys.modules[__name__], "ROOT", tmp_path)
    with pytest.raises(AssertionError, match=r"cpu/bad.cpp \(cpu\) includes cuda/x.h \(cuda\)"):
        test_an_include_goes_to_a_lower_layer(bad)
    bad.write_text("#include <torch/extension.h>\n")
    with pytest.raises(AssertionError, match="no torch"):
        test_what_a_layer_may_know(bad)


def test_bug_86_conversion_headers_are_included_where_they_are_used() -> None:
    """cuda_fp4.h and cuda_fp8.h come directly, never through another header."""
    for word, header in (("__nv_fp4|__nv_cvt_float2?_to_fp4", "cuda_fp4.h"), ("__nv_fp8|_to_fp8", "cuda_fp8.h")):
        for path in kernel_files():
            if re.search(word, path.read_text()):
                assert header in [name for _, name in includes(path)], f"{path} uses {header} without including it"


@pytest.mark.parametrize("path", written_files(), ids=lambda path: str(path.relative_to(ROOT)))
def test_licence_and_size(path: Path) -> None:
    text = path.read_text()
    if not text:
        assert path.name == "__init__.py"
        return
    first = text.splitlines()[0]
    assert re.fullmatch(r"(#|//|/\*) SPDX-License-Identifier: Apache-2\.0", first), first
    lines = text.count("\n")
    assert lines <= 500, f"{lines} lines: what is the second idea in this file?"


@pytest.mark.parametrize("path", python_files(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_bug_59_no_assert_in_the_package(path: Path) -> None:
    lines = [node.lineno for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Assert)]
    assert not lines, f"{path.name}: contracts are exceptions; assert at lines {lines}"


def _module_level(node: ast.AST) -> Iterator[ast.AST]:
    """What runs when the module is imported: everything but the bodies of functions."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            for part in [*child.args.defaults, *getattr(child, "decorator_list", [])]:
                yield part
                yield from _module_level(part)
            continue
        yield child
        yield from _module_level(child)


@pytest.mark.parametrize("path", python_files(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_bug_82_no_cuda_call_at_import(path: Path) -> None:
    for node in _module_level(ast.parse(path.read_text())):
        if isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            assert "cuda" not in called.split("(")[0].split("."), f"{path.name}:{node.lineno}: {called}() at import"
            assert not called.startswith(("os.environ", "os.getenv", "subprocess.")), f"{path.name}:{node.lineno}"


_PROBE = """
import sys
import torch
def boom(*args, **keywords):
    raise SystemExit("import or a CPU call touched CUDA")
for name in ("init", "_lazy_init", "current_device", "get_device_capability", "get_device_properties", "synchronize"):
    setattr(torch.cuda, name, boom)
torch._C._cuda_init = boom
before = set(sys.modules)
import blockscale as bs
loaded = {name.split(".")[0] for name in set(sys.modules) - before}
x = torch.ones(16, 16)
q = bs.quantize(x)
assert torch.equal(bs.dequantize(q), x)
assert torch.equal(bs.gemm(q, q, out_dtype=torch.float32), torch.full((16, 16), 16.0))
assert torch.equal(bs.dequantize(bs.transpose(bs.quantize(x, block=(16, 16)))), x)
try:
    bs._native.backend_of("quantize", torch.device("cuda", 0))
except RuntimeError as error:
    print("reason:", error)
print("loaded:", sorted(loaded & {"transformers", "matplotlib", "rich", "safetensors", "triton", "cutlass"}))
"""


def test_bug_82_import_without_a_gpu() -> None:
    """A process that sees no GPU, and whose CUDA entry points raise: import and the CPU backend work."""
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-W", "error::DeprecationWarning:blockscale", "-c", _PROBE]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "loaded: []" in done.stdout
    reason = [line for line in done.stdout.splitlines() if line.startswith("reason: ")]
    assert reason, "a CUDA request must be a RuntimeError that says why"
    assert re.search("built without CUDA|no GPU|driver|device", reason[0]), reason[0]


def test_the_package_under_test_is_this_one() -> None:
    assert Path(blockscale.__file__).parent.name == "blockscale"
