# SPDX-License-Identifier: Apache-2.0
"""`blockscale demo`: a real model in FP32 and in NVFP4, side by side. Start with `run` in `command.py`.

`model.py` loads and embeds, `compare.py` measures, `figure.py` draws, `sentences.py` is the data.
"""

from .command import Options, run

__all__ = ["Options", "run"]
