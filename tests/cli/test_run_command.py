"""`rxloop run`, in this process."""

from __future__ import annotations

import shlex
import sys

import orjson
import pytest

from rxloop import Event, StageEvent, StatusUpdateEvent, TaskEvent
from rxloop.testing import OfflineModel
from support.cli_workspace import Workspace

WEATHER = ("run", "Compare the weather in Oslo and Bergen.", "--tools", "kit:get_weather")
MAKERS = """
async def late(): ...
def fails(): raise RuntimeError("no db")
def wants(x): ...
"""
ANSWER = "Oslo is warmer than Bergen, by 5 °C. In Oslo it is 18 °C, rain. In Bergen it is 13 °C, rain.\n"


@pytest.fixture(autouse=True)
def fresh_modules() -> None:
    """Each test has a `kit` of its own."""
    for name in ("kit", "makers"):
        sys.modules.pop(name, None)


def test_stdout_is_the_answer_and_stderr_what_led_to_it(workspace: Workspace) -> None:
    done = workspace.run(*WEATHER)
    assert done.stdout == ANSWER
    assert '→ get_weather(city="Oslo")\n' in done.stderr
    assert "← get_weather {" in done.stderr
    assert "· planning plan: " in done.stderr
    assert "completed · 3 model calls · 2 tool calls · " in done.stderr
    assert "\x1b" not in done.output


def test_the_thoughts_are_drawn_as_a_tree_at_the_end(workspace: Workspace) -> None:
    assert "├─ get_weather call_2: " in workspace.run(*WEATHER).stderr
    assert "├─" not in workspace.run(*WEATHER, "--thoughts", "none").stderr


@pytest.mark.parametrize(("level", "shown"), [("none", 0), ("brief", 4), ("all", 4)])
def test_thoughts_are_shown_as_far_as_one_likes(workspace: Workspace, level: str, shown: int) -> None:
    lines = workspace.run(*WEATHER, "--thoughts", level).stderr.splitlines()
    assert sum(line.startswith("· ") for line in lines) == shown
    assert any("<- call_2" in line for line in lines) is (level == "all")


def test_json_is_every_event_on_a_line_and_nothing_else(workspace: Workspace) -> None:
    done = workspace.run(*WEATHER, "--json")
    events = [Event.from_json(line, strict=True) for line in done.stdout.splitlines()]
    assert isinstance(events[0], TaskEvent)
    assert isinstance(events[-1], StatusUpdateEvent)
    assert events[-1].final
    assert {"content-delta", "tool-progress"} <= {event.kind for event in events}
    assert "→" not in done.output


@pytest.mark.parametrize("words", [(), ("-",)])
def test_the_question_may_come_through_a_pipe(workspace: Workspace, words: tuple[str, ...]) -> None:
    workspace.run("run", *words, stdin="2 + 2\n")
    assert workspace.rows()[0]["question"] == "2 + 2"


def test_what_is_piped_may_stand_beside_what_is_typed(workspace: Workspace) -> None:
    workspace.run("run", "Read", "this:", "-", stdin="a text\n")
    assert workspace.rows()[0]["question"] == "Read this:\n\na text"


def test_a_pipe_that_nobody_asked_for_is_left_alone(workspace: Workspace) -> None:
    workspace.run("run", "2 + 2", stdin="something else\n")
    assert workspace.rows()[0]["question"] == "2 + 2"


def test_an_empty_question_is_wrong_usage(workspace: Workspace) -> None:
    assert "the question is empty" in workspace.run("run", stdin=" \n", code=2).stderr


def test_the_runs_model_is_an_address_where_one_is_given(
    workspace: Workspace, offline: OfflineModel, offline_url: str
) -> None:
    workspace.run("run", "2 + 2", "--base-url", offline_url, "--model", "qwen3:8b")
    assert workspace.rows()[0]["model"] == f"{offline_url}#qwen3:8b"
    assert offline.requests[-1]["model"] == "qwen3:8b"


def test_a_preset_keeps_its_ways_at_another_address(
    workspace: Workspace, offline: OfflineModel, offline_url: str
) -> None:
    workspace.run("run", "2 + 2", "--base-url", offline_url, "--model", "zai:glm-4.7", ZAI_API_KEY="k")
    assert workspace.rows()[0]["model"] == "zai:glm-4.7"
    assert offline.requests[-1]["model"] == "glm-4.7"


