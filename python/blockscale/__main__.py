# SPDX-License-Identifier: Apache-2.0
"""``python -m blockscale``: the command of `cli.py`."""

import sys

from .cli import main

sys.exit(main())
