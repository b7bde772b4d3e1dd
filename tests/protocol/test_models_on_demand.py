"""Lazy construction of pydantic validators."""

from __future__ import annotations

import subprocess
import sys

import pytest

BEFORE = """
import asyncio, pickle, threading
from concurrent.futures import ThreadPoolExecutor
from pydantic import ValidationError
from pydantic_core import SchemaSerializer, SchemaValidator
from rxloop.protocol import events
from rxloop.protocol.events import ContentDeltaEvent, Event, TaskEvent, ToolCompleteEvent, UsageEvent, from_json
from rxloop.protocol.envelope import EVENT_TYPES
from rxloop.protocol.messages import Message, ToolCall, Usage
assert not isinstance(vars(ContentDeltaEvent)["__pydantic_validator__"], SchemaValidator), "built at import"
"""


def run_code(code: str) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", BEFORE + code], check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "first_use",
    [
        "ContentDeltaEvent(delta='a')",
        "ContentDeltaEvent.model_validate({'delta': 'a'})",
        'from_json(b\'{"version":1,"kind":"content-delta","delta":"a"}\')',
        'ContentDeltaEvent.model_validate_json(\'{"delta": "a"}\')',
        "ContentDeltaEvent.model_construct(delta='a', version=1).to_json()",
        "pickle.loads(pickle.dumps(ContentDeltaEvent(delta='a')))",
        "ContentDeltaEvent(delta='a').model_copy(update={'delta': 'b'})",
    ],
)
def test_model_is_built_at_its_first_use(first_use: str) -> None:
    run_code(f"""
{first_use}
assert type(ContentDeltaEvent.__pydantic_serializer__) is SchemaSerializer
assert type(ContentDeltaEvent(delta="a").__pydantic_validator__) is SchemaValidator
assert type(vars(ContentDeltaEvent)["__pydantic_validator__"]) is SchemaValidator
""")


def test_every_kind_can_be_built_independently() -> None:
    run_code("""
for kind, cls in EVENT_TYPES.items():
    cls.model_json_schema()
    cls.model_rebuild()
    assert type(cls.__pydantic_validator__) is SchemaValidator, kind
events.protocol_schema()
""")


def test_many_threads_may_use_a_model_first() -> None:
    run_code("""
together = threading.Barrier(8)
def work(_):
    together.wait()
    made = [ToolCompleteEvent(call=ToolCall(id="1", name="add"), success=True, content="3")]
    made += [UsageEvent(input_tokens=1), ContentDeltaEvent(delta="a")]
    made += [TaskEvent(messages=[Message.user("hi")], model="m", agent_name="a")]
    return [from_json(each.to_json()) == each for each in made]
with ThreadPoolExecutor(8) as pool:
    assert all(all(each) for each in pool.map(work, range(8)))
""")


def test_subclass_works_before_its_base_is_used() -> None:
    run_code("""
class Mine(ToolCompleteEvent):
    rating: int = 0
made = Mine(call=ToolCall(id="1", name="add"), success=True, content="3", rating=2)
assert b'"rating":2' in made.to_json()
assert Mine.model_validate(made.model_dump()) == made
try:
    Mine(call=3)
except ValidationError as error:
    assert error.error_count() == 3
else:
    raise AssertionError
""")
