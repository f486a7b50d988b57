# SPDX-License-Identifier: Apache-2.0
"""The command line: statuses, one-line errors, `check` that can fail, `bench`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import blockscale as bs
from blockscale import _terminal, check, evidence, functional, matmul
from blockscale.cli import main

CPU = torch.device("cpu")


def test_no_argument_prints_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    text = capsys.readouterr().out
    for command in ("info", "check", "demo", "bench"):
        assert command in text


@pytest.mark.parametrize(
    "arguments", [["nonsense"], ["info", "--nope"], ["demo", "--device", "tpu"], ["check", "--seed", "x"]]
)
def test_bad_use_is_status_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    assert "error:" in capsys.readouterr().err


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["--version"])
    assert caught.value.code == 0
    assert capsys.readouterr().out.strip() == f"blockscale {bs.__version__}"


def test_info_in_its_three_forms(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info"]) == 0
    text = capsys.readouterr().out
    assert torch.__version__ in text and "bit-exact on CPU" in text and evidence.BF16_ROUTE in text
    assert main(["info", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["backends"][0] == "cpu" and len(answer["paths"]) == len(evidence.paths())
    assert main(["info", "--markdown"]) == 0
    assert capsys.readouterr().out == evidence.support_table()


def test_check_passes_here(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--seed", "3"]) == 0
    text = capsys.readouterr().out
    assert "cpu against blockscale.reference" in text and "bit-exact on CPU" in text and "DIFFERS" not in text
    total = int(text.rsplit(" checks passed")[0].rsplit(" of ")[-1])
    assert f"{total} of {total} checks passed (seed 3)" in text


def test_check_covers_every_operation() -> None:
    done = list(check.run_checks(CPU, "cpu"))
    assert {one.operation for one in done} == set(evidence.OPERATIONS)
    assert all(one.found is None for one in done)
    assert {one.grade for one in done} == {"bit-exact on CPU"}


def _flipped(op: bs.NVFP4Operand) -> bs.NVFP4Operand:
    op.qdata[1, 2] ^= 1
    return op


MUTANTS: list[tuple[Any, str, Any]] = [
    (functional, "amax", lambda real: lambda *a: real(*a) * (1 + 2.0**-23)),
    (functional, "quantize", lambda real: lambda *a, **k: _flipped(real(*a, **k))),
    (functional, "quantize_both", lambda real: lambda *a, **k: (real(*a, **k)[0], _flipped(real(*a, **k)[1]))),
    (functional, "dequantize", lambda real: lambda *a, **k: -real(*a, **k)),
    (functional, "transpose", lambda real: lambda op: op),
    (functional, "swizzle_scales", lambda real: lambda op: op),
    (matmul, "gemm", lambda real: lambda *a, **k: real(*a, **{**k, "bias": None})),
]


@pytest.mark.parametrize(("module", "name", "mutate"), MUTANTS, ids=[name for _, name, _ in MUTANTS])
def test_check_fails_on_a_difference(
    module: Any, name: str, mutate: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(module, name, mutate(getattr(module, name)))
    assert main(["check"]) == 1
    text = capsys.readouterr().out
    assert "DIFFERS" in text and name in text


def test_check_fails_on_an_exception(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def broken(*args: Any, **kwargs: Any) -> None:
        raise RuntimeError("no kernel image")

    monkeypatch.setattr(functional, "transpose", broken)
    assert main(["check"]) == 1
    assert "RuntimeError: no kernel image" in capsys.readouterr().out


def test_the_bound_for_gpus_is_one_that_can_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(0)
    a = bs.quantize(torch.randn(48, 256, generator=generator), scaling="row")
    b = bs.quantize(torch.randn(32, 256, generator=generator))
    assert check._compare_bounded(a, b, CPU) is None
    real = matmul.gemm
    monkeypatch.setattr(matmul, "gemm", lambda *args, **options: real(*args, **options) * (1 + 2.0**-10))
    found = check._compare_bounded(a, b, CPU)
    assert found is not None and "is right" in found


def test_bench_runs_in_a_checkout(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["bench", "--device", "cpu"]) == 2
    assert capsys.readouterr().err.startswith("blockscale bench: error: perf/casts.py is not here")
    (tmp_path / "perf").mkdir()
    (tmp_path / "perf" / "casts.py").write_text(
        "import sys\nopen('ran', 'w').write(' '.join(sys.argv[1:]))\nsys.exit(5)\n"
    )
    assert main(["bench", "--device", "cpu"]) == 5
    assert (tmp_path / "ran").read_text() == "--device cpu"


def test_python_m_blockscale() -> None:
    done = subprocess.run([sys.executable, "-m", "blockscale", "demo", "--model", "/nowhere"], capture_output=True,
                          text=True, check=False)  # fmt: skip
    assert done.returncode == 2
    assert len(done.stderr.strip().splitlines()) == 1 and done.stderr.startswith("blockscale demo: error: ")


def test_tables_without_rich(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(_terminal, "_console", lambda stderr: None)
    terminal = _terminal.Terminal()
    terminal.heading("Bytes")
    terminal.table(("name", "size"), [["a", "1,000"], ["long name", "7"]], numbers=(1,))
    with terminal.progress("working", 1) as step:
        step("one")
    expected = ["", "Bytes", "name        size", "---------  -----", "a          1,000", "long name      7"]
    assert capsys.readouterr().out.splitlines() == expected
    assert main(["info"]) == 0
    assert "sm_120a" in capsys.readouterr().out


def test_piped_output_is_plain(capsys: pytest.CaptureFixture[str]) -> None:
    terminal = _terminal.Terminal()
    terminal.line("[bold]not markup[/bold] " + "x" * 300, style="red")
    text = capsys.readouterr().out
    assert text == "[bold]not markup[/bold] " + "x" * 300 + "\n"
