"""Recognition of refusals among recorded answers."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any, cast

REFUSAL_WORDS = ("no", "n", "false", "refuse", "refused", "reject", "rejected", "decline", "declined", "deny", "denied")
"""Text answers that mean a refusal."""
_WHOLE_TEXTS = frozenset((*REFUSAL_WORDS, "f", "off", "ignore", "skip", "dismiss", "response", "respond"))
"""Texts that mean a refusal only if they are the whole answer, such as the decision types of LangGraph."""
_MAX_LENGTH = 50_000
"""Maximum number of characters that are searched for a negation. A longer answer counts as a refusal."""
_NEGATION = re.compile(
    r"""^\W*(?:cancel|abort|stop|不|否)
    |\b(?:reject|refus|declin|den(?:y|ied|ies)\b|disapprov|disallow)
    |(?<![\w-])(?:no|nope|nah|not|never|dont|cannot|\w+n't
        |nein|nicht|non|nej|nei|ikke|inte|nee|niet|não|nao|nie|nem|нет|нельзя|いいえ|아니요|아니오|拒绝|拒否|取消)(?!-?\w)""",
    re.VERBOSE,
)
_NO_NEGATION = re.compile(
    r"\b(?:no (?:problem|objection|worr|issue|concern|doubt)\w*|not only|don't ask (?:me )?again)\b"
)
_VERDICTS = frozenset(
    [
        "accept",
        "accepted",
        "allow",
        "allowed",
        "approval",
        "approve",
        "approved",
        "authorized",
        "confirm",
        "confirmed",
        "consent",
        "granted",
        "ok",
        "permitted",
        "proceed",
    ]
)
_REFUSALS = frozenset(
    ["cancel", "canceled", "cancelled", "declined", "denied", "error", "refuse", "refused", "reject", "rejected"]
)
_CHOICES = frozenset(
    [
        "action",
        "answer",
        "behavior",
        "choice",
        "content",
        "data",
        "decision",
        "decisions",
        "kind",
        "optionid",
        "outcome",
        "payload",
        "permission",
        "reply",
        "response",
        "result",
        "selected",
        "status",
        "type",
        "value",
        "verdict",
    ]
)
"""Names of fields with the answer or with a nested object."""
_REASONS = ("reason", "message", "comment", "feedback", "error")


def is_refusal(answer: Any) -> bool:
    """Return True if an answer is a refusal.

    A call that a person refused must not be executed. Therefore, an answer with a negation is a refusal, even if the
    code that asked might have interpreted it as an approval with a condition.

    Args:
        answer: The recorded answer. The code that could interpret it no longer exists.
    """
    if answer is None or answer is False:
        return True
    if isinstance(answer, str):
        return _is_refusing_text(answer)
    if isinstance(answer, Mapping):
        return _is_refusing_object(cast("Mapping[Any, Any]", answer))
    if isinstance(answer, list | tuple):
        return any(isinstance(each, Mapping) and is_refusal(each) for each in cast("Iterable[Any]", answer))
    return False


def refusal_reason(answer: Any) -> str | None:
    """Return the reason in a refusal, or None if there is no reason."""
    if isinstance(answer, str):
        return answer if re.search(r"\w\W+\w", answer) and _parsed(answer) is None else None
    nested: Iterable[Any] = ()
    if isinstance(answer, Mapping):
        fields = cast("Mapping[Any, Any]", answer)
        reason = next((fields[name] for name in _REASONS if isinstance(fields.get(name), str) and fields[name]), None)
        if reason is not None:
            return reason
        nested = [value for name, value in fields.items() if _key(name) in _CHOICES]
    elif isinstance(answer, list | tuple):
        nested = cast("Iterable[Any]", answer)
    reasons = (refusal_reason(each) for each in nested if isinstance(each, Mapping | list | tuple))
    return next((each for each in reasons if each is not None), None)


def _is_refusing_text(text: str) -> bool:
    if len(text) > _MAX_LENGTH:
        return True
    value = _parsed(text)
    if value is not None:
        return is_refusal(value)
    text = text.strip().lower().replace("\N{RIGHT SINGLE QUOTATION MARK}", "'")
    return text.strip(" .,;:!\"'()*") in _WHOLE_TEXTS or _NEGATION.search(_NO_NEGATION.sub("", text)) is not None


def _parsed(text: str) -> Any:
    """Parse a JSON object, list or string. Return None for any other input."""
    if text.lstrip()[:1] in ("{", "[", '"'):
        with suppress(ValueError, RecursionError):
            return json.loads(text)
    return None


def _is_refusing_object(fields: Mapping[Any, Any]) -> bool:
    for name, value in fields.items():
        key = _key(name)
        if key in _VERDICTS and (_is_false(value) or is_refusal(value)):
            return True
        if key in _REFUSALS and not _is_false(value):
            return True
        if key in _CHOICES and value is not None and is_refusal(value):
            return True
    return False


def _key(name: Any) -> str:
    """Normalize `isApproved`, `is_approved` and `APPROVED` to `approved`."""
    return re.sub(r"[^a-z]", "", str(name).lower()).removeprefix("is")


def _is_false(value: Any) -> bool:
    return not value or (isinstance(value, str) and value.strip().lower() in ("no", "n", "false", "f", "off", "0"))
