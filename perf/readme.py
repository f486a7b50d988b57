# SPDX-License-Identifier: Apache-2.0
"""The tables of README.md that come from data: the speed section from result rows, the support table from evidence.py.

python -m perf.readme            # rewrite README.md
python -m perf.readme --check    # exit 1 if it is not what the data say
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

from blockscale import evidence

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "perf" / "results"


REPLACED = {"transpose"}
"""Casts whose kernels are newer than the recorded rows: shown again when they are measured again."""


def read_rows(name: str) -> list[dict[str, Any]]:
    """The rows of a result file."""
    return [json.loads(line) for line in (RESULTS / name).read_text().splitlines()]


def speed_section() -> str:
    """The speed tables in Markdown."""
    gpu, cpu, overhead = (read_rows(f"{name}.jsonl") for name in ("casts-h200", "casts-cpu", "overhead-cpu"))
    parts = [
        f"Casts on an {gpu[0]['device']} ({gpu[0]['date'][:10]}, torch {gpu[0]['torch']}), as a fraction of a copy "
        "that moves as many bytes in the same run, bytes counted once; `python -m perf.casts --device cuda`:",
        _fractions(gpu),
        f"On a CPU ({cpu[0]['device']}, {cpu[0]['isa']}, {cpu[0]['threads']} threads, {cpu[0]['date'][:10]}); "
        "`python -m perf.casts --device cpu`:",
        _fractions(cpu),
        *_yardsticks(cpu),
        "Host time of a call on tiny CPU inputs, microseconds; `python -m perf.overhead`: "
        + ", ".join(f"`{row['op']}` {row['median_us']:.1f}" for row in overhead)
        + ".",
    ]
    return "\n\n".join(parts)


def _fractions(rows: list[dict[str, Any]]) -> str:
    rows = [row for row in rows if " against " not in row["op"] and row["op"] not in REPLACED]
    shapes = list(dict.fromkeys(row["shape"] for row in rows))
    lines = ["| cast | " + " | ".join(shapes) + " |", "|---|" + "---|" * len(shapes)]
    for op, fmt in dict.fromkeys((row["op"], row["format"]) for row in rows):
        cells = []
        for shape in shapes:
            row = next(row for row in rows if (row["op"], row["format"], row["shape"]) == (op, fmt, shape))
            cells.append(f"{row['fraction']:.2f} ({row['median_us']:.1f} us)")
        lines.append(f"| `{op}` {fmt} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _yardsticks(rows: list[dict[str, Any]]) -> list[str]:
    found = {row["op"].rpartition(" ")[2]: row["fraction"] for row in rows if " against " in row["op"]}
    return [
        f"There `quantize` takes {1 / found['memcpy']:.1f} times as long as a memcpy of its input, and the plain-torch "
        f"reference {found['reference']:.0f} times as long as `quantize`."
    ]


def rewritten(text: str) -> str:
    """README.md with its generated parts replaced."""
    for opening, closing, body in (
        ("<!-- support table -->", "<!-- end -->", evidence.support_table()),
        ("<!-- speed -->", "<!-- end speed -->", speed_section()),
    ):
        pattern = re.escape(opening) + ".*?" + re.escape(closing)
        block = f"{opening}\n{body.strip()}\n{closing}"
        text = re.sub(pattern, lambda _, block=block: block, text, flags=re.DOTALL)
    return text


def main() -> int:
    path = ROOT / "README.md"
    text = path.read_text()
    new = rewritten(text)
    if "--check" in sys.argv:
        return int(text != new)
    path.write_text(new)
    return 0


if __name__ == "__main__":
    sys.exit(main())
