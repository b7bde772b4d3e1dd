from __future__ import annotations

import time

import pytest

from rxloop.context.facts import extract_facts
from rxloop.protocol.messages import Message, ToolCall


def find_values(text: str, role: str = "assistant") -> dict[str, str]:
    """Return the values in a text with their labels."""
    message = Message.tool("a", text) if role == "tool" else Message(role=role, content=text)  # pyright: ignore[reportArgumentType]
    return {fact.value: fact.label for fact in extract_facts(message)}


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("Write to ann.lee@example.org about invoice INV-2093.", {"ann.lee@example.org", "INV-2093"}),
        ("See https://example.org/a/b?c=1 for the report", {"https://example.org/a/b"}),
        ("The error is in src/app/models.py and ~/notes/today.md", {"src/app/models.py", "~/notes/today.md"}),
        ("run it as ./scripts/check on /opt/data", {"./scripts/check", "/opt/data"}),
        ("It costs 1,250.00 or 99.90 a month, from 2026-03-01 at 14:30", {"2026-03-01", "14:30", "99.90"}),
        ("call get_user_name, then userName, then os.path.join", {"get_user_name", "userName", "os.path.join"}),
        ("container 9f3ac2e1 exited with code 137", {"9f3ac2e1", "137"}),
        ("the flag --no-color and the region EU", {"--no-color", "EU"}),
        ("We spoke to Maria Lindqvist about it", {"Maria Lindqvist"}),
        ("choose `fast mode` or “slow mode”", {"fast mode", "slow mode"}),
        ("fixes #5213 in std::vector", {"#5213", "std::vector"}),
    ],
)
def test_values_are_recognised_by_their_format(text: str, values: set[str]) -> None:
    assert values <= find_values(text).keys()


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("Клиент Анна Петрова просит вернуть заказ №48213 до 15.03.2026", {"48213", "15.03.2026", "Анна Петрова"}),
        ("请在5月15日之前把订单ABC-1234发到北京,电话是13800138000。", {"5月15日", "ABC-1234", "13800138000"}),
        ("注文番号はJP9931です。「青い箱」を送ってください。", {"JP9931", "青い箱"}),
        ("Bitte die Rechnung RE-2026/118 an Jürgen Größmann schicken", {"RE-2026/118", "Jürgen Größmann"}),
        ("رقم الطلب 88213 والمبلغ 450 ريال", {"88213", "450"}),
        ("주문번호 KR-5521을 확인해 주세요", {"KR-5521"}),
    ],
    ids=["russian", "chinese", "japanese", "german", "arabic", "korean"],
)
def test_values_are_recognised_in_other_languages(text: str, values: set[str]) -> None:
    assert values <= find_values(text).keys()


def test_value_is_labelled_with_an_adjacent_word() -> None:
    assert find_values("The reservation is QX81TT.")["QX81TT"] == "reservation"
    assert find_values("номер заказа 48213")["48213"] == "заказа"
    assert find_values('{"payment_id": "card_7712", "amount": 350}', "tool") == {
        "card_7712": "payment_id",
        "350": "amount",
    }
    assert find_values("8812 is the ticket")["8812"] == "the"


def test_json_values_are_labelled_with_their_fields() -> None:
    text = '{"name": "Ann Lee", "plan": "family plus", "ok": true, "none": null, "tags": ["blue", "x"], "n": 4211}'
    assert find_values(text, "tool") == {"Ann Lee": "name", "family plus": "plan", "blue": "tags", "4211": "n"}


def test_json_keys_can_be_values() -> None:
    assert find_values('{"2026-03-01": {"seats": 112}}', "tool") == {"2026-03-01": "", "112": "seats"}


def test_arguments_have_a_higher_weight() -> None:
    call = ToolCall.parse("a", "read", '{"path": "src/app.py", "command": "make test"}')
    weights = {fact.value: fact.weight for fact in extract_facts(Message.assistant("see src/db.py", tool_calls=[call]))}
    assert weights["src/app.py"] > weights["src/db.py"]
    assert "make test" in weights


def test_plain_words_line_numbers_and_small_counts_are_ignored() -> None:
    assert find_values("There were three of them, e.g. a red and a non-blue one.") == {}
    assert find_values("  11 def one\n  12     return\n  13 x", "tool") == {}
    assert find_values("It took 3 tries") == {}


def test_values_between_separators_are_found() -> None:
    values = find_values("level:ERROR code=504 host:db-7.internal:5432 a,b,C9")
    assert {"ERROR", "504", "db-7.internal", "5432", "C9"} <= values.keys()


def test_invalid_json_arguments_are_searched() -> None:
    call = ToolCall.parse("a", "read", '{"path": "src/app.py"')
    assert any("src/app.py" in fact.value for fact in extract_facts(Message.assistant(tool_calls=[call])))


@pytest.mark.parametrize(
    "text", ["[" * 900 + "]" * 900, "{", "a\ud800b 12345", "_" * 5_000, "/" * 5_000, "1," * 5_000, "A" * 100_000]
)
def test_unusual_texts_are_searched(text: str) -> None:
    assert len(find_values(text, "tool")) < 100


def test_both_ends_of_a_very_long_text_are_searched_quickly() -> None:
    filler = "the quick brown fox_1 jumps over 12345 lazy dogs in src/main.py\n" * 20_000
    begin = time.perf_counter()
    values = find_values(f"first ID-1111\n{filler}last ID-2222", "tool")
    assert {"ID-1111", "ID-2222"} <= values.keys()
    assert time.perf_counter() - begin < 0.5
