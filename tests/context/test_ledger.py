from __future__ import annotations

import gc

import pytest

from rxloop.context import fact_ledger as ledger
from rxloop.context import facts
from rxloop.context.counting import text_tokens
from rxloop.context.fact_ledger import FactLedger, load_ledger
from rxloop.protocol.messages import Message
from support.histories import call, long_history, turn


def test_it_holds_each_value_once_with_the_word_that_named_it_last() -> None:
    ledger = FactLedger([Message.user("invoice INV-2093"), Message.assistant("The receipt INV-2093 is there.")])
    assert ledger.text(100) == "receipt INV-2093"
    assert len(ledger) == 1
    assert "INV-2093" in ledger


def test_values_of_one_message_share_a_line_in_their_order_and_a_label_is_said_once() -> None:
    first = turn((call("a"), '{"flight": "LH441", "price": 350, "date": "2026-03-01"}'))
    second = turn((call("b"), '{"seats": [112, 114, 118]}'))
    text = FactLedger([*first, *second]).text(200)
    assert text.splitlines() == ["flight LH441, price 350, date 2026-03-01", "seats 112 114 118"]


def test_it_keeps_to_its_budget_whatever_that_is() -> None:
    ledger = FactLedger(long_history(60))
    for tokens in (0, 1, 5, 20, 60, 200, 1_000):
        assert text_tokens(ledger.text(tokens)) <= tokens
    assert len(ledger.text(200)) > len(ledger.text(60)) > 0


def test_it_keeps_to_a_budget_that_another_counter_measures() -> None:
    ledger = FactLedger(long_history(60))
    for tokens in (0, 10, 50, 300):
        assert len(ledger.text(tokens, size=len)) <= tokens


def test_under_pressure_an_id_that_was_used_wins_over_a_number_that_was_mentioned_once() -> None:
    messages = [Message.assistant(f"measured {number}") for number in range(3_000, 3_200)]
    messages[5:5] = turn((call("a", order="ORD-5512"), "done"))
    messages[90:90] = turn((call("b", order="ORD-5512"), "done"))
    assert "ORD-5512" in FactLedger(messages).text(30)


def test_values_that_are_to_be_seen_elsewhere_are_left_out() -> None:
    ledger = FactLedger([Message.user("order ORD-1 and order ORD-2")])
    assert ledger.text(100, visible={"ORD-2"}) == "order ORD-1"


def test_a_value_inside_another_is_not_said_twice() -> None:
    ledger = FactLedger(turn((call("a", command="pytest tests/test_app.py"), "see tests/test_app.py")))
    assert ledger.text(100).count("tests/test_app.py") == 1
    assert len(ledger) == 2


def test_a_value_inside_another_takes_nothing_of_the_budget() -> None:
    messages = [
        Message.assistant(f"the file {path}") for path in ("src/app/models.py", "src/app/models.py", "models.py")
    ]
    ledger = FactLedger([*messages, Message.assistant("took 99.5")])
    costs = {value: entry.cost for value, entry in ledger._entries.items()}
    assert ledger.text(sum(costs.values()) - costs["models.py"] + 1.5) == "file src/app/models.py\ntook 99.5"


def test_it_works_in_other_languages() -> None:
    ledger = FactLedger([Message.user("Заказ 48213 для Анны"), Message.user("请查询订单ABC-1234的状态")])
    assert ledger.text(100).splitlines() == ["Заказ 48213", "请查询订单 ABC-1234"]


def test_an_empty_ledger_is_an_empty_text() -> None:
    assert FactLedger().text(100) == ""
    assert FactLedger([Message.user("Hello there.")]).text(100) == ""


def test_of_a_history_that_grew_only_what_is_new_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    messages = long_history(30)
    read: list[Message] = []

    def reading(message: Message) -> tuple[facts.Fact, ...]:
        read.append(message)
        return facts.extract_facts(message)

    monkeypatch.setattr(ledger, "extract_facts", reading)
    for stop in (10, 10, 30, len(messages)):
        assert load_ledger(messages[:stop]) == FactLedger(messages[:stop])
    # Once for the grown one, and once for each whole one beside it.
    assert [sum(one is message for one in read) for message in messages[:30:7]] == [5, 5, 3, 3, 3]


def test_histories_that_begin_alike_and_go_apart_have_ledgers_of_their_own() -> None:
    messages = long_history(10)
    fork = [*messages[:9], Message.user("Look at invoice INV-2093 instead.")]
    assert load_ledger(messages) == FactLedger(messages)
    assert load_ledger(fork) == FactLedger(fork)
    assert load_ledger(messages[:4]) == FactLedger(messages[:4])
    grown = load_ledger(messages)
    grown.add([Message.user("INV-1")])
    assert "INV-1" not in load_ledger(messages)


def test_a_history_that_is_gone_leaves_nothing_behind() -> None:
    gc.collect()
    before = len(ledger._read)
    messages = long_history(5)
    load_ledger(messages)
    assert len(ledger._read) == before + 1
    del messages
    gc.collect()
    assert len(ledger._read) == before


def test_a_message_that_every_history_begins_with_keeps_no_ledger_alive() -> None:
    gc.collect()
    before = len(ledger._read)
    constant = Message.user("You look after ORD-1.")
    for number in range(3):
        load_ledger([constant, *long_history(number + 1)])
    gc.collect()
    assert len(ledger._read) == before


def test_it_holds_no_more_than_a_text_could_ever_need() -> None:
    messages = [Message.assistant(" ".join(f"item_{part}_{number}" for number in range(900))) for part in range(15)]
    messages[2:2] = [*turn((call("a", order="ORD-5512"), "done")), *turn((call("b", order="ORD-5512"), "done"))]
    held = FactLedger(messages)
    assert len(held) <= 8_000
    assert "ORD-5512" in held
    stepwise = FactLedger()
    for message in messages:
        stepwise.add([message])
    assert stepwise == held
