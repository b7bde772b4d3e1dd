"""`rxloop show`, `replay`, `graph`, `diff`, `export` and `import`."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path

import orjson
import pytest

from rxloop import ConfigurationError, Event
from rxloop.cli.commands.transfer import read_runs
from support.cli_workspace import Workspace

WEATHER = ("run", "Compare the weather in Oslo and Bergen.", "--tools", "kit:get_weather")


@pytest.fixture
def told(workspace: Workspace) -> Workspace:
    """A place with one run."""
    workspace.run(*WEATHER)
    return workspace


def test_show_has_a_numbered_line_for_every_event(told: Workspace) -> None:
    head, who, *lines = told.run("show", "last").stdout.splitlines()
    assert head == f"run {told.rows()[0]['taskId']}, conversation {told.rows()[0]['contextId']}"
    assert who == f"agent with {told.url}#demo, completed"
    assert [int(line.split()[0]) for line in lines] == [event["seq"] for event in told.events()]
    assert any('→ get_weather(city="Oslo")' in line for line in lines)
    assert lines[-1].endswith("completed")


def test_show_can_begin_behind_an_event(told: Workspace) -> None:
    last = len(told.events())
    lines = told.run("show", "last", "--after", str(last - 2)).stdout.splitlines()
    assert [int(line.split()[0]) for line in lines] == [last - 1, last]


def test_show_as_json_is_what_export_writes(told: Workspace) -> None:
    assert told.run("show", "last", "--json").stdout == told.run("export", "last").stdout
    assert told.run("show", "last", "--json", "--full").stdout == told.run("export", "last", "--full").stdout


def test_follow_ends_with_the_attempt(told: Workspace) -> None:
    assert told.run("show", "last", "--follow").stdout == told.run("show", "last").stdout


def test_thoughts_can_be_left_out_of_the_record(told: Workspace) -> None:
    assert "· " in told.run("show", "last").stdout
    assert "· " not in told.run("show", "last", "--thoughts", "none").stdout


def test_replay_writes_what_the_run_wrote(told: Workspace) -> None:
    live, again = told.run(*WEATHER, "--thoughts", "all"), told.run("replay", "last", "--thoughts", "all")
    assert again.stdout == live.stdout
    assert re.sub(r"  … .*\n", "", live.stderr).startswith(again.stderr)


def test_replay_can_stop_behind_an_event(told: Workspace) -> None:
    assert told.run("replay", "last", "--until", "5").stdout == ""
    assert len(told.run("replay", "last", "--json", "--until", "5").stdout.splitlines()) == 5


def test_replay_keeps_the_pace_that_was_asked_for(told: Workspace) -> None:
    events = [
        event.replace(b'"seq":1,', b'"seq":1,')
        for event in told.run("export", "last", "--full").stdout_bytes.splitlines()
    ]
    paced = b"\n".join(_later(event, 100 * number) for number, event in enumerate(events))
    (told.folder / "paced.jsonl").write_bytes(paced)
    told.run("import", "paced.jsonl", "--db", "paced.db")
    begun = time.monotonic()
    told.run("replay", "last", "--speed", "10", "--db", "paced.db")
    assert time.monotonic() - begun >= (len(events) - 1) * 0.01


def _later(event: bytes, millis: int) -> bytes:
    fields = orjson.loads(event)
    stamp = f"{millis // 1000:02}.{millis % 1000:03}"
    return orjson.dumps({**fields, "timestamp": f"2030-01-01T00:00:{stamp}Z"})


def test_a_speed_of_nothing_is_wrong_usage(told: Workspace) -> None:
    assert "speed must be positive" in told.run("replay", "last", "--speed", "0", code=2).stderr


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
def test_a_graph_is_written_in_every_form(told: Workspace, form: str, begins: str) -> None:
    drawn = told.run("graph", "last", "--format", form).stdout
    assert drawn.startswith(begins)
    assert told.run("graph", "last", "--format", form, "-o", "graph.txt").stdout == ""
    assert Path("graph.txt").read_text(encoding="utf-8") == drawn


def test_a_graph_of_no_thoughts_says_so(workspace: Workspace) -> None:
    workspace.run("run", "2 + 2")
    done = workspace.run("graph", "last")
    assert (done.stdout, done.stderr) == ("", "this run has no thoughts\n")


def test_a_file_that_cannot_be_written_is_one_line(told: Workspace) -> None:
    done = told.run("graph", "last", "-o", "no/such/folder.txt", code=1)
    assert done.stderr == "rxloop: no/such/folder.txt: No such file or directory\n"


def test_diff_shows_where_two_runs_part_and_what_each_cost(told: Workspace) -> None:
    told.run("run", "2 + 2")
    ids = [row["taskId"] for row in told.rows()]
    said = told.run("diff", ids[0][-8:], ids[1][-8:]).stdout
    assert all(task_id in said for task_id in ids)
    assert "2 + 2" in said
    assert "3 model calls, " in said


def test_a_run_goes_through_export_and_import_as_it_is(told: Workspace) -> None:
    lines = told.run("export", "last", "--full").stdout
    (told.folder / "run.jsonl").write_text(lines, encoding="utf-8")
    done = told.run("import", "run.jsonl", "--db", "new/other.db")
    assert done.stderr.endswith(f": {len(lines.splitlines())} events\n")
    assert told.run("export", "last", "--full", "--db", "new/other.db").stdout == lines
    assert told.run("runs", "--json", "--db", "new/other.db").stdout == told.run("runs", "--json").stdout


def test_several_runs_may_stand_in_one_file(told: Workspace) -> None:
    told.run("run", "2 + 2")
    lines = "".join(told.run("export", row["taskId"], "--full").stdout for row in told.rows())
    told.run("import", "-", "--db", "other.db", stdin=lines)
    assert [row["question"] for row in told.rows("--db", "other.db")] == [row["question"] for row in told.rows()]


def test_a_run_that_is_there_already_is_not_imported_and_nothing_else_is(told: Workspace) -> None:
    told.run("run", "2 + 2")
    new, old = (told.run("export", row["taskId"], "--full").stdout for row in told.rows())
    told.run("import", "-", "--db", "other.db", stdin=old)
    done = told.run("import", "-", "--db", "other.db", stdin=new + old, code=1)
    assert f"has the run {told.rows()[1]['taskId']} already; nothing was imported" in done.stderr
    assert len(told.rows("--db", "other.db")) == 1


def _nested(depth: int) -> object:
    value: object = 1
    for _ in range(depth):
        value = [value]
    return value


def _without(name: str) -> Callable[[list[bytes]], list[bytes]]:
    return lambda lines: [orjson.dumps({**orjson.loads(lines[0]), name: ""}), *lines[1:]]


def _changed(**fields: object) -> Callable[[list[bytes]], list[bytes]]:
    return lambda lines: [lines[0], orjson.dumps({**orjson.loads(lines[1]), **fields}), *lines[2:]]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda lines: [], "f holds no events"),
        (lambda lines: [*lines, b"{"], "an event must be a JSON object"),
        (lambda lines: [*lines, b"\xff"], "an event must be a JSON object"),
        (lambda lines: [*lines, b'{"kind": "task"}'], "invalid event of kind 'task'"),
        (lambda lines: [lines[0][:200]], "line 1: invalid event of kind 'task': Invalid JSON"),
        (lambda lines: lines[1:], "f, line 1: the run .* has the seq 2 where 1 comes next"),
        (lambda lines: [*lines[:3], *lines[4:]], "f, line 4: the run .* has the seq 5 where 4 comes next"),
        (lambda lines: [*lines, lines[-1]], "comes next"),
        (_without("taskId"), "f, line 1: the event has no taskId"),
        (_without("contextId"), "no contextId"),
        (_changed(contextId="another"), "f, line 2: the run .* has changed its conversation"),
        (_changed(timestamp="10000-01-01T00:00:00Z"), "f, line 2: invalid event of kind 'status-update': timestamp"),
        (_changed(metadata={"a": _nested(101)}), "f, line 2: status-update: metadata.* nested more than 100 deep"),
        (_changed(metadata={"a": _nested(190)}), "f, line 2: "),
        (lambda lines: [lines[0], b'{"kind":"custom","data":' + b"[" * 100_000], "f, line 2: an event must be"),
        (_changed(version=99), "f, line 2: version 99 of the protocol is newer than this rxloop"),
        (
            lambda lines: [b'{"kind":"usage","taskId":"t","contextId":"c","seq":1}'],
            "the first event of a run is a task",
        ),
    ],
)
def test_what_is_no_whole_run_is_refused_with_its_line_and_makes_no_database(
    told: Workspace, change: Callable[[list[bytes]], list[bytes]], said: str
) -> None:
    data = b"\n".join(change(told.run("export", "last", "--full").stdout_bytes.splitlines()))
    with pytest.raises(ConfigurationError, match=said):
        read_runs(data, "f")
    (told.folder / "bad.jsonl").write_bytes(data)
    assert told.run("import", "bad.jsonl", "--db", "new/other.db", code=2).stderr.startswith("rxloop: bad.jsonl")
    assert not (told.folder / "new").exists()


def test_what_the_database_cannot_take_is_seen_before_anything_is_written(told: Workspace) -> None:
    good = told.run("export", "last", "--full").stdout
    lines = good.replace("01", "02").splitlines()
    lines[-1] = lines[-1].replace('"attempt":1', f'"attempt":{2**64 - 1}')
    (told.folder / "bad.jsonl").write_text("\n".join([*good.splitlines(), *lines]), encoding="utf-8")
    done = told.run("import", "bad.jsonl", "--db", "new/other.db", code=2)
    assert re.fullmatch("rxloop: the run .* cannot be kept in a database: .*\n", done.stderr)
    assert not (told.folder / "new").exists()


def test_a_file_that_is_not_there_is_one_line(workspace: Workspace) -> None:
    assert workspace.run("import", "none.jsonl", code=1).stderr == "rxloop: none.jsonl: No such file or directory\n"


def test_events_of_other_programs_are_kept(told: Workspace) -> None:
    lines = told.run("export", "last", "--full").stdout_bytes.splitlines()
    fields = {**orjson.loads(lines[-2]), "kind": "mine.own", "weight": 3}
    [events] = read_runs(b"\n".join([*lines[:-2], orjson.dumps(fields), lines[-1]]), "f").values()
    assert orjson.loads(events[-2].to_json())["weight"] == 3
    assert isinstance(events[-1], Event)


def test_an_export_for_others_is_no_copy_of_a_run(told: Workspace) -> None:
    lines = told.run("export", "last").stdout
    assert all(Event.from_json(line, strict=True).public for line in lines.splitlines())
    done = told.run("import", "-", "--db", "other.db", stdin=lines, code=2)
    assert "stdin, line 1: this is the public form of a run" in done.stderr
    assert "rxloop export --full" in done.stderr
