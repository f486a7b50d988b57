# SPDX-License-Identifier: Apache-2.0
"""Can the tests fail? Breaks a copy of the sources, one small fault at a time, and demands that a test notices.

    python scripts/mutation_check.py                 all mutants of scripts/mutants.py
    python scripts/mutation_check.py --list
    python scripts/mutation_check.py --only NAME     (may be repeated)

The working tree is never touched. Exit status: 0 if every mutant was killed, 1 if one survived or could not be tried, 2
if the tests fail without any mutant. Needs cmake, ninja and pybind11.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from mutant import Mutant
from mutants import MUTANTS

ROOT = Path(__file__).resolve().parent.parent
COPIED = ("CMakeLists.txt", "pyproject.toml", "README.md", "kernels", "python", "scripts", "tests", "third_party")
TIMEOUT_S = 300
PASSED, FAILED = 0, 1  # exit statuses of pytest


class Copy:
    """A copy of the tree with a build folder that is kept from mutant to mutant."""

    def __init__(self, folder: Path, deselected: list[str]) -> None:
        self.deselected = [f"--deselect={test}" for test in deselected]
        self.root = folder / "tree"
        self.build_folder = folder / "build"
        self.root.mkdir()
        ignored = shutil.ignore_patterns("__pycache__", "*.so", ".pytest_cache", ".hypothesis")
        for name in COPIED:
            source = ROOT / name
            if source.is_dir():
                shutil.copytree(source, self.root / name, ignore=ignored)
            elif source.exists():
                shutil.copy2(source, self.root / name)
        paths = [str(self.root / "python"), os.environ.get("PYTHONPATH", "")]
        self.environment = os.environ | {
            "PYTHONPATH": os.pathsep.join(filter(None, paths)),
            "PYTHONDONTWRITEBYTECODE": "1",
        }

    def run(self, *command: str, timeout: float | None = None) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command, cwd=self.root, env=self.environment, capture_output=True, text=True, timeout=timeout, check=False
        )

    def configure(self) -> None:
        pybind11 = self._checked(sys.executable, "-m", "pybind11", "--cmakedir").strip()
        self._checked(
            "cmake", "-S", ".", "-B", str(self.build_folder), "-G", "Ninja", f"-DPython_EXECUTABLE={sys.executable}",
            f"-Dpybind11_DIR={pybind11}", "-DBLOCKSCALE_CUDA_ARCHS=none",
        )  # fmt: skip
        self.build()
        where = self._checked(sys.executable, "-c", "import blockscale; print(blockscale.__file__)").strip()
        if not Path(where).is_relative_to(self.root):
            raise SystemExit(f"mutation_check: the tests would import {where}, not the copy under test.")

    def build(self) -> None:
        """Builds what changed and puts the module into the copy. RuntimeError if it does not compile."""
        self._checked("cmake", "--build", str(self.build_folder))
        self._checked("cmake", "--install", str(self.build_folder), "--prefix", "python")

    def pytest(self, tests: tuple[str, ...]) -> tuple[int, str]:
        """(exit status, last lines). A crash is a negative status; one that hangs counts as a failed test."""
        options = ("-x", "-q", "--no-header", "-p", "no:cacheprovider", *self.deselected)
        try:
            done = self.run(sys.executable, "-m", "pytest", *options, *tests, timeout=TIMEOUT_S)
        except subprocess.TimeoutExpired:
            return FAILED, f"no end after {TIMEOUT_S} s"
        return done.returncode, done.stdout + done.stderr

    def _checked(self, *command: str) -> str:
        done = self.run(*command)
        if done.returncode != 0:
            raise RuntimeError(f"{' '.join(command)}:\n{done.stdout[-3000:]}{done.stderr[-3000:]}")
        return done.stdout


def first_failure(output: str) -> str:
    """The test that noticed, from pytest's summary."""
    for line in output.splitlines():
        if line.startswith(("FAILED ", "ERROR ")):
            return line.split(" ", 2)[1]
    return output.strip().splitlines()[-1] if output.strip() else "no output"


def try_mutant(copy: Copy, mutant: Mutant) -> tuple[str, str]:
    """("killed", "survived" or "broken", why). The file is restored."""
    path = copy.root / mutant.file
    original = path.read_text()
    if original.count(mutant.old) != 1:
        return "broken", f"the old text occurs {original.count(mutant.old)} times in {mutant.file}"
    try:
        path.write_text(original.replace(mutant.old, mutant.new))
        if mutant.native:
            copy.build()
        status, output = copy.pytest(mutant.tests)
    except RuntimeError as error:
        return "broken", f"it does not build: {error}"
    finally:
        path.write_text(original)
    if status == PASSED:
        return "survived", f"{', '.join(mutant.tests)} pass"
    if status == FAILED:
        return "killed", first_failure(output)
    if status < 0:
        return "killed", f"the tests crash with signal {-status}"
    return "broken", f"pytest ended with status {status}: {output[-500:]}"


def baseline(copy: Copy, mutants: list[Mutant]) -> bool:
    """Whether the tests pass without a mutant."""
    tests = tuple(dict.fromkeys(test for mutant in mutants for test in mutant.tests))
    status, output = copy.pytest(tests)
    if status != PASSED:
        print(f"without any mutant, {first_failure(output)} fails: mend that first", file=sys.stderr)
    return status == PASSED


def check(copy: Copy, mutants: list[Mutant]) -> list[str]:
    """Tries each; the names of those that were not killed."""
    alive: list[str] = []
    must_rebuild = False
    for mutant in sorted(mutants, key=lambda m: m.file):  # neighbours share a file and so a rebuild
        if must_rebuild and not mutant.native:
            copy.build()
        start = time.monotonic()
        verdict, why = try_mutant(copy, mutant)
        must_rebuild = mutant.native
        if verdict != "killed":
            alive.append(mutant.name)
        print(f"{verdict:8} {mutant.name:40} {time.monotonic() - start:5.1f} s  {why}", flush=True)
    return alive


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", action="store_true", help="show the mutants and leave")
    parser.add_argument("--only", action="append", metavar="NAME", help="try this one; may be repeated")
    parser.add_argument("--deselect", action="append", default=[], metavar="TEST", help="a test that fails already")
    args = parser.parse_args()
    known = {mutant.name: mutant for mutant in MUTANTS}
    if args.list:
        for mutant in MUTANTS:
            print(f"{mutant.name:40} {mutant.file}")
        return 0
    unknown = set(args.only or ()) - set(known)
    if unknown:
        parser.error(f"no mutant named {', '.join(sorted(unknown))}; see --list")
    chosen = [known[name] for name in args.only] if args.only else list(MUTANTS)
    with tempfile.TemporaryDirectory(prefix="blockscale-mutants-") as folder:
        copy = Copy(Path(folder), args.deselect)
        copy.configure()
        if not baseline(copy, chosen):
            return 2
        alive = check(copy, chosen)
    print(
        f"{len(chosen) - len(alive)} of {len(chosen)} mutants killed" + (f"; left: {', '.join(alive)}" if alive else "")
    )
    return 1 if alive else 0


if __name__ == "__main__":
    sys.exit(main())
