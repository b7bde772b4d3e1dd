"""Event kinds and fields of `rxloop protocol`."""

from __future__ import annotations

import orjson
import pytest
from jsonschema import Draft202012Validator

from rxloop import ToolCompleteEvent
from rxloop.protocol import protocol_schema
from rxloop.protocol.envelope import EVENT_TYPES
from rxloop.protocol.messages import ToolCall
from support.cli_workspace import Workspace


def test_every_kind_is_listed_with_its_storage_and_audience(workspace: Workspace) -> None:
    lines = {line.split()[0]: line for line in workspace.run("protocol").stdout.splitlines() if line}
    for kind, cls in EVENT_TYPES.items():
        assert ("durable" if cls.durable else "transient") in lines[kind]
        assert ("internal" in lines[kind]) is (cls.visibility == "internal")


@pytest.mark.parametrize("kind", ["task", "tool-complete", "llm-failed", "content-delta"])
def test_every_field_is_shown_with_its_wire_name(workspace: Workspace, kind: str) -> None:
    output = workspace.run("protocol", kind).stdout
    names = [line.split()[0].rstrip("?") for line in output.splitlines() if line.startswith("  ")]
    for name, field in EVENT_TYPES[kind].model_fields.items():
        assert (field.alias or name) in names


@pytest.mark.parametrize("name", ["tool-complete", "tool_complete", "ToolCompleteEvent", "TOOL-COMPLETE"])
def test_kind_is_found_by_its_class_name_or_in_any_case(workspace: Workspace, name: str) -> None:
    output = workspace.run("protocol", name).stdout
    assert output.startswith("tool-complete  ToolCompleteEvent, durable, unless hidden\n")
    assert "The text that the model reads." in output
    assert "ToolCall  Tool call requested by the model." in output


def test_json_is_the_complete_schema(workspace: Workspace) -> None:
    assert orjson.loads(workspace.run("protocol", "--json").stdout) == protocol_schema()


@pytest.mark.parametrize("kind", ["task", "gap", "input-required", "message-added"])
def test_json_of_a_kind_is_self_contained(workspace: Workspace, kind: str) -> None:
    schema = orjson.loads(workspace.run("protocol", kind, "--json").stdout)
    Draft202012Validator.check_schema(schema)
    assert schema["properties"]["kind"]["const"] == kind


def test_schema_of_a_kind_accepts_only_its_events(workspace: Workspace) -> None:
    schema = orjson.loads(workspace.run("protocol", "tool-complete", "--json").stdout)
    event = orjson.loads(ToolCompleteEvent(call=ToolCall(id="1", name="f"), success=True, content="x").to_json())
    checks = Draft202012Validator(schema)
    assert checks.is_valid(event)
    assert not checks.is_valid(event | {"call": {"id": 5}})


def test_unknown_kind_is_invalid_usage_with_a_suggestion(workspace: Workspace) -> None:
    done = workspace.run("protocol", "tool-completed", code=2)
    assert "unknown event kind 'tool-completed': did you mean tool-complete? the kinds are task, " in done.stderr
