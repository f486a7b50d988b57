# SPDX-License-Identifier: Apache-2.0
"""Bad calls to the master cast and the processing after a gather, in one process; tests/distributed has more ranks."""

from __future__ import annotations

from typing import Any

import torch

import blockscale as bs
from tests.cases.refusals import Inputs
from tests.contract.table import TILES, BadCall, misused, ruled

CAST, POST = "cast_master_weights_to_nvfp4", "post_all_gather_processing"
_value, _type = ruled(CAST, ValueError), ruled(CAST, TypeError)
_post_value, _post_type = ruled(POST, ValueError), ruled(POST, TypeError)


def _weight(i: Inputs, **keywords: Any) -> bs.NVFP4Tensor:
    return bs.NVFP4Tensor.quantize(i.x(16, 32).bfloat16(), **(TILES | keywords))


def _cast(i: Inputs, master: Any = None, start: Any = 0, fragments: Any = None, weight: Any = None) -> None:
    master = i.x(512) if master is None else master
    bs.cast_master_weights_to_nvfp4([_weight(i) if weight is None else weight], [master], [start], None, fragments)


def _twice(i: Inputs, call: Any) -> None:
    weight = _weight(i)
    call([weight, weight.detach()])


DISTRIBUTED_CALLS: tuple[BadCall, ...] = (
    misused(CAST, "positional option", lambda i: bs.cast_master_weights_to_nvfp4([], [], [], None, None, True, True),
            ".*positional argument"),
    _type("no list", lambda i: bs.cast_master_weights_to_nvfp4(_weight(i), [None], [0]), "model_weights",
          "a list of NVFP4Tensor", "NVFP4Tensor"),
    _type("operand", lambda i: _cast(i, weight=_weight(i).rowwise), "model_weights[0]", "an NVFP4Tensor",
          "NVFP4Operand"),
    _value("row scaling", lambda i: _cast(i, weight=_weight(i, scaling="row", block=(1, 16))),
           "model_weights[0].format", "block (16, 16), scaling='tensor' and nothing else", "..."),
    _value("twice", lambda i: _twice(i, lambda w: bs.cast_master_weights_to_nvfp4(w, [None] * 2, [0] * 2)),
           "model_weights[1]", "another weight than those before it", "model_weights[0] again"),
    _value("part", lambda i: _cast(i, weight=bs.NVFP4Tensor.quantize(i.x(32, 32), **TILES)[:16]), "model_weights[0]",
           "a whole weight", "a view of a part of it, or a flat alias"),
    _value("flat", lambda i: _cast(i, weight=_weight(i).view(-1)), "model_weights[0]", "a whole weight",
           "a view of a part of it, or a flat alias"),
    _value("lengths", lambda i: bs.cast_master_weights_to_nvfp4([_weight(i)], [], [0]), "master_weights",
           "of 1 entries, as model_weights", "0"),
    _type("master kind", lambda i: _cast(i, 1.0), "master_weights[0]", "a plain torch.Tensor or None", "float"),
    _type("master dtype", lambda i: _cast(i, i.x(512).double()), "master_weights[0]",
          "float32, bfloat16 or float16", "torch.float64"),
    _value("strided", lambda i: _cast(i, i.x(1024)[::2]), "master_weights[0]", "contiguous", "strides (2,)"),
    _value("too long", lambda i: _cast(i, start=2), "start_offsets[0]", "in 0..0, for a shard of 512 of 512 elements",
           "2"),
    _type("start kind", lambda i: _cast(i, start=True), "start_offsets[0]",
          "an int, the index of the shard's first element", "bool"),
    _value("fragment size", lambda i: _cast(i, fragments=[torch.zeros(255, dtype=torch.uint8)]),
           "fsdp_shard_model_weights[0]", "of 256 bytes", "255"),
    _type("fragment dtype", lambda i: _cast(i, fragments=[torch.zeros(256)]), "fsdp_shard_model_weights[0]",
          "a uint8 tensor or None", "torch.float32"),
    _post_type("no list", lambda i: bs.post_all_gather_processing(_weight(i)), "model_weights",
               "a list of NVFP4Tensor", "NVFP4Tensor"),
    _post_type("tensor", lambda i: bs.post_all_gather_processing([i.x(16, 16)]), "model_weights[0]",
               "an NVFP4Tensor", "Tensor"),
    _post_value("twice", lambda i: _twice(i, bs.post_all_gather_processing), "model_weights[1]",
                "another weight than those before it", "model_weights[0] again"),
)  # fmt: skip
