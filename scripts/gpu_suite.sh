#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# What is run on a GPU machine before a grade is raised: the GPU tests, then compute-sanitizer on a small target.
#
#   bash scripts/gpu_suite.sh SUMMARY.json [further pytest arguments, such as -m 'gpu and slow' or -k gemm]
#
# SUMMARY.json gets the device, the versions, and for each step its counts, seconds and exit status. Exit status 1 if a
# step failed. A step whose tool is missing is written down as not run. PYTHON chooses the interpreter; STEP_LIMIT the
# seconds after which a step is ended (1500).
set -uo pipefail
if [ $# -lt 1 ]; then
  sed -n '3,9p' "$0" >&2
  exit 2
fi
summary=$(realpath -m "$1")
shift
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}
limit=${STEP_LIMIT:-1500}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export PYTHONUNBUFFERED=1

# step NAME COMMAND...: output to the terminal and to NAME.log; exit status and seconds to NAME.status.
step() {
  local name=$1 start status
  shift
  echo "== $name: $*"
  start=$(date +%s.%N)
  timeout "$limit" "$@" 2>&1 | tee "$work/$name.log"
  status=${PIPESTATUS[0]}
  echo "$status $(echo "$(date +%s.%N) $start" | awk '{print $1 - $2}')" >"$work/$name.status"
}

step pytest "$python" -m pytest -q -m "gpu and not slow" --junitxml="$work/pytest.xml" "$@"

if command -v compute-sanitizer >/dev/null; then
  # One cudaMalloc for each tensor, so that the tool sees where each ends.
  export PYTORCH_NO_CUDA_MEMORY_CACHING=1
  for tool in memcheck racecheck initcheck; do
    step "$tool" compute-sanitizer --tool "$tool" --error-exitcode 9 --print-limit 20 \
      "$python" -m tests.gpu.sanitizer_target "$tool"
  done
fi

"$python" - "$work" "$summary" <<'PYTHON'
"""The logs of the steps as one JSON summary."""

import datetime
import json
import os
import re
import subprocess
import sys
import xml.etree.ElementTree as xml
from pathlib import Path

import torch

work, summary = Path(sys.argv[1]), Path(sys.argv[2])


def output(*command):
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None


def versions():
    dirty = output("git", "status", "--porcelain")
    facts = {"torch": torch.__version__, "cuda": torch.version.cuda, "date": datetime.date.today().isoformat()}
    # GIT_SHA names the commit where a copy of the tree without its history is tested.
    facts["git"] = os.environ.get("GIT_SHA") or output("git", "rev-parse", "HEAD")
    facts["dirty"] = False if "GIT_SHA" in os.environ else None if dirty is None else bool(dirty)
    facts["driver"] = output("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader")
    if torch.cuda.is_available():
        facts["device"] = torch.cuda.get_device_name(0)
        facts["capability"] = ".".join(map(str, torch.cuda.get_device_capability(0)))
    try:
        from blockscale._native import cuda_library

        facts["targets"] = cuda_library().targets
    except Exception as error:
        facts["targets"] = f"none: {error}"
    return facts


def tests():
    path = work / "pytest.xml"
    if not path.exists():
        return {}
    suite = xml.parse(path).getroot().find("testsuite")
    counts = {key: int(suite.get(key, 0)) for key in ("tests", "failures", "errors", "skipped")}
    failed = [
        f"{case.get('classname')}::{case.get('name')}"
        for case in suite.iter("testcase")
        if case.find("failure") is not None or case.find("error") is not None
    ]
    return counts | {"passed": counts["tests"] - sum(v for k, v in counts.items() if k != "tests"), "failed": failed}


def sanitizer(log):
    found = re.findall(r"(?:ERROR SUMMARY: (\d+) error|RACECHECK SUMMARY: (\d+) hazard)", log)
    target = re.search(r"(\d+) operations on .* match the CPU", log)
    return {
        "errors": sum(int(first or second) for first, second in found) if found else None,
        "operations": int(target.group(1)) if target else None,
    }


steps = {}
for name in ("pytest", "memcheck", "racecheck", "initcheck"):
    path = work / f"{name}.status"
    if not path.exists():
        steps[name] = {"run": False, "why": "compute-sanitizer is not on the PATH"}
        continue
    status, seconds = path.read_text().split()
    steps[name] = {"run": True, "status": int(status), "seconds": round(float(seconds), 1)}
    steps[name] |= tests() if name == "pytest" else sanitizer((work / f"{name}.log").read_text())

ok = all(step["status"] == 0 for step in steps.values() if step["run"]) and bool(steps["pytest"].get("passed"))
summary.parent.mkdir(parents=True, exist_ok=True)
summary.write_text(json.dumps({"ok": ok, "versions": versions(), "steps": steps}, indent=2) + "\n")
print(summary.read_text())
sys.exit(0 if ok else 1)
PYTHON
