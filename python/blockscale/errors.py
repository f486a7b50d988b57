# SPDX-License-Identifier: Apache-2.0
"""The one place where error text is built: ``"<op>: <arg> must be <rule>; got <value>. <hint>"``.

Contracts are exceptions, never ``assert``: TypeError for the kind of a thing, ValueError for its value,
NotImplementedError for a legal request that this build or device cannot serve.
"""

from __future__ import annotations


def rule_text(op: str, arg: str, rule: str, got: object, hint: str = "") -> str:
    """The message for an argument that breaks a rule.

    Args:
        op: public name of the operation, e.g. ``"quantize"``.
        arg: name of the offending argument as the caller wrote it.
        rule: what the argument must be, completing "must be ...".
        got: the offending value; formatted with ``str``.
        hint: an optional sentence on what to do instead.
    """
    text = f"{op}: {arg} must be {rule}; got {got}."
    return f"{text} {hint}" if hint else text


def type_error(op: str, arg: str, rule: str, got: object, hint: str = "") -> TypeError:
    """A TypeError with the library's uniform message; see `rule_text`."""
    return TypeError(rule_text(op, arg, rule, got, hint))


def value_error(op: str, arg: str, rule: str, got: object, hint: str = "") -> ValueError:
    """A ValueError with the library's uniform message; see `rule_text`."""
    return ValueError(rule_text(op, arg, rule, got, hint))


def not_offered(op: str, arg: str, rule: str, got: object, hint: str = "") -> NotImplementedError:
    """A NotImplementedError with the library's uniform message; see `rule_text`."""
    return NotImplementedError(rule_text(op, arg, rule, got, hint))
