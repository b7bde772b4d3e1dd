"""Events for fold tests."""

from typing import Any

from hypothesis import strategies as st

from rxloop.protocol.events import (
    ContentCompleteEvent,
    CustomEvent,
    Event,
    InputRequiredEvent,
    LLMCallEvent,
    MessageAddedEvent,
    PendingInput,
    StatusUpdateEvent,
    TaskEvent,
    ToolCompleteEvent,
    ToolStartEvent,
)
from rxloop.protocol.messages import ImagePart, Message, ToolCall
from rxloop.state.fold import fold_all
from rxloop.state.run_state import RunState

IMAGE = ImagePart(data=b"png", media_type="image/png")


def task(*texts: str, **fields: Any) -> TaskEvent:
    return TaskEvent(messages=[Message.user(text) for text in texts or ("Hi",)], model="m", agent_name="a", **fields)


def llm_call(step: str = "1", **fields: Any) -> LLMCallEvent:
    iteration = int(step.rpartition("/")[2])
    return LLMCallEvent(
        step=step, iteration=iteration, model="m", message_count=1, tool_count=0, estimated_input_tokens=1, **fields
    )


def content_complete(content: str = "", *calls: ToolCall, step: str = "1", **fields: Any) -> ContentCompleteEvent:
    return ContentCompleteEvent(step=step, content=content, tool_calls=list(calls), **fields)


def tool_call(name: str = "f", id: str = "0") -> ToolCall:
    return ToolCall(id=id, name=name)


def tool_complete(index: int = 0, content: str = "ok", *, step: str = "1", success: bool = True, **f: Any) -> Event:
    return ToolCompleteEvent(call=tool_call(), index=index, step=step, success=success, content=content, **f)


def tool_start(index: int = 0, *, step: str = "1") -> ToolStartEvent:
    return ToolStartEvent(call=tool_call(), index=index, step=step, idempotency_key="k")


def input_required(input_id: str = "1.0.1", index: int = 0, step: str = "1") -> InputRequiredEvent:
    return InputRequiredEvent(input=PendingInput(input_id=input_id, prompt="Sure?", index=index, step=step))


steps = st.sampled_from(["1", "2", "b/1"])
any_event = st.one_of(
    st.just(task()),
    steps.map(llm_call),
    st.builds(
        lambda step, names, cut, files: content_complete(
            "x",
            *(tool_call(name) for name in names),
            step=step,
            finish_reason="canceled" if cut else "stop",
            files=files,
        ),
        steps,
        st.lists(st.sampled_from(["f", "think_aloud"]), max_size=3),
        st.booleans(),
        st.sampled_from([[], [IMAGE]]),
    ),
    st.builds(
        lambda index, step, parts: tool_complete(index, step=step, parts=parts),
        st.integers(-1, 3),
        steps,
        st.sampled_from([[], [IMAGE, IMAGE]]),
    ),
    st.builds(lambda index, step: tool_start(index, step=step), st.integers(0, 3), steps),
    st.builds(lambda role: MessageAddedEvent(content="m", role=role), st.sampled_from(["user", "system"])),
    st.builds(lambda index, step: input_required(f"{step}.{index}.1", index, step), st.integers(0, 3), steps),
    st.builds(lambda state: StatusUpdateEvent(state=state), st.sampled_from(["working", "canceled"])),
    st.just(CustomEvent(name="a")),
)


def state_with_answers(*successes: bool | None) -> RunState:
    """Return the state after calls that answered (True), failed (False) or were unrelated (None)."""
    calls = [ToolCall(id=str(place), name="f") for place in range(len(successes))]
    done = [
        ToolCompleteEvent(
            call=call, index=index, step="1", success=bool(good), content=f"{index}", answer=good is not None
        )
        for index, (call, good) in enumerate(zip(calls, successes, strict=True))
    ]
    return fold_all([task(), content_complete("", *calls), *done])
