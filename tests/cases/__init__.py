# SPDX-License-Identifier: Apache-2.0
"""Tables of cases as data, for every implementation of the API; `tests/checks.py` runs them.

`casts.py` holds inputs and the bytes they must become, `products.py` GEMMs and the bits of their results, `shapes.py`
shapes that are accepted, `refusals.py` calls that are not. They restate the tables of the page "numerics", sections
15 and 16, and were typed from it, not produced by the code under test.
"""

from .casts import EDGE_CASES, FOUR_OVER_SIX_CASES, VECTOR_CASES, CastCase
from .products import EPILOGUE_CASES, GemmCase
from .refusals import REFUSAL_CASES, RefusalCase
from .shapes import SHAPE_CASES, ShapeCase

__all__ = [
    "EDGE_CASES",
    "EPILOGUE_CASES",
    "FOUR_OVER_SIX_CASES",
    "REFUSAL_CASES",
    "SHAPE_CASES",
    "VECTOR_CASES",
    "CastCase",
    "GemmCase",
    "RefusalCase",
    "ShapeCase",
]
