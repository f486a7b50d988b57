# SPDX-License-Identifier: Apache-2.0
"""The command `blockscale`: `info`, `check`, `demo`, `bench`.

Exit status: 0 done; 1 `check` found a difference; 2 the command cannot be carried out as given, with one line why.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from ._terminal import Terminal, UsageError
from .version import __version__

_BENCHMARK = "perf.casts"
"""The module of a checkout that measures; it is not part of the installed package."""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line and returns the exit status."""
    parser = _parser()
    args, rest = parser.parse_known_args(argv)
    if rest and args.command != "bench":
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    args.rest = rest
    if args.command is None:
        parser.print_help()
        return 0
    try:
        return int(args.run(args))
    except UsageError as error:
        print(f"blockscale {args.command}: error: {error}", file=sys.stderr)
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="blockscale", description="NVFP4 casts and GEMM on CPU and GPU.")
    parser.add_argument("--version", action="version", version=f"blockscale {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="command")

    info = commands.add_parser("info", help="versions, devices, and how each operation runs and is proven")
    form = info.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print everything as JSON")
    form.add_argument("--markdown", action="store_true", help="print the README's support table")
    info.set_defaults(run=_info)

    check = commands.add_parser("check", help="compare this installation with the plain-torch reference")
    check.add_argument("--seed", type=int, default=0, help="of the random data (default: 0)")
    check.set_defaults(run=_check)

    demo = commands.add_parser("demo", help="convert a real model to NVFP4 and compare it with FP32")
    demo.add_argument("--model", type=Path, metavar="PATH", help="a Hugging Face folder; default: the packaged model")
    demo.add_argument("--sentences", type=Path, metavar="FILE", help="one sentence a line; default: 48 built in")
    demo.add_argument("--out", type=Path, metavar="PNG", help="the figure (default: demo-<model>.png)")
    demo.add_argument("--json", type=Path, metavar="FILE", help="write all numbers as JSON too")
    demo.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="default: cpu")
    demo.set_defaults(run=_demo)

    about = "measure casts on this machine, in a checkout"
    bench = commands.add_parser("bench", help=about, description=f"{about}; arguments go to {_BENCHMARK}")
    bench.set_defaults(run=_bench)
    return parser


def _info(args: argparse.Namespace) -> int:
    from . import evidence, info

    if args.markdown:
        print(evidence.support_table(), end="")
    elif args.json:
        print(json.dumps(info.collect(), indent=2))
    else:
        info.show(info.collect(), Terminal())
    return 0


def _check(args: argparse.Namespace) -> int:
    import torch

    from . import check, info

    terminal = Terminal()
    cuda = info.cuda_state()
    places = [(torch.device("cpu"), "cpu", "cpu")]
    places += [
        (torch.device("cuda", device.index), device.target, f"cuda:{device.index}, {device.name}")
        for device in cuda.usable
        if device.target is not None
    ]
    failed = total = 0
    for device, target, title in places:
        done = list(check.run_checks(device, target, args.seed))
        failed += sum(one.found is not None for one in done)
        total += len(done)
        terminal.heading(f"{title} against blockscale.reference")
        rows = [[one.operation, one.what, "DIFFERS" if one.found else "equal", one.grade] for one in done]
        terminal.table(("operation", "compared", "result", "evidence"), rows)
        for one in done:
            if one.found is not None:
                terminal.line(f"{one.operation}, {one.what}: {one.found}", style="red")
    if not cuda.usable:
        terminal.line(f"cuda: not checked: {cuda.reason}")
    terminal.line(f"{total - failed} of {total} checks passed (seed {args.seed})")
    return 1 if failed else 0


def _demo(args: argparse.Namespace) -> int:
    from . import demo

    options = demo.Options(args.model, args.sentences, args.out, args.json, args.device)
    demo.run(options, Terminal())
    return 0


def _bench(args: argparse.Namespace) -> int:
    source = Path(*_BENCHMARK.split(".")).with_suffix(".py")
    if not source.is_file():
        raise UsageError(f"{source} is not here: benchmarks run in a checkout of the repository, not from the package")
    return subprocess.run([sys.executable, "-m", _BENCHMARK, *args.rest], check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
