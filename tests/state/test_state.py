"""Run states folded from events."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rxloop.protocol.events import (
    ContentDeltaEvent,
    CustomEvent,
    Event,
    InputReceivedEvent,
    InputRequiredEvent,
    LLMFailedEvent,
    MessageAddedEvent,
    PendingInput,
    StatusUpdateEvent,
    ThoughtStreamEvent,
    ToolCompleteEvent,
    ToolStartEvent,
    UsageEvent,
    public_events,
)
from rxloop.protocol.messages import Citation, ErrorInfo, Message, TextPart, ToolCall, Usage
from rxloop.protocol.settings import Limits
from rxloop.protocol.visibility import select_public_messages
from rxloop.state.fold import fold, fold_all
from rxloop.state.history import NEVER_BEGAN
from rxloop.state.run_state import RunState, check_limits, initial_state
from support.fold_events import IMAGE, content_complete, input_required, llm_call, task, tool_call, tool_complete
from support.runs import is_well_formed, shape


def test_shared_initial_state_stays_empty() -> None:
    events = [
        task(),
        content_complete("", tool_call(id="c")),
        tool_complete(),
        ThoughtStreamEvent(thought_id="t", content="hm"),
    ]
    state = fold_all(events)

    assert len(state.messages) == 3
    assert (*state.calls, *state.thoughts) == ("c", "t")
    assert RunState() == initial_state()
    assert initial_state().messages._items == []
    assert initial_state().calls._store == {}
    assert initial_state().thoughts._store == {}


def test_task_starts_the_history_and_an_answer_completes_it() -> None:
    state = fold_all([task("Be kind.", "Hi"), llm_call(), content_complete("Hello.")])

    assert shape(state.messages) == ["user: Be kind.", "user: Hi", "assistant: Hello."]
    assert state.done
    assert state.content == "Hello."


def test_empty_answer_is_an_answer() -> None:
    assert fold_all([task(), llm_call(), content_complete("")]).done


def test_fold_does_not_change_earlier_states() -> None:
    before = fold_all([task(), llm_call(), content_complete("", tool_call(), tool_call())])
    copy = replace(before)

    fold_all([tool_complete(0), tool_complete(1), content_complete("done", step="2")], before)

    assert before == copy
    assert shape(before.messages) == ["user: Hi"]


def test_text_with_calls_is_not_an_answer() -> None:  # L33
    state = fold_all([task(), llm_call(), content_complete("I think.", tool_call("think_aloud"))])

    assert not state.done
    assert not fold_all([tool_complete()], state).done


def test_text_and_calls_of_a_turn_are_one_message() -> None:  # L76
    state = fold_all(
        [
            task(),
            llm_call(),
            content_complete("Let me see.", tool_call("f", "1"), tool_call("g", "2")),
            tool_complete(0),
        ]
    )
    assert shape(state.messages) == ["user: Hi"]

    state = fold_all([tool_complete(1)], state)

    assistant = state.messages[1]
    assert assistant.text == "Let me see."
    assert [call.name for call in assistant.tool_calls] == ["f", "g"]
    assert len(state.messages) == 4


def test_message_after_the_answer_requires_another_answer() -> None:
    state = fold_all([task(), llm_call(), content_complete("Hello."), MessageAddedEvent(content="In French!")])

    assert not state.done
    assert fold_all([llm_call("2"), content_complete("Bonjour.", step="2")], state).done


def test_canceled_message_is_not_in_the_history() -> None:
    events = [
        task(),
        llm_call(),
        MessageAddedEvent(content="Faster!"),
        content_complete("Hel", finish_reason="canceled"),
    ]

    state = fold_all(events)

    assert shape(state.messages) == ["user: Hi", "user: Faster!"]
    assert state.open_step is None
    assert state.content == "Hel"
    assert state.done is False


def test_calls_of_a_canceled_message_are_not_started() -> None:
    state = fold_all([task(), llm_call(), content_complete("", tool_call(), finish_reason="canceled")])

    assert state.batch is None


def test_second_call_of_a_step_clears_the_failure_of_the_first() -> None:
    failure = LLMFailedEvent(step="1", error=ErrorInfo(code="context_length", message="long"), retryable=True)
    state = fold_all([task(), llm_call(), failure])
    assert state.failure == failure

    state = fold_all([llm_call()], state)

    assert state.failure is None
    assert state.iteration == 1
    assert state.open_step == "1"


def test_failed_iterations_are_counted_until_a_tool_succeeds() -> None:  # L72
    def batch(step: str, *successes: bool) -> list[Event]:
        calls = [tool_call() for _ in successes]
        answers = [tool_complete(index, step=step, success=success) for index, success in enumerate(successes)]
        return [llm_call(step), content_complete("", *calls, step=step), *answers]

    state = fold_all([task(), *batch("1", False, False), *batch("2", False)])
    assert state.failures == 2
    assert fold_all(batch("3", False, True), state).failures == 0
    assert fold_all([llm_call("3"), content_complete("done", step="3")], state).failures == 0


def test_iterations_that_only_think_are_counted_until_another_call() -> None:  # L36
    def batch(step: str, *names: str) -> list[Event]:
        calls = [tool_call(name) for name in names]
        return [
            llm_call(step),
            content_complete("", *calls, step=step),
            *(tool_complete(index, step=step) for index in range(len(names))),
        ]

    state = fold_all([task(), *batch("1", "think_aloud"), *batch("2", "think_aloud", "think_aloud")])
    assert state.thought_streak == 2
    assert fold_all(batch("3", "think_aloud", "f"), state).thought_streak == 0


def test_tokens_and_thoughts_of_a_branch_count_for_the_run() -> None:
    events = [
        task(),
        UsageEvent(input_tokens=1),
        UsageEvent(input_tokens=2, branch="tot/1"),
        ThoughtStreamEvent(thought_id="a", content="a", branch="tot/1"),
        content_complete("aside", branch="tot/1", step="tot/1/1"),
        MessageAddedEvent(content="aside", branch="tot/1"),
    ]

    state = fold_all(events)

    assert state.usage == Usage(input_tokens=3)
    assert list(state.thoughts) == ["a"]
    assert shape(state.messages) == ["user: Hi"]
    assert state.last is None


def test_events_of_a_nested_run_change_only_the_sequence_number() -> None:  # L10
    before = fold_all([task(seq=1), llm_call(seq=2)])
    nested: list[Event] = [
        task("nested", seq=3),
        content_complete("nested answer", tool_call(), seq=4),
        tool_complete(0, success=False, seq=5),
        MessageAddedEvent(content="nested", seq=6),
        StatusUpdateEvent(state="failed", final=True, seq=7),
    ]
    after = fold_all([event.model_copy(update={"parent_task_id": "p", "task_id": "n"}) for event in nested], before)

    assert after == replace(before, seq=7)


def test_transient_events_change_nothing() -> None:
    state = fold_all([task(), llm_call()])

    assert fold(state, ContentDeltaEvent(delta="a", seq=3, sub=1)) is state


def test_new_task_answers_open_calls_and_resets_the_run() -> None:  # L100
    unfinished = fold_all(
        [
            task("One"),
            llm_call(),
            content_complete("", tool_call("f", "a"), tool_call("g", "b")),
            tool_complete(1, "done"),
            input_required(),
        ]
    )
    unfinished = fold_all([UsageEvent(input_tokens=5), MessageAddedEvent(content="Faster!")], unfinished)

    state = fold_all([task("Two")], unfinished)

    assert shape(state.messages) == [
        "user: One",
        "assistant: f,g",
        f"tool: {NEVER_BEGAN}",
        "tool: done",
        "user: Faster!",
        "user: Two",
    ]
    assert is_well_formed(state.messages)
    assert state.batch is None
    assert state.pending == {}
    assert state.usage == Usage()
    assert state.iteration == 0


def test_new_task_removes_a_message_that_was_never_completed() -> None:
    state = fold_all([task("One"), llm_call(), task("Two")])

    assert shape(state.messages) == ["user: One", "user: Two"]
    assert state.open_step is None


def test_attempt_is_set_by_the_first_event() -> None:  # L109
    assert fold_all([task(attempt=1)]).attempt == 1
    assert fold_all([task(attempt=1), StatusUpdateEvent(state="working", attempt=2)]).attempt == 2


def test_questions_are_pending_until_they_are_answered() -> None:
    state = fold_all(
        [task(), llm_call(), content_complete("", tool_call()), input_required("1.0.1"), input_required("1.0.2")]
    )
    assert list(state.pending) == ["1.0.1", "1.0.2"]

    state = fold_all([InputReceivedEvent(input_id="1.0.1", value=False)], state)

    assert list(state.pending) == ["1.0.2"]
    assert state.answers == {"1.0.1": False}


def test_answered_call_has_no_pending_questions() -> None:
    question = PendingInput(input_id="1.0.1", prompt="Sure?", call=tool_call(), index=0, step="1")
    other = PendingInput(input_id="1.1.1", prompt="Sure?", call=tool_call(), index=1, step="1")
    guard = PendingInput(input_id="1.0.2", prompt="Go on?", index=0, step="1")
    asking = [InputRequiredEvent(input=each) for each in (question, other, guard)]

    state = fold_all(
        [task(), llm_call(), content_complete("", tool_call(), tool_call()), *asking, tool_complete(0, success=False)]
    )

    assert list(state.pending) == ["1.1.1", "1.0.2"]


def test_question_on_a_branch_is_pending_for_the_run_and_not_for_other_branches() -> None:
    question = PendingInput(input_id="b/1.0.1", prompt="Sure?", call=tool_call(), index=0, step="b/1")
    question_event = InputRequiredEvent(input=question, branch="b")
    waiting = fold_all(
        [task(), llm_call("b/1", branch="b"), content_complete("", tool_call(), step="b/1", branch="b"), question_event]
    )

    assert list(waiting.pending) == ["b/1.0.1"]
    assert waiting.create_branch().pending == {}
    assert fold_all([tool_complete(0, step="b/1", branch="b")], waiting).pending == {}
    answered_state = fold_all([InputReceivedEvent(input_id="b/1.0.1", value=True)], waiting)
    assert answered_state.pending == {}
    assert answered_state.create_branch().with_run_values(answered_state).answers == {"b/1.0.1": True}


class OwnNote(MessageAddedEvent):
    """Custom subclass of `message-added`."""

    weight: int = 0


def test_custom_event_class_is_folded_like_its_logged_form() -> None:
    note = OwnNote(role="user", content="Mind the gap.", weight=3, seq=2)
    read = Event.from_json(note.to_json())
    assert type(read) is MessageAddedEvent
    state = fold(RunState(), task(seq=1))
    assert shape(fold(state, note).messages) == shape(fold(state, read).messages) == ["user: Hi", "user: Mind the gap."]


def test_branch_starts_with_the_messages_of_the_main_branch() -> None:
    events = [task("One"), llm_call("b/1", branch="b"), MessageAddedEvent(content="Two"), llm_call("c/1", branch="c")]
    branch_states: dict[str, RunState] = {}

    fold_all([*events, MessageAddedEvent(content="Three")], branch_states=branch_states)

    assert {branch: shape(state.messages) for branch, state in branch_states.items()} == {
        "b": ["user: One"],
        "c": ["user: One", "user: Two"],
    }


@pytest.mark.parametrize(("state", "finished"), [("completed", True), ("failed", True), ("canceled", False)])
def test_completed_and_failed_runs_are_finished(state: Any, finished: bool) -> None:
    assert fold_all([task(), StatusUpdateEvent(state=state, final=True)]).finished is finished


@pytest.mark.parametrize(
    ("state", "limits", "reason"),
    [
        (RunState(iteration=2), Limits(iterations=2), "max_iterations"),
        (RunState(iteration=1), Limits(iterations=2), None),
        (RunState(iteration=10_000), Limits(iterations=None), None),
        (RunState(failures=3), Limits(), "tool_failures"),
        (RunState(failures=3), Limits(tool_failures=None), None),
        (RunState(usage=Usage(input_tokens=60, output_tokens=40)), Limits(tokens=100), "tokens"),
        (RunState(usage=Usage(input_tokens=60, output_tokens=39)), Limits(tokens=100), None),
        (RunState(thought_streak=5), Limits(), "max_iterations"),
        (RunState(thought_streak=4), Limits(), None),
    ],
)
def test_each_limit_has_its_reason(state: RunState, limits: Limits, reason: str | None) -> None:
    hit = check_limits(state, limits, thought_limit=3)

    assert (hit.reason if hit is not None else None) == reason


def test_fold_keeps_the_highest_command_number() -> None:
    events = [
        MessageAddedEvent(seq=2, content="Half of it", metadata={"command_id": 7}),
        InputReceivedEvent(seq=3, input_id="a", value=1, branch="b", metadata={"command_id": 9}),
        MessageAddedEvent(seq=4, content="No, all of it", metadata={"command_id": 8}),
        CustomEvent(seq=5, name="note", metadata={"command_id": "none", "tenant": "t"}),
    ]

    assert [fold_all([task(seq=1), *events[:count]]).last_command for count in range(5)] == [0, 7, 9, 9, 9]
    assert (
        fold_all([task(seq=1), *events[:2]])
        .create_branch()
        .with_run_values(fold_all([task(seq=1), *events]))
        .last_command
        == 9
    )


def test_command_of_a_nested_run_does_not_count_for_the_outer_run() -> None:
    inside = MessageAddedEvent(seq=2, content="Hi", task_id="child", parent_task_id="r", metadata={"command_id": 7})

    assert fold_all([task(seq=1), inside]).last_command == 0


def test_run_starts_without_the_command_number_of_the_previous_run() -> None:
    first = fold_all([task(seq=1), MessageAddedEvent(seq=2, content="Hi", metadata={"command_id": 7})])

    assert fold_all([task(seq=1)], first).last_command == 0


@settings(max_examples=100, deadline=None)
@given(st.lists(st.booleans(), min_size=1, max_size=6), st.randoms(use_true_random=False))
def test_fold_of_public_events_has_the_public_messages(hidden: list[bool], random: Any) -> None:
    calls = [ToolCall(id=str(index), name="f", hidden=each) for index, each in enumerate(hidden)]
    order = random.sample(range(len(calls)), len(calls))
    answers: list[Event] = []
    for index in order:
        messages = [Message.system("Mind the gap.")] if index % 2 else []
        answers += [
            ToolStartEvent(call=calls[index], index=index, step="1", idempotency_key=str(index)),
            ToolCompleteEvent(
                call=calls[index], index=index, step="1", success=True, content=f"of {index}", messages=messages
            ),
        ]
    events = [
        task(),
        llm_call(),
        content_complete("", *calls),
        *answers,
        llm_call("2"),
        content_complete("Done.", step="2"),
    ]
    state = fold_all(public_events(events))
    assert list(state.messages) == list(select_public_messages(fold_all(events).messages))
    assert state.batch is None


def test_parts_of_a_result_follow_its_text_in_the_history() -> None:
    state = fold_all([task(), content_complete("", tool_call()), tool_complete(content="See.", parts=[IMAGE])])

    assert state.messages[-1].content == [TextPart(text="See."), IMAGE]


def test_files_of_an_answer_follow_its_text_and_citations_are_not_in_the_history() -> None:
    cited = Citation(url="https://example.org")
    state = fold_all([task(), llm_call(), content_complete("A cat.", files=[IMAGE], citations=[cited])])

    assert state.content == "A cat."
    assert state.files == [IMAGE]
    assert state.citations == [cited]
    assert state.messages[-1].content == [TextPart(text="A cat."), IMAGE]
    assert state.done


def test_answer_by_a_tool_has_only_the_parts_of_that_call() -> None:
    before = content_complete("I drew.", tool_call(), files=[IMAGE], citations=[Citation(url="https://example.org")])
    state = fold_all([task(), before, tool_complete(answer=True, parts=[IMAGE, IMAGE])])

    assert state.answered is True
    assert state.files == [IMAGE, IMAGE]
    assert state.citations == ()


def test_canceled_message_has_no_files() -> None:
    events = [
        task(),
        llm_call(),
        content_complete(files=[IMAGE]),
        llm_call("2"),
        content_complete("Half", step="2", finish_reason="canceled"),
    ]

    assert fold_all(events).content == "Half"
    assert fold_all(events).files == []
