# SPDX-License-Identifier: Apache-2.0
"""One measured case as a JSON row, and a table made from rows. Nothing in a table is typed by hand."""

from __future__ import annotations

import datetime
import json
import os
import platform
import statistics
import subprocess
from pathlib import Path
from typing import Any

import torch

import blockscale


def environment(device: str) -> dict[str, Any]:
    """What every row of a run carries: device, versions, commit."""
    facts: dict[str, Any] = {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "blockscale": blockscale.__version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        **_commit(),
    }
    if device == "cuda":
        properties = torch.cuda.get_device_properties(0)
        facts |= {
            "device": properties.name,
            "capability": f"{properties.major}.{properties.minor}",
            "sms": properties.multi_processor_count,
            "l2_bytes": properties.L2_cache_size,
            "cuda": torch.version.cuda,
            **_nvidia_smi(),
        }
    else:
        isa = blockscale._native._C.cpu_isa()
        facts |= {"device": _cpu_name(), "isa": isa, "threads": torch.get_num_threads()}
    return facts


def summary(samples: list[float]) -> dict[str, float]:
    """Median and quartiles of samples in microseconds."""
    low, middle, high = statistics.quantiles(samples, n=4) if len(samples) > 1 else [samples[0]] * 3
    return {"median_us": middle, "p25_us": low, "p75_us": high, "samples": len(samples)}


def write_rows(path: Path, rows: list[dict[str, Any]]) -> None:
    """JSON lines, and beside them a Markdown table of the same rows."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row, sort_keys=True) + "\n" for row in rows))
    path.with_suffix(".md").write_text(table(rows))


_COLUMNS = ("op", "shape", "format", "config", "median_us", "p25_us", "p75_us", "gb_per_s", "fraction", "ceiling")
_FACTS = ("device", "isa", "threads", "date", "torch", "driver", "git_sha", "dirty")


def table(rows: list[dict[str, Any]]) -> str:
    """A Markdown table of rows that share one environment."""
    facts = ", ".join(f"{key} {rows[0][key]}" for key in _FACTS if key in rows[0])
    used = [column for column in _COLUMNS if any(column in row for row in rows)]
    lines = [facts, "", "| " + " | ".join(used) + " |", "|" + " --- |" * len(used)]
    lines += ["| " + " | ".join(_cell(row.get(column, "")) for column in used) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def _cell(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.3f}" if value < 10 else f"{value:.1f}"
    return str(value)


def _run(*command: str) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=20).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""


def _commit() -> dict[str, Any]:
    """The commit measured. GIT_SHA names it where a copy of the tree without its history is measured."""
    if given := os.environ.get("GIT_SHA"):
        return {"git_sha": given, "dirty": False}
    root = str(Path(__file__).resolve().parent.parent)
    sha = _run("git", "-C", root, "rev-parse", "--short=12", "HEAD")
    return {"git_sha": sha or "unknown", "dirty": bool(_run("git", "-C", root, "status", "--porcelain"))}


def _nvidia_smi() -> dict[str, str]:
    fields = {"driver": "driver_version", "power_limit": "power.limit", "sm_clock_max": "clocks.max.sm"}
    line = _run("nvidia-smi", f"--query-gpu={','.join(fields.values())}", "--format=csv,noheader", "--id=0")
    return dict(zip(fields, (value.strip() for value in line.split(",")), strict=False)) if line else {}


def _cpu_name() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
