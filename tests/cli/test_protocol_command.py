"""`rxloop protocol`: the kinds and their fields, from the classes."""

from __future__ import annotations

import orjson
import pytest
from jsonschema import Draft202012Validator

from rxloop import ToolCompleteEvent
from rxloop.protocol import protocol_schema
from rxloop.protocol.envelope import EVENT_TYPES
from rxloop.protocol.messages import ToolCall
from support.cli_workspace import Workspace


def test_every_kind_is_listed_with_how_it_is_kept_and_for_whom(workspace: Workspace) -> None:
    lines = {line.split()[0]: line for line in workspace.run("protocol").stdout.splitlines() if line}
    for kind, cls in EVENT_TYPES.items():
        assert ("durable" if cls.durable else "transient") in lines[kind]
        assert ("internal" in lines[kind]) is (cls.visibility == "internal")


@pytest.mark.parametrize("kind", ["task", "tool-complete", "llm-failed", "content-delta"])
def test_every_field_of_a_kind_is_shown_under_its_name_on_the_wire(workspace: Workspace, kind: str) -> None:
    said = workspace.run("protocol", kind).stdout
    names = [line.split()[0].rstrip("?") for line in said.splitlines() if line.startswith("  ")]
    for name, field in EVENT_TYPES[kind].model_fields.items():
        assert (field.alias or name) in names


@pytest.mark.parametrize("name", ["tool-complete", "tool_complete", "ToolCompleteEvent", "TOOL-COMPLETE"])
def test_a_kind_may_be_named_as_one_knows_it(workspace: Workspace, name: str) -> None:
    said = workspace.run("protocol", name).stdout
    assert said.startswith("tool-complete  ToolCompleteEvent, durable, unless hidden\n")
    assert "The text that the model reads." in said
    assert "ToolCall  Tool call requested by the model." in said


def test_json_is_the_schema_of_all(workspace: Workspace) -> None:
    assert orjson.loads(workspace.run("protocol", "--json").stdout) == protocol_schema()


@pytest.mark.parametrize("kind", ["task", "gap", "input-required", "message-added"])
def test_json_of_one_kind_stands_alone(workspace: Workspace, kind: str) -> None:
    schema = orjson.loads(workspace.run("protocol", kind, "--json").stdout)
    Draft202012Validator.check_schema(schema)
    assert schema["properties"]["kind"]["const"] == kind


def test_the_schema_of_a_kind_takes_its_events_and_no_others(workspace: Workspace) -> None:
    schema = orjson.loads(workspace.run("protocol", "tool-complete", "--json").stdout)
    event = orjson.loads(ToolCompleteEvent(call=ToolCall(id="1", name="f"), success=True, content="x").to_json())
    checks = Draft202012Validator(schema)
    assert checks.is_valid(event)
    assert not checks.is_valid(event | {"call": {"id": 5}})


def test_a_kind_that_does_not_exist_is_wrong_usage_with_the_nearest_one(workspace: Workspace) -> None:
    done = workspace.run("protocol", "tool-completed", code=2)
    assert "there is no kind 'tool-completed': did you mean tool-complete? the kinds are task, " in done.stderr
