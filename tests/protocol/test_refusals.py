"""Recognition of refusals among recorded answers."""

from __future__ import annotations

from typing import Any

import pytest

from rxloop.protocol.refusals import is_refusal, refusal_reason

TEXTS = """no|No.|(no)|**NO**|"no"|no—too expensive|nope|never|cancel|Cancelled by the user|stop|abort
Don't do it|Please don\u2019t|do not pay|not now|I do not approve|absolutely not|I refuse|reject-once|rejected_by_user
disapprove|ok, but don't pay|yes, but not more than 5|Nein, danke|não|нет|いいえ|不要
{"approved": false}|["x", {"type": "reject"}]|false|off|ignore"""
OTHERS: list[Any] = [
    "no\nthanks",
    False,
    None,
    {"approved": False},
    {"approved": "false"},
    {"approved": None},
    {"approve": 0},
    {"isApproved": False, "comment": "too expensive"},
    {"is_approved": "No"},
    {"decision": {"type": "reject"}},
    {"decisions": [{"type": "reject", "message": "too expensive"}]},
    [{"type": "ignore", "args": None}],
    {"action": "decline"},
    {"action": "cancel"},
    {"action": "accept", "content": {"confirm": False}},
    {"behavior": "deny", "message": "too expensive"},
    {"outcome": {"outcome": "cancelled"}},
    {"optionId": "reject-once"},
    {"status": "cancelled"},
    {"payload": {"accepted": False}},
    {"answer": False},
    {"rejected": True},
    {"error": "declined", "code": 1},
]


@pytest.mark.parametrize("answer", [*(text for line in TEXTS.split("\n") for text in line.split("|")), *OTHERS])
def test_refusal_is_recognized(answer: Any) -> None:  # P19
    assert is_refusal(answer)


@pytest.mark.parametrize(
    "answer",
    [
        True,
        "yes",
        "No problem, go ahead",
        "no objections",
        "not only this one, pay them all",
        "Yes, and don't ask again",
        "Norway",
        "November",
        "nothing else",
        "non-smoking",
        "EUR",
        "",
        5,
        {"approved": True, "reason": "no objections"},
        {"approved": "true"},
        {"approved": 1},
        {"rejected": False},
        {"decision": {"type": "approve"}},
        {"decisions": [{"type": "edit", "args": {"amount": 0}}]},
        {"action": "accept", "content": None},
        {"currency": "NO", "amount": 0},
        {"status": "resolved", "payload": True},
    ],
)
def test_other_answer_is_not_a_refusal(answer: Any) -> None:  # P19
    assert not is_refusal(answer)


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ("no", None),
        ("No!", None),
        ("no, too expensive", "no, too expensive"),
        ({"approved": False}, None),
        ({"approved": False, "reason": "too expensive"}, "too expensive"),
        ({"decisions": [{"type": "reject", "message": "too expensive"}]}, "too expensive"),
        ('{"approved": false}', None),
    ],
)
def test_reason_of_a_refusal_is_found(answer: Any, reason: str | None) -> None:  # P19
    assert refusal_reason(answer) == reason


def test_very_long_text_counts_as_a_refusal() -> None:
    assert not is_refusal("yes " * 10_000)
    assert is_refusal("yes " * 100_000)


def test_deep_json_text_is_not_parsed() -> None:
    assert not is_refusal("[" * 40_000)
