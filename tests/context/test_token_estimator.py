from __future__ import annotations

import gc
import sys
from types import FrameType
from typing import Any, cast

import pytest

from rxloop.context import TextCounter, TokenEstimator
from rxloop.context.token_estimator import text_tokens
from rxloop.pipeline.requests import ToolDefinition
from rxloop.protocol.messages import ImagePart, Message, TextPart, ToolCall
from rxloop.state.history import History

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


# Characters per token in current public vocabularies.
@pytest.mark.parametrize(
    ("text", "shortest", "longest"),
    [(ENGLISH, 4.2, 5.2), (CODE, 3.2, 5.0), (JSON, 2.3, 3.3), (LOG, 1.7, 2.4), (CHINESE, 0.8, 1.7)],
    ids=["english", "code", "json", "logs", "chinese"],
)
def test_estimate_is_in_the_range_of_known_vocabularies(text: str, shortest: float, longest: float) -> None:
    tokens = TokenEstimator().count([Message.user(text * 20)])
    assert shortest <= 20 * len(text) / tokens <= longest


@pytest.mark.parametrize(
    "text", [ENGLISH, CODE, JSON, LOG, CHINESE], ids=["english", "code", "json", "logs", "chinese"]
)
@pytest.mark.parametrize(("ratio", "preamble"), [(0.9, 0), (1.12, 20), (1.25, 300)])
def test_estimates_are_within_one_percent_after_one_report(text: str, ratio: float, preamble: int) -> None:
    counter = TokenEstimator().for_model("zai:glm-4.7")
    messages = [Message.user("Read all of it."), *(Message.assistant(text) for _ in range(400))]

    def true_tokens(these: list[Message]) -> int:
        return round(ratio * counter.raw(these) + preamble)

    counter.observe(counter.raw(messages), true_tokens(messages))
    for more in (10, 20, 40):
        longer = messages + [Message.assistant(text)] * more
        assert counter.request(longer) == pytest.approx(true_tokens(longer), rel=0.01)


def test_preamble_and_ratio_are_learned_from_reports() -> None:
    counter = TokenEstimator().for_model("m")
    for raw in (50.0, 900.0, 4_000.0, 9_000.0, 15_000.0):
        counter.observe(raw, round(1.2 * raw + 600))
    messages = [Message.user(ENGLISH * 400)]
    assert counter.count(messages) == pytest.approx(1.2 * counter.raw(messages), rel=0.02)
    assert counter.request(messages) - counter.count(messages) == pytest.approx(600, rel=0.1)


def test_margin_shrinks_with_reports_and_grows_with_distance() -> None:
    counter = TokenEstimator().for_model("m")
    messages = [Message.user(ENGLISH * 50)]
    assert counter.margin(messages) == pytest.approx(0.2)
    counter.observe(counter.raw(messages), round(1.1 * counter.raw(messages)))
    assert counter.margin(messages) < 0.02
    assert counter.margin([Message.user(ENGLISH * 500)]) > counter.margin(messages)


def test_reports_are_shared_by_counters_of_one_model_only() -> None:
    estimator = TokenEstimator()
    messages = [Message.user(ENGLISH * 50)]
    one, same, other = estimator.for_model("a"), estimator.for_model("a"), estimator.for_model("b")
    one.observe(one.raw(messages), round(1.3 * one.raw(messages)))
    assert same.count(messages) == one.count(messages) > 1.15 * other.count(messages)


def test_empty_report_is_ignored() -> None:
    counter = TokenEstimator()
    counter.observe(0, 100)
    counter.observe(100, 0)
    assert counter.margin([Message.user("x")]) == pytest.approx(0.2)


def test_all_parts_of_a_message_are_counted() -> None:
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


def test_arguments_are_counted_as_raw_text() -> None:
    counter = TokenEstimator()
    spaced = ToolCall.parse("a", "f", '{"key":      "value",      "other":      "value"}')
    assert counter.count([Message.assistant(tool_calls=[spaced])]) > 0
    huge = ToolCall(id="a", name="f", arguments={"n": 2**80})
    assert counter.count([Message.assistant(tool_calls=[huge])]) > 10


def test_count_of_a_list_is_the_sum_of_its_messages() -> None:
    counter = TokenEstimator()
    messages = [Message.user(text) for text in (ENGLISH, CODE, JSON)]
    assert sum(counter.raw([message]) for message in messages) == pytest.approx(counter.raw(messages))


def test_lone_surrogate_can_be_counted() -> None:
    assert TokenEstimator().count([Message.user("a\ud800b")]) > 0


def test_message_is_counted_once_and_forgotten_when_it_is_deleted() -> None:
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
    assert counter._messages._entries == {}


def test_text_counter_counts_messages_and_tools() -> None:
    counter = TextCounter(lambda text: len(text.split()))
    call = ToolCall.parse("a", "look_up", '{"key": "value"}')
    assert counter.count([Message.user("one two three")]) == 4 + 3
    assert counter.count([Message.assistant("one", tool_calls=[call])]) == 4 + 1 + 6 + 1 + 2
    tool = ToolDefinition("f", "Does it.", {})
    assert counter.count([], [tool]) == 8 + 4


def test_estimate_executes_no_python_code_per_character() -> None:
    text = ENGLISH + CODE + JSON + LOG
    assert count_lines(text * 1_000) == count_lines(text)


def count_lines(text: str) -> int:
    """Count the lines of Python that the estimate of a text executes."""
    lines = 0

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal lines
        lines += event == "line"
        return trace

    before = sys.gettrace()
    # Hypothesis measures garbage collections in Python.
    gc.disable()
    sys.settrace(trace)
    try:
        cast("Any", text_tokens).__wrapped__(text)
    finally:
        sys.settrace(before)
        gc.enable()
    return lines


def test_only_new_messages_of_a_history_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    counted: list[str] = []
    count = TokenEstimator()._messages

    def observe(message: Message) -> float:
        counted.append(message.text)
        return count(message)

    estimator = TokenEstimator()
    monkeypatch.setattr(estimator, "_messages", observe)
    history = History([Message.user("One."), Message.assistant("Two and a half.")])
    longer = history.append(Message.user("Three!"))
    for each in (history, longer, longer, history):
        assert estimator.raw(each) == pytest.approx(estimator.raw([*each]))
    new = History([Message.user("Four?")])
    counted.clear()
    estimator.raw(new)
    estimator.raw(new.append(Message.user("Five.")))
    estimator.raw(new)
    assert counted == ["Four?", "Five."]