@pytest.mark.parametrize(
    ("arguments", "env", "said"),
    [
        ((), {"RXLOOP_MODEL": ""}, "no model is named: add --model zai:glm-4.7, or set RXLOOP_MODEL\n"),
        ((), {"RXLOOP_MODEL": "", "ZAI_API_KEY": "k"}, "(ZAI_API_KEY is set: --model zai)\n"),
        (("--model", "zai:glm-4.7"), {}, "zai:glm-4.7 needs a key: export ZAI_API_KEY=..., "),
        (("--model", "nobody:x"), {}, "nobody"),
        (("--base-url", "http://localhost:1/v1"), {"RXLOOP_MODEL": ""}, "--base-url needs the name of a model"),
        (
            ("--base-url", "http://[bad", "--model", "x"),
            {},
            "such as 'http://localhost:8000/v1', got 'http://[bad'",
        ),
        (
            ("--base-url", "http://h:99999", "--model", "x"),
            {},
            "such as 'http://localhost:8000/v1', got 'http://h:99999'",
        ),
        (
            ("--model", "http://[bad#x"),
            {},
            "such as 'http://localhost:8000/v1', got 'http://[bad'",
        ),
        (
            ("--model", "ollama:x"),
            {"OLLAMA_HOST": "http://[bad"},
            "OLLAMA_HOST must be a URL, got 'http://[bad'",
        ),
        (("--model", "azure:x"), {"AZURE_OPENAI_API_KEY": "k"}, "set AZURE_OPENAI_ENDPOINT"),
        (("--tools", "kit"), {}, "--tools 'kit': write module:object"),
        (("--tools", "nothing_here:x"), {}, "there is no module 'nothing_here' in "),
        (("--tools", "kit:x"), {}, "kit has no 'x'"),
        (("--tools", "kit:number"), {}, "--tools kit:number: a tool must be a function"),
        (("--tools", "leaves:x"), {}, "--tools 'leaves:x': leaves cannot be imported: SystemExit: 3 ("),
        (("--agent", "leaves:x"), {}, "--agent 'leaves:x': leaves cannot be imported: SystemExit: 3 ("),
        (("--agent", "makers:late"), {}, "--agent 'makers:late' is an async function"),
        (("--agent", "makers:fails"), {}, "--agent 'makers:fails' did not give an agent: RuntimeError: no db ("),
        (("--agent", "makers:wants"), {}, "did not give an agent: TypeError: wants() missing 1 required"),
        (("--agent", "kit:number"), {}, "it must be an Agent"),
        (("--agent", "kit:agent", "--tools", "kit:tools"), {}, "--tools does not go with --agent"),
        (("--context", "x", "--no-log"), {}, "--context needs the database"),
    ],
)
def test_wrong_options_are_one_line_exit_code_2_and_no_database(
    workspace: Workspace, arguments: tuple[str, ...], env: dict[str, str], said: str
) -> None:
    (workspace.folder / "leaves.py").write_text("raise SystemExit(3)\n")
    (workspace.folder / "makers.py").write_text(MAKERS)
    done = workspace.run("run", "Hi", *arguments, code=2, **env)
    assert said in done.stderr
    assert done.stderr.startswith("rxloop: ")
    assert done.stderr.count("\n") == 1
    assert done.stdout == ""
    assert not workspace.database.exists()


def test_a_module_that_cannot_be_imported_is_named_with_the_line(workspace: Workspace) -> None:
    (workspace.folder / "broken.py").write_text("a = 1\nb = a / 0\n")
    done = workspace.run("run", "Hi", "--tools", "broken:b", code=2)
    assert "broken cannot be imported: ZeroDivisionError: division by zero (" in done.stderr
    assert "broken.py, line 2)" in done.stderr


def test_tools_may_be_named_by_their_file(workspace: Workspace) -> None:
    (workspace.folder / "sub").mkdir()
    (workspace.folder / "kit.py").rename(workspace.folder / "sub/kit.py")
    done = workspace.run("run", "Compare the weather in Oslo and Bergen.", "--tools", "sub/kit.py:get_weather")
    assert done.stdout == ANSWER


