from __future__ import annotations

import time

import pytest

from rxloop.context.facts import extract_facts
from rxloop.protocol.messages import Message, ToolCall


def facts(text: str, role: str = "assistant") -> dict[str, str]:
    """The values of a text, each with its label."""
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
def test_values_are_known_by_their_form(text: str, values: set[str]) -> None:
    assert values <= facts(text).keys()


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
def test_the_rules_hold_in_other_languages(text: str, values: set[str]) -> None:
    assert values <= facts(text).keys()


def test_a_value_carries_a_word_that_named_it() -> None:
    assert facts("The reservation is QX81TT.")["QX81TT"] == "reservation"
    assert facts("номер заказа 48213")["48213"] == "заказа"
    assert facts('{"payment_id": "card_7712", "amount": 350}', "tool") == {"card_7712": "payment_id", "350": "amount"}
    assert facts("8812 is the ticket")["8812"] == "the"


def test_json_gives_its_values_whole_with_the_names_of_their_fields() -> None:
    text = '{"name": "Ann Lee", "plan": "family plus", "ok": true, "none": null, "tags": ["blue", "x"], "n": 4211}'
    assert facts(text, "tool") == {"Ann Lee": "name", "family plus": "plan", "blue": "tags", "4211": "n"}


def test_keys_that_are_values_themselves_are_kept() -> None:
    assert facts('{"2026-03-01": {"seats": 112}}', "tool") == {"2026-03-01": "", "112": "seats"}


def test_what_was_an_argument_weighs_more() -> None:
    call = ToolCall.parse("a", "read", '{"path": "src/app.py", "command": "make test"}')
    asked = {fact.value: fact.weight for fact in extract_facts(Message.assistant("see src/db.py", tool_calls=[call]))}
    assert asked["src/app.py"] > asked["src/db.py"]
    assert "make test" in asked


def test_plain_words_line_numbers_and_small_counts_are_no_facts() -> None:
    assert facts("There were three of them, e.g. a red and a non-blue one.") == {}
    assert facts("  11 def one\n  12     return\n  13 x", "tool") == {}
    assert facts("It took 3 tries") == {}


def test_a_value_that_stands_between_separators_is_found() -> None:
    found = facts("level:ERROR code=504 host:db-7.internal:5432 a,b,C9")
    assert {"ERROR", "504", "db-7.internal", "5432", "C9"} <= found.keys()


def test_the_code_that_the_model_wrote_without_valid_json_is_read_too() -> None:
    call = ToolCall.parse("a", "read", '{"path": "src/app.py"')
    assert any("src/app.py" in fact.value for fact in extract_facts(Message.assistant(tool_calls=[call])))


@pytest.mark.parametrize(
    "text", ["[" * 900 + "]" * 900, "{", "a\ud800b 12345", "_" * 5_000, "/" * 5_000, "1," * 5_000, "A" * 100_000]
)
def test_strange_texts_are_read(text: str) -> None:
    assert len(facts(text, "tool")) < 100


def test_a_very_long_text_is_read_at_both_ends_and_in_little_time() -> None:
    filler = "the quick brown fox_1 jumps over 12345 lazy dogs in src/main.py\n" * 20_000
    begin = time.perf_counter()
    found = facts(f"first ID-1111\n{filler}last ID-2222", "tool")
    assert {"ID-1111", "ID-2222"} <= found.keys()
    assert time.perf_counter() - begin < 0.5
