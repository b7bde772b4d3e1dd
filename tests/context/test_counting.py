from __future__ import annotations

import gc
import time
from typing import Any, cast

import pytest

from rxloop.context import TextCounter, TokenEstimator
from rxloop.context.counting import text_tokens
from rxloop.pipeline.requests import ToolDefinition
from rxloop.protocol.messages import ImagePart, Message, TextPart, ToolCall

ENGLISH = (
    "The committee met on Tuesday to talk about the new library. Most of the members were in favour of the plan, but a "
    "few of them asked what it would cost to heat such a large building through the winter, and who would pay for it. "
)
CODE = (
    "def merge(left: list[int], right: list[int]) -> list[int]:\n    result = []\n    while left and right:\n"
    "        source = left if left[0] <= right[0] else right\n        result.append(source.pop(0))\n"
    "    return result + left + right\n\n"
)
JSON = '{"id": "ord_4711", "customer": {"name": "Ann Lee", "country": "NO"}, "lines": [{"sku": "B-12", "count": 3}]}\n'
LOG = "2026-03-01T12:04:07.123Z INFO [worker-3] request id=9f3ac2 path=/v1/orders status=200 took=18ms\n"
CHINESE = "今天天气很好,我们去公园散步。请帮我查询订单的状态,并在星期五之前回复客户。"


# What public vocabularies of today make of such texts, in characters a token: from the shortest to the longest of them.
@pytest.mark.parametrize(
    ("text", "least", "most"),
    [(ENGLISH, 4.2, 5.2), (CODE, 3.2, 5.0), (JSON, 2.3, 3.3), (LOG, 1.7, 2.4), (CHINESE, 0.8, 1.7)],
    ids=["english", "code", "json", "logs", "chinese"],
)
def test_an_estimate_lies_where_the_vocabularies_lie(text: str, least: float, most: float) -> None:
    tokens = TokenEstimator().count([Message.user(text * 20)])
    assert least <= 20 * len(text) / tokens <= most


@pytest.mark.parametrize(
    "text", [ENGLISH, CODE, JSON, LOG, CHINESE], ids=["english", "code", "json", "logs", "chinese"]
)
@pytest.mark.parametrize(("ratio", "preamble"), [(0.9, 0), (1.12, 20), (1.25, 300)])
def test_after_one_report_the_next_estimates_are_within_one_percent(text: str, ratio: float, preamble: int) -> None:
    counter = TokenEstimator().for_model("zai:glm-4.7")
    messages = [Message.user("Read all of it."), *(Message.assistant(text) for _ in range(400))]

    def real(these: list[Message]) -> int:
        return round(ratio * counter.raw(these) + preamble)

    counter.observe(counter.raw(messages), real(messages))
    for more in (10, 20, 40):
        longer = messages + [Message.assistant(text)] * more
        assert counter.request(longer) == pytest.approx(real(longer), rel=0.01)


def test_reports_of_small_and_large_requests_tell_the_preamble_from_the_ratio() -> None:
    counter = TokenEstimator().for_model("m")
    for raw in (50.0, 900.0, 4_000.0, 9_000.0, 15_000.0):
        counter.observe(raw, round(1.2 * raw + 600))
    messages = [Message.user(ENGLISH * 400)]
    assert counter.count(messages) == pytest.approx(1.2 * counter.raw(messages), rel=0.02)
    assert counter.request(messages) - counter.count(messages) == pytest.approx(600, rel=0.1)


def test_it_says_how_sure_it_is() -> None:
    counter = TokenEstimator().for_model("m")
    messages = [Message.user(ENGLISH * 50)]
    assert counter.margin(messages) == pytest.approx(0.2)
    counter.observe(counter.raw(messages), round(1.1 * counter.raw(messages)))
    assert counter.margin(messages) < 0.02
    assert counter.margin([Message.user(ENGLISH * 500)]) > counter.margin(messages)


def test_what_is_known_of_a_model_is_known_to_every_counter_of_it_and_to_no_other() -> None:
    estimator = TokenEstimator()
    messages = [Message.user(ENGLISH * 50)]
    one, again, other = estimator.for_model("a"), estimator.for_model("a"), estimator.for_model("b")
    one.observe(one.raw(messages), round(1.3 * one.raw(messages)))
    assert again.count(messages) == one.count(messages) > 1.15 * other.count(messages)


def test_a_report_of_nothing_changes_nothing() -> None:
    counter = TokenEstimator()
    counter.observe(0, 100)
    counter.observe(100, 0)
    assert counter.margin([Message.user("x")]) == pytest.approx(0.2)


def test_everything_that_is_sent_of_a_message_counts() -> None:
    counter = TokenEstimator()
    bare = Message.assistant("Let me see.")
    call = ToolCall(id="a", name="read_file", arguments={"path": "/etc/hosts", "lines": list(range(50))})
    with_call = Message.assistant("Let me see.", tool_calls=[call])
    thought = Message(role="assistant", content="Let me see.", reasoning=ENGLISH)
    image = Message.user([TextPart(text="What is it?"), ImagePart(url="https://example.org/a.png")])
    assert counter.count([with_call]) > counter.count([bare]) + 50
    assert counter.count([thought]) > counter.count([bare]) + 30
    assert counter.count([image]) > counter.count([Message.user("What is it?")]) + 100
    tool = ToolDefinition("read_file", "Read a file.", {"type": "object", "properties": {"path": {"type": "string"}}})
    assert counter.count([bare], [tool]) > counter.count([bare]) + 20


def test_arguments_count_as_they_were_written() -> None:
    counter = TokenEstimator()
    spaced = ToolCall.parse("a", "f", '{"key":      "value",      "other":      "value"}')
    assert counter.count([Message.assistant(tool_calls=[spaced])]) > 0
    huge = ToolCall(id="a", name="f", arguments={"n": 2**80})
    assert counter.count([Message.assistant(tool_calls=[huge])]) > 10


def test_a_list_takes_what_its_messages_take() -> None:
    counter = TokenEstimator()
    messages = [Message.user(text) for text in (ENGLISH, CODE, JSON)]
    assert sum(counter.raw([message]) for message in messages) == pytest.approx(counter.raw(messages))


def test_half_a_surrogate_pair_can_be_counted() -> None:
    assert TokenEstimator().count([Message.user("a\ud800b")]) > 0


def test_a_message_is_read_once_and_forgotten_when_it_is_gone() -> None:
    read: list[str] = []

    def size(text: str) -> int:
        read.append(text)
        return len(text)

    counter = TextCounter(size)
    message = Message.user("Hello.")
    assert counter.count([message]) == counter.count([message]) == 10
    assert read == ["Hello."]
    del message
    gc.collect()
    assert counter._messages._kept == {}


def test_an_exact_counter_of_texts_counts_messages_and_tools() -> None:
    counter = TextCounter(lambda text: len(text.split()))
    call = ToolCall.parse("a", "look_up", '{"key": "value"}')
    assert counter.count([Message.user("one two three")]) == 4 + 3
    assert counter.count([Message.assistant("one", tool_calls=[call])]) == 4 + 1 + 6 + 1 + 2
    tool = ToolDefinition("f", "Does it.", {})
    assert counter.count([], [tool]) == 8 + 4


def test_it_reads_ten_megabytes_a_second() -> None:
    text = (ENGLISH + CODE + JSON + LOG) * 2_000
    best = min(_seconds(text + str(number)) for number in range(5))
    assert len(text) / best > 10e6


def _seconds(text: str) -> float:
    begin = time.perf_counter()
    cast("Any", text_tokens).__wrapped__(text)
    return time.perf_counter() - begin
