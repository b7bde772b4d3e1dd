"""Against a server that mis-speaks: what it may cost is one call."""

import logging
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from rxloop.protocol.events import Event, ToolProgressEvent
from rxloop.testing import call
from rxloop.tools.mcp import mcp
from tools.mcp.asking import events_of, results

LIAR = str(Path(__file__).with_name("liar.py"))


async def told(how: str, *, env: dict[str, str] | None = None, **options: Any) -> Sequence[Event]:
    return await events_of([call("liar__tell")], mcp(sys.executable, LIAR, how, name="liar", env=env), **options)


@pytest.mark.timeout(60)
async def test_a_result_that_takes_forever_to_check_does_not_hold_up_all_runs() -> None:
    [result] = results(await told("pattern"))
    assert not result.success
    assert "broke its word: x is to match" in result.content


@pytest.mark.timeout(60)
async def test_a_form_that_takes_forever_to_check_does_not_hold_up_all_runs() -> None:
    [result] = results(await told("form", on_input=lambda asked: {}))
    assert result.content == "told"


async def test_progress_beyond_all_measure_is_progress_without_a_part(caplog: pytest.LogCaptureFixture) -> None:
    events = await told("progress")
    assert [event.fraction for event in events if isinstance(event, ToolProgressEvent)] == [None, 0.0, None, 1.0]
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


async def test_a_tool_whose_schema_no_vendor_reads_is_left_out_and_the_others_stay(
    caplog: pytest.LogCaptureFixture,
) -> None:
    [result] = results(await told("number"))
    assert result.content == "told"
    assert "the tool 'large' is left out" in caplog.text


async def test_a_call_is_not_made_again_because_of_the_words_of_an_error(tmp_path: Path) -> None:
    [result] = results(await told("session", env={"LIAR_EFFECTS": str(tmp_path / "effects")}))
    assert (result.success, (tmp_path / "effects").read_text()) == (False, "called\n")


async def test_what_is_no_result_is_an_error_without_what_is_secret(caplog: pytest.LogCaptureFixture) -> None:
    [result] = results(await told("shape", env={"LIAR_TOKEN": "planted-0451"}))
    assert "gave no result as MCP has it: content" in result.content
    assert "planted-0451" not in result.content + caplog.text


async def test_bytes_that_are_no_text_cost_nothing() -> None:
    # Not even the closing of the agent, which told of them.
    [result] = results(await told("bytes"))
    assert result.content == "told"