def test_a_failed_run_is_exit_code_1_and_says_why(workspace: Workspace) -> None:
    done = workspace.run("run", "Please break.", code=1)
    assert "failed (bad_request): " in done.stderr
    assert "Traceback" not in done.stderr
    assert workspace.rows()[0]["state"] == "failed"


def test_a_model_that_cannot_be_reached_is_told_with_what_to_do(workspace: Workspace) -> None:
    model = "http://127.0.0.1:9/v1#m"
    done = workspace.run("run", "Hi", "--model", model, code=1)
    assert "failed (connection): " in done.stderr
    assert done.stderr.endswith(f"find out why: rxloop doctor --check-network '{model}'\n")


def test_no_log_leaves_no_trace(workspace: Workspace) -> None:
    done = workspace.run("run", "2 + 2", "--no-log")
    assert "rxloop show" not in done.stderr
    assert not workspace.database.exists()


def test_a_run_in_a_conversation_knows_what_was_said(workspace: Workspace, offline: OfflineModel) -> None:
    workspace.run("run", "2 + 2")
    context = workspace.rows()[0]["contextId"]
    workspace.run("run", "And 3 + 3?", "--context", context[-8:], RXLOOP_MODEL="")
    assert [message["role"] for message in offline.requests[-1]["messages"]] == ["user", "assistant", "user"]
    assert {row["contextId"] for row in workspace.rows()} == {context}


def test_an_agent_of_ones_own_runs_and_logs_in_the_database(workspace: Workspace) -> None:
    done = workspace.run("run", "Compare the weather in Oslo and Bergen.", "--agent", "kit:agent", RXLOOP_MODEL="")
    assert done.stdout == ANSWER
    assert workspace.rows()[0]["agentName"] == "mine"


def test_an_agent_of_ones_own_may_get_another_model(workspace: Workspace) -> None:
    workspace.run("run", "2 + 2", "--agent", "kit:agent_itself", "--model", f"{workspace.url}#other")
    assert (workspace.rows()[0]["agentName"], workspace.rows()[0]["model"]) == ("itself", f"{workspace.url}#other")


def test_a_run_that_waits_is_exit_code_3_and_goes_on_with_the_line_that_it_printed(workspace: Workspace) -> None:
    done = workspace.run("run", "Please pay and book.", "--tools", "kit:tools", code=3)
    assert "? In whose name?" in done.stderr
    assert "(yes or no)" in done.stderr
    assert "waits for 2 answers" in done.stderr
    line = done.stderr.splitlines()[-1].removeprefix("go on with: ").replace('"..."', '"Ann"')
    program, *arguments = shlex.split(line)
    assert program == "rxloop"
    assert workspace.run(*arguments).stdout == "Done: paid 5, booked for Ann.\n"
    assert [row["state"] for row in workspace.rows()] == ["completed"]


def test_what_a_model_writes_cannot_steer_the_terminal(workspace: Workspace) -> None:
    assert workspace.run("run", "Please escape.").stdout == "\\u001b[31mred\\u001b[0m\n"


def test_the_events_of_json_can_be_imported(workspace: Workspace) -> None:
    lines = workspace.run(*WEATHER, "--json", "--no-log").stdout
    workspace.run("import", "-", stdin=lines)
    durable = [event for event in map(orjson.loads, lines.splitlines()) if not event["sub"]]
    assert workspace.events() == durable


def test_a_strategy_is_chosen_by_its_name(workspace: Workspace) -> None:
    done = workspace.run("run", "2 + 2", "--strategy", "chain-of-thought", "--json")
    events = [Event.from_json(line, strict=True) for line in done.stdout.splitlines()]
    assert isinstance(events[0], TaskEvent)
    assert events[0].strategy == "chain_of_thought"
    stages = [event.to_stage for event in events if isinstance(event, StageEvent)]
    assert (stages[0], stages[-1]) == ("problem_reception", "final_response")


def test_a_strategy_that_does_not_exist_is_wrong_usage(workspace: Workspace) -> None:
    done = workspace.run("run", "2 + 2", "--strategy", "magic", code=2)
    assert "there is no strategy 'magic'" in done.stderr
    assert "a file holds only stages" in workspace.run("run", "2 + 2", "--strategy", "mine.json", code=2).stderr
