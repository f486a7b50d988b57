# SPDX-License-Identifier: Apache-2.0
"""What a bad call is: the call, the exact exception type, and the text that names argument, rule and value."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

import blockscale as bs
from tests.cases.refusals import Inputs

NAN, INF = float("nan"), float("inf")
TILES: dict[str, Any] = {"block": (16, 16)}


@dataclass(frozen=True, eq=False)
class BadCall:
    """A call that must be refused.

    Attributes:
        function: its public name.
        name: test id.
        call: makes the call on `Inputs` of a device.
        error: the exact type.
        match: regex at the start of the message.
    """

    function: str
    name: str
    call: Callable[[Inputs], object]
    error: type[Exception]
    match: str

    def __str__(self) -> str:
        return f"{self.function}-{self.name}"


def ruled(function: str, error: type[Exception], *, op: str | None = None) -> Callable[..., BadCall]:
    """Rows of one function and exception: ``row(name, call, arg, rule, got)``.

    The message must be "<op>: <arg> must be <rule>; got <got>."; in rule and got, "..." stands for anything.
    """

    def row(name: str, call: Callable[[Inputs], object], arg: str, rule: str, got: str) -> BadCall:
        rule, got = (re.escape(text).replace(re.escape("..."), ".*") for text in (rule, got))
        match = rf"{op or function}: {re.escape(arg)} must be {rule}; got {got}\."
        return BadCall(function, name, call, error, match)

    return row


def misused(function: str, name: str, call: Callable[[Inputs], object], match: str) -> BadCall:
    """A call that Python itself refuses: the wrong number or name of arguments."""
    return BadCall(function, name, call, TypeError, match)


def problem_of(case: BadCall, device: torch.device | str) -> str:
    """What is wrong with how a call is refused; empty if nothing is. No assert: this also runs under ``python -O``."""
    try:
        result = case.call(Inputs(bs, device))
    except Exception as error:
        text = str(error)
        if type(error) is not case.error:
            return f"{case}: raised {type(error).__name__}, expected {case.error.__name__}: {text}"
        if not re.match(case.match, text, re.DOTALL):
            return f"{case}: the message is {text!r}, expected {case.match!r}"
        if re.search(r"\{[^{}]*\}", text):
            return f"{case}: an unformatted placeholder in {text!r}"
        return ""
    return f"{case}: was accepted and gave {type(result).__name__}"
