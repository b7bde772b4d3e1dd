"""Commands `show`, `replay`, `graph`, `diff`, `export` and `import`."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import orjson
import pytest

from rxloop import Agent, ConfigurationError, Event, MemoryEventLog
from rxloop.cli.commands.transfer import read_runs
from rxloop.memory import Memory, Note
from rxloop.state.fold import fold_all
from rxloop.testing import ScriptedModel, call
from support.cli_workspace import Workspace
from support.hidden_tools import MARK, fail, peek

WEATHER = ("run", "Compare the weather in Oslo and Bergen.", "--tools", "kit:get_weather")


@pytest.fixture
def recorded_run(workspace: Workspace) -> Workspace:
    """Workspace with a single run."""
    workspace.run(*WEATHER)
    return workspace


def test_show_prints_a_numbered_line_for_every_event(recorded_run: Workspace) -> None:
    head, who, *lines = recorded_run.run("show", "last").stdout.splitlines()
    assert head == f"run {recorded_run.rows()[0]['taskId']}, conversation {recorded_run.rows()[0]['contextId']}"
    assert who == f"agent with {recorded_run.url}#demo, completed"
    assert [int(line.split()[0]) for line in lines] == [event["seq"] for event in recorded_run.events()]
    assert any('→ get_weather(city="Oslo")' in line for line in lines)
    assert lines[-1].endswith("completed")


def test_show_can_start_after_an_event(recorded_run: Workspace) -> None:
    last = len(recorded_run.events())
    lines = recorded_run.run("show", "last", "--after", str(last - 2)).stdout.splitlines()
    assert [int(line.split()[0]) for line in lines] == [last - 1, last]


def test_show_json_equals_the_export(recorded_run: Workspace) -> None:
    assert recorded_run.run("show", "last", "--json").stdout == recorded_run.run("export", "last").stdout
    assert (
        recorded_run.run("show", "last", "--json", "--full").stdout
        == recorded_run.run("export", "last", "--full").stdout
    )


def test_show_follow_ends_with_the_attempt(recorded_run: Workspace) -> None:
    assert recorded_run.run("show", "last", "--follow").stdout == recorded_run.run("show", "last").stdout


def test_show_can_omit_thoughts(recorded_run: Workspace) -> None:
    assert "· " in recorded_run.run("show", "last").stdout
    assert "· " not in recorded_run.run("show", "last", "--thoughts", "none").stdout


def test_replay_repeats_the_output_of_the_run(recorded_run: Workspace) -> None:
    live, again = (
        recorded_run.run(*WEATHER, "--thoughts", "all"),
        recorded_run.run("replay", "last", "--thoughts", "all"),
    )
    assert again.stdout == live.stdout
    assert re.sub(r"  … .*\n", "", live.stderr).startswith(again.stderr)


def test_replay_can_stop_after_an_event(recorded_run: Workspace) -> None:
    assert recorded_run.run("replay", "last", "--until", "5").stdout == ""
    assert len(recorded_run.run("replay", "last", "--json", "--until", "5").stdout.splitlines()) == 5


def test_replay_speed_scales_the_recorded_pace(recorded_run: Workspace) -> None:
    events = [
        event.replace(b'"seq":1,', b'"seq":1,')
        for event in recorded_run.run("export", "last", "--full").stdout_bytes.splitlines()
    ]
    paced = b"\n".join(_set_time(event, 100 * number) for number, event in enumerate(events))
    (recorded_run.folder / "paced.jsonl").write_bytes(paced)
    recorded_run.run("import", "paced.jsonl", "--db", "paced.db")
    started = time.monotonic()
    recorded_run.run("replay", "last", "--speed", "10", "--db", "paced.db")
    assert time.monotonic() - started >= (len(events) - 1) * 0.01


def _set_time(event: bytes, millis: int) -> bytes:
    fields = orjson.loads(event)
    stamp = f"{millis // 1000:02}.{millis % 1000:03}"
    return orjson.dumps({**fields, "timestamp": f"2030-01-01T00:00:{stamp}Z"})


def test_replay_speed_of_zero_is_invalid_usage(recorded_run: Workspace) -> None:
    assert (
        "--speed must be a positive factor, got 0;" in recorded_run.run("replay", "last", "--speed", "0", code=2).stderr
    )


@pytest.mark.parametrize(
    ("form", "begins"),
    [
        ("tree", "planning plan: "),
        ("mermaid", "flowchart"),
        ("dot", "digraph"),
        ("json", "{"),
        ("html", "<!doctype html>"),
    ],
)
def test_graph_is_written_in_every_format(recorded_run: Workspace, form: str, begins: str) -> None:
    drawn = recorded_run.run("graph", "last", "--format", form).stdout
    assert drawn.startswith(begins)
    assert recorded_run.run("graph", "last", "--format", form, "-o", "graph.txt").stdout == ""
    assert Path("graph.txt").read_text(encoding="utf-8") == drawn


def test_graph_without_thoughts_prints_a_note(workspace: Workspace) -> None:
    workspace.run("run", "2 + 2")
    done = workspace.run("graph", "last")
    assert (done.stdout, done.stderr) == ("", "this run has no thoughts\n")


def test_unwritable_output_file_is_reported_on_one_line(recorded_run: Workspace) -> None:
    done = recorded_run.run("graph", "last", "-o", "no/such/folder.txt", code=2)
    assert done.stderr == "rxloop: cannot open 'no/such/folder.txt': No such file or directory; check the path\n"


def test_diff_shows_the_first_difference_and_the_costs(recorded_run: Workspace) -> None:
    recorded_run.run("run", "2 + 2")
    ids = [row["taskId"] for row in recorded_run.rows()]
    output = recorded_run.run("diff", ids[0][-8:], ids[1][-8:]).stdout
    assert all(task_id in output for task_id in ids)
    assert "2 + 2" in output
    assert "3 model calls, " in output


def test_export_and_import_preserve_a_run(recorded_run: Workspace) -> None:
    lines = recorded_run.run("export", "last", "--full").stdout
    (recorded_run.folder / "run.jsonl").write_text(lines, encoding="utf-8")
    done = recorded_run.run("import", "run.jsonl", "--trusted", "--db", "new/other.db")
    assert done.stderr.endswith(f": {len(lines.splitlines())} events\n")
    assert recorded_run.run("export", "last", "--full", "--db", "new/other.db").stdout == lines
    assert (
        recorded_run.run("runs", "--json", "--db", "new/other.db").stdout == recorded_run.run("runs", "--json").stdout
    )


@pytest.mark.parametrize("trusted", [False, True])
def test_memory_only_uses_trusted_imported_runs(recorded_run: Workspace, trusted: bool) -> None:
    lines = recorded_run.run("export", "last", "--full").stdout
    recorded_run.run("import", "-", *["--trusted"] * trusted, "--db", "other.db", stdin=lines)

    async def read() -> list[Note]:
        memory = Memory(recorded_run.folder / "other.db")
        notes = await memory.notes(None)
        await memory.aclose()
        return notes

    assert bool(asyncio.run(read())) is trusted


def test_import_accepts_several_runs_in_a_file(recorded_run: Workspace) -> None:
    recorded_run.run("run", "2 + 2")
    lines = "".join(recorded_run.run("export", row["taskId"], "--full").stdout for row in recorded_run.rows())
    recorded_run.run("import", "-", "--db", "other.db", stdin=lines)
    assert [row["question"] for row in recorded_run.rows("--db", "other.db")] == [
        row["question"] for row in recorded_run.rows()
    ]


def test_import_of_an_existing_run_imports_nothing(recorded_run: Workspace) -> None:
    recorded_run.run("run", "2 + 2")
    new, old = (recorded_run.run("export", row["taskId"], "--full").stdout for row in recorded_run.rows())
    recorded_run.run("import", "-", "--db", "other.db", stdin=old)
    done = recorded_run.run("import", "-", "--db", "other.db", stdin=new + old, code=1)
    assert f"the run {recorded_run.rows()[1]['taskId']} already exists; nothing was imported" in done.stderr
    assert len(recorded_run.rows("--db", "other.db")) == 1


def _nest(depth: int) -> object:
    value: object = 1
    for _ in range(depth):
        value = [value]
    return value


def _remove_field(name: str) -> Callable[[list[bytes]], list[bytes]]:
    return lambda lines: [orjson.dumps({**orjson.loads(lines[0]), name: ""}), *lines[1:]]


def _change_fields(**fields: object) -> Callable[[list[bytes]], list[bytes]]:
    return lambda lines: [lines[0], orjson.dumps({**orjson.loads(lines[1]), **fields}), *lines[2:]]


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda lines: [], "f contains no events"),
        (lambda lines: [*lines, b"{"], "an event must be a JSON object"),
        (lambda lines: [*lines, b"\xff"], "an event must be a JSON object"),
        (lambda lines: [*lines, b'{"kind": "task"}'], "invalid event of kind 'task'"),
        (lambda lines: [lines[0][:200]], "line 1: invalid event of kind 'task': Invalid JSON"),
        (lambda lines: lines[1:], "f, line 1: the next seq of the run .* must be 1, got 2"),
        (lambda lines: [*lines[:3], *lines[4:]], "f, line 4: the next seq of the run .* must be 4, got 5"),
        (lambda lines: [*lines, lines[-1]], "the next seq"),
        (_remove_field("taskId"), "f, line 1: the event must have a taskId"),
        (_remove_field("contextId"), "a contextId"),
        (_change_fields(contextId="another"), "f, line 2: the run .* must have the same contextId"),
        (
            _change_fields(timestamp="10000-01-01T00:00:00Z"),
            "f, line 2: invalid event of kind 'status-update': timestamp",
        ),
        (
            _change_fields(metadata={"a": _nest(101)}),
            "f, line 2: status-update: metadata.* nested more than 100 deep",
        ),
        (_change_fields(metadata={"a": _nest(190)}), "f, line 2: "),
        (lambda lines: [lines[0], b'{"kind":"custom","data":' + b"[" * 100_000], "f, line 2: an event must be"),
        (_change_fields(version=99), "f, line 2: protocol version 99 is not supported"),
        (
            lambda lines: [b'{"kind":"usage","taskId":"t","contextId":"c","seq":1}'],
            "the first event of a run must be a task",
        ),
    ],
)
def test_incomplete_run_is_rejected_with_its_line_and_creates_no_database(
    recorded_run: Workspace, change: Callable[[list[bytes]], list[bytes]], expected: str
) -> None:
    data = b"\n".join(change(recorded_run.run("export", "last", "--full").stdout_bytes.splitlines()))
    with pytest.raises(ConfigurationError, match=expected):
        read_runs(data, "f")
    (recorded_run.folder / "bad.jsonl").write_bytes(data)
    assert recorded_run.run("import", "bad.jsonl", "--db", "new/other.db", code=2).stderr.startswith(
        "rxloop: bad.jsonl"
    )
    assert not (recorded_run.folder / "new").exists()


def test_run_that_cannot_be_stored_is_rejected_before_writing(recorded_run: Workspace) -> None:
    good = recorded_run.run("export", "last", "--full").stdout
    lines = good.replace("01", "02").splitlines()
    lines[-1] = lines[-1].replace('"attempt":1', f'"attempt":{2**64 - 1}')
    (recorded_run.folder / "bad.jsonl").write_text("\n".join([*good.splitlines(), *lines]), encoding="utf-8")
    done = recorded_run.run("import", "bad.jsonl", "--db", "new/other.db", code=2)
    assert re.fullmatch("rxloop: cannot store the run .*: .*\n", done.stderr)
    assert not (recorded_run.folder / "new").exists()


def test_missing_import_file_is_reported_on_one_line(workspace: Workspace) -> None:
    done = workspace.run("import", "none.jsonl", code=2)
    assert done.stderr == "rxloop: cannot open 'none.jsonl': No such file or directory; check the path\n"


def test_import_keeps_custom_events(recorded_run: Workspace) -> None:
    lines = recorded_run.run("export", "last", "--full").stdout_bytes.splitlines()
    fields = {**orjson.loads(lines[-2]), "kind": "mine.own", "weight": 3}
    [events] = read_runs(b"\n".join([*lines[:-2], orjson.dumps(fields), lines[-1]]), "f").values()
    assert orjson.loads(events[-2].to_json())["weight"] == 3
    assert isinstance(events[-1], Event)


def test_public_export_can_be_imported_but_not_continued(recorded_run: Workspace) -> None:
    lines = recorded_run.run("export", "last").stdout
    assert all(Event.from_json(line, strict=True).public for line in lines.splitlines())
    done = recorded_run.run("import", "-", "--db", "other.db", stdin=lines)
    assert re.fullmatch(r"run \w+: \d+ events, public form\n", done.stderr)
    assert recorded_run.run("export", "last", "--db", "other.db").stdout == lines
    shown = recorded_run.run("show", "last", "--db", "other.db").stdout
    assert '~ hidden "not part of the public form"' in shown
    assert "think_aloud" not in shown
    refused = recorded_run.run("fork", "last", "--at", "1", "--db", "other.db", code=1)
    assert "was imported without its internal data" in refused.stderr
    assert "rxloop export --full" in refused.stderr


def test_public_export_of_an_unfinished_run_cannot_be_imported(recorded_run: Workspace) -> None:
    lines = recorded_run.run("export", "last").stdout.splitlines()
    done = recorded_run.run("import", "-", "--db", "other.db", stdin="\n".join(lines[:-1]), code=2)
    assert "is not over, and its public form cannot be resumed" in done.stderr
    assert "rxloop export --full" in done.stderr


async def record_hidden_call() -> Sequence[Event]:
    """Record a run in which the first of two calls is hidden."""
    log = MemoryEventLog()
    model = ScriptedModel([call(f"peek_{MARK}", "a"), call("fail", "b")], "Done.")
    run = Agent(model, tools=[peek, fail], log=log).run("Look")
    return await log.read((await run).task_id)


async def test_numbers_of_hidden_events_have_placeholders() -> None:
    lines = [event.to_json(public=True) for event in await record_hidden_call() if event.to_public() is not None]
    numbers = [orjson.loads(line)["seq"] for line in lines]
    [events] = read_runs(b"\n".join(lines), "f").values()
    assert [event.seq for event in events] == [*range(1, len(events) + 1)]
    hidden = [event for event in events if event.to_public() is None]
    assert len(hidden) == len(events) - len(numbers) > 0
    messages = fold_all(events).messages
    assert [message.role for message in messages] == ["user", "assistant", "tool", "assistant"]
    assert [call.name for call in messages[1].tool_calls] == ["fail"]


def test_gap_of_a_damaged_public_export_is_limited(recorded_run: Workspace) -> None:
    lines = recorded_run.run("export", "last").stdout_bytes.splitlines()
    lines[-1] = lines[-1].replace(b'"seq":', b'"seq":9999999', 1)
    with pytest.raises(ConfigurationError, match="seq must be at most"):
        read_runs(b"\n".join(lines), "f")


@pytest.mark.parametrize("form", ["markdown", "case", "html"])
def test_export_writes_other_forms(recorded_run: Workspace, form: str) -> None:
    text = recorded_run.run("export", "last", "--form", form).stdout
    begins = {"markdown": "# Run ", "case": '{"id":"', "html": "<!doctype html>"}
    assert text.startswith(begins[form])
    if form == "html":
        assert recorded_run.run("export", "last", "--html").stdout == text


def test_export_sends_spans_or_writes_a_file(recorded_run: Workspace) -> None:
    done = recorded_run.run("export", "last", "--html", "--otel", code=2)
    assert "--otel sends spans and writes no file" in done.stderr
