"""Command `run` in this process."""

from __future__ import annotations

import shlex
import sys

import orjson
import pytest

from rxloop import Event, StageEvent, StatusUpdateEvent, TaskEvent
from rxloop.cli.agent_loader import AgentOptions
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
    """Import the `kit` module separately for each test."""
    for name in ("kit", "makers"):
        sys.modules.pop(name, None)


def test_answer_is_written_to_stdout_and_other_output_to_stderr(workspace: Workspace) -> None:
    done = workspace.run(*WEATHER)
    assert done.stdout == ANSWER
    assert '→ get_weather(city="Oslo")\n' in done.stderr
    assert "← get_weather {" in done.stderr
    assert "· planning plan: " in done.stderr
    assert "completed · 3 model calls · 2 tool calls · " in done.stderr
    assert "\x1b" not in done.output


def test_thoughts_are_printed_as_a_tree_at_the_end(workspace: Workspace) -> None:
    assert "├─ get_weather call_2: " in workspace.run(*WEATHER).stderr
    assert "├─" not in workspace.run(*WEATHER, "--thoughts", "none").stderr


@pytest.mark.parametrize(("level", "shown"), [("none", 0), ("brief", 4), ("all", 4)])
def test_thoughts_option_selects_the_level_of_detail(workspace: Workspace, level: str, shown: int) -> None:
    lines = workspace.run(*WEATHER, "--thoughts", level).stderr.splitlines()
    assert sum(line.startswith("· ") for line in lines) == shown
    assert any("<- call_2" in line for line in lines) is (level == "all")


def test_offline_model_needs_no_key(workspace: Workspace) -> None:
    done = workspace.run("run", "17 * 23", "--model", "offline:demo", RXLOOP_MODEL="")
    assert "391" in done.stdout
    assert "offline:demo" in workspace.run("runs").stdout
    assert "391" in workspace.run("run", "17 * 23", "--agent", "kit:agent", RXLOOP_MODEL="offline:demo").stdout
    assert "✓ RXLOOP_MODEL is offline:demo" in workspace.run("doctor", RXLOOP_MODEL="offline:demo").stdout


def test_commands_for_a_cancelled_run_name_the_offline_model() -> None:
    assert AgentOptions(model="offline:demo").to_flags() == " --model offline:demo"
    assert AgentOptions(model="openai:gpt-5").to_flags() == ""


@pytest.mark.parametrize(
    ("options", "offered"),
    [((), True), (("--thoughts", "none"), False), (("--thoughts", "none", "--strategy", "react"), True)],
)
def test_model_receives_no_tool_for_thoughts_if_none_are_shown(
    workspace: Workspace, offline: OfflineModel, options: tuple[str, ...], offered: bool
) -> None:
    workspace.run("run", "2 + 2", *options)
    assert ("think_aloud" in orjson.dumps(offline.requests[-1]).decode()) is offered


def test_json_prints_one_event_per_line(workspace: Workspace) -> None:
    done = workspace.run(*WEATHER, "--json")
    events = [Event.from_json(line, strict=True) for line in done.stdout.splitlines()]
    assert isinstance(events[0], TaskEvent)
    assert isinstance(events[-1], StatusUpdateEvent)
    assert events[-1].final
    assert {"content-delta", "tool-progress"} <= {event.kind for event in events}
    assert "→" not in done.output


@pytest.mark.parametrize("words", [(), ("-",)])
def test_question_is_read_from_a_pipe(workspace: Workspace, words: tuple[str, ...]) -> None:
    workspace.run("run", *words, stdin="2 + 2\n")
    assert workspace.rows()[0]["question"] == "2 + 2"


def test_piped_text_is_appended_to_the_question(workspace: Workspace) -> None:
    workspace.run("run", "Read", "this:", "-", stdin="a text\n")
    assert workspace.rows()[0]["question"] == "Read this:\n\na text"


def test_text_from_stdin_follows_the_question(workspace: Workspace) -> None:
    workspace.run("run", "Read", "this:", stdin="a text\n")
    assert workspace.rows()[0]["question"] == "Read this:\n\na text"


def test_empty_stdin_is_omitted(workspace: Workspace) -> None:
    workspace.run("run", "2 + 2", stdin=" \n")
    assert workspace.rows()[0]["question"] == "2 + 2"


def test_empty_question_is_invalid_usage(workspace: Workspace) -> None:
    assert "the question must not be empty" in workspace.run("run", stdin=" \n", code=2).stderr


def test_recorded_model_contains_the_base_url(workspace: Workspace, offline: OfflineModel, offline_url: str) -> None:
    workspace.run("run", "2 + 2", "--base-url", offline_url, "--model", "qwen3:8b")
    assert workspace.rows()[0]["model"] == f"{offline_url}#qwen3:8b"
    assert offline.requests[-1]["model"] == "qwen3:8b"


def test_preset_keeps_its_settings_with_another_base_url(
    workspace: Workspace, offline: OfflineModel, offline_url: str
) -> None:
    workspace.run("run", "2 + 2", "--base-url", offline_url, "--model", "zai:glm-4.7", ZAI_API_KEY="k")
    assert workspace.rows()[0]["model"] == "zai:glm-4.7"
    assert offline.requests[-1]["model"] == "glm-4.7"


@pytest.mark.parametrize(
    ("arguments", "env", "expected"),
    [
        (
            (),
            {"RXLOOP_MODEL": ""},
            "no model selected; add --model zai:glm-4.7 or offline:demo, or RXLOOP_MODEL\n",
        ),
        ((), {"RXLOOP_MODEL": "", "ZAI_API_KEY": "k"}, "(ZAI_API_KEY is set: --model zai)\n"),
        (("--model", "zai:glm-4.7"), {}, "missing key for zai:glm-4.7: export ZAI_API_KEY=..., "),
        (("--model", "nobody:x"), {}, "nobody"),
        (("--base-url", "http://localhost:1/v1"), {"RXLOOP_MODEL": ""}, "--base-url requires a model"),
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
        (
            ("--tools", "kit"),
            {},
            "invalid import path 'kit' for --tools, expected module:object, for example weather:get_weather",
        ),
        (("--tools", "nothing_here:x"), {}, "no module 'nothing_here' in "),
        (("--tools", "kit:x"), {}, "missing attribute 'x' in kit"),
        (("--tools", "kit:number"), {}, "--tools kit:number: a tool must be a function"),
        (("--tools", "leaves:x"), {}, "--tools 'leaves:x': cannot import leaves: SystemExit: 3 ("),
        (("--agent", "leaves:x"), {}, "--agent 'leaves:x': cannot import leaves: SystemExit: 3 ("),
        (("--agent", "makers:late"), {}, "--agent 'makers:late' must be a synchronous function"),
        (("--agent", "makers:fails"), {}, "--agent 'makers:fails' did not create an agent: RuntimeError: no db ("),
        (("--agent", "makers:wants"), {}, "did not create an agent: TypeError: wants() missing 1 required"),
        (("--agent", "kit:get_weather"), {}, "is a tool; use --tools kit:get_weather with --model"),
        (("--agent", "kit:number"), {}, "must be an Agent or a function"),
        (("--agent", "kit:agent", "--tools", "kit:tools"), {}, "--tools cannot be used with --agent"),
        (("--context", "x", "--no-log"), {}, "--context requires the database"),
    ],
)
def test_invalid_options_exit_with_code_2_and_create_no_database(
    workspace: Workspace, arguments: tuple[str, ...], env: dict[str, str], expected: str
) -> None:
    (workspace.folder / "leaves.py").write_text("raise SystemExit(3)\n")
    (workspace.folder / "makers.py").write_text(MAKERS)
    done = workspace.run("run", "Hi", *arguments, code=2, **env)
    assert expected in done.stderr
    assert done.stderr.startswith("rxloop: ")
    assert done.stderr.count("\n") == 1
    assert done.stdout == ""
    assert not workspace.database.exists()


def test_import_error_of_a_module_is_reported_with_its_location(workspace: Workspace) -> None:
    (workspace.folder / "broken.py").write_text("a = 1\nb = a / 0\n")
    done = workspace.run("run", "Hi", "--tools", "broken:b", code=2)
    assert "cannot import broken: ZeroDivisionError: division by zero (" in done.stderr
    assert "broken.py, line 2)" in done.stderr


def test_tools_can_be_loaded_from_a_file(workspace: Workspace) -> None:
    (workspace.folder / "sub").mkdir()
    (workspace.folder / "kit.py").rename(workspace.folder / "sub/kit.py")
    done = workspace.run("run", "Compare the weather in Oslo and Bergen.", "--tools", "sub/kit.py:get_weather")
    assert done.stdout == ANSWER


def test_failed_run_exits_with_code_1_and_the_reason(workspace: Workspace) -> None:
    done = workspace.run("run", "Please break.", code=1)
    assert "failed (bad_request): " in done.stderr
    assert "Traceback" not in done.stderr
    assert workspace.rows()[0]["state"] == "failed"


def test_unreachable_model_is_reported_with_a_diagnostic_command(workspace: Workspace) -> None:
    model = "http://127.0.0.1:9/v1#m"
    done = workspace.run("run", "Hi", "--model", model, code=1)
    assert "failed (connection): " in done.stderr
    assert done.stderr.endswith(f"diagnose with: rxloop doctor --check-network '{model}'\n")


def test_no_log_stores_nothing(workspace: Workspace) -> None:
    done = workspace.run("run", "2 + 2", "--no-log")
    assert "rxloop show" not in done.stderr
    assert not workspace.database.exists()


def test_context_option_continues_a_conversation(workspace: Workspace, offline: OfflineModel) -> None:
    workspace.run("run", "2 + 2")
    context = workspace.rows()[0]["contextId"]
    workspace.run("run", "And 3 + 3?", "--context", context[-8:], RXLOOP_MODEL="")
    assert [message["role"] for message in offline.requests[-1]["messages"]] == ["user", "assistant", "user"]
    assert {row["contextId"] for row in workspace.rows()} == {context}


def test_custom_agent_is_stored_in_the_database(workspace: Workspace) -> None:
    done = workspace.run("run", "Compare the weather in Oslo and Bergen.", "--agent", "kit:agent", RXLOOP_MODEL="")
    assert done.stdout == ANSWER
    assert workspace.rows()[0]["agentName"] == "mine"


def test_model_option_replaces_the_model_of_a_custom_agent(workspace: Workspace) -> None:
    workspace.run("run", "2 + 2", "--agent", "kit:agent_itself", "--model", f"{workspace.url}#other")
    assert (workspace.rows()[0]["agentName"], workspace.rows()[0]["model"]) == ("itself", f"{workspace.url}#other")


def test_waiting_run_exits_with_code_3_and_continues_with_the_printed_command(workspace: Workspace) -> None:
    done = workspace.run("run", "Please pay and book.", "--tools", "kit:tools", code=3)
    assert "? In whose name?" in done.stderr
    assert "(yes or no)" in done.stderr
    assert "waiting for 2 answers" in done.stderr
    line = done.stderr.splitlines()[-1].removeprefix("continue with: ").replace('"..."', '"Ann"')
    program, *arguments = shlex.split(line)
    assert program == "rxloop"
    assert workspace.run(*arguments).stdout == "Done: paid 5, booked for Ann.\n"
    assert [row["state"] for row in workspace.rows()] == ["completed"]


def test_control_characters_of_the_model_are_escaped(workspace: Workspace) -> None:
    assert workspace.run("run", "Please escape.").stdout == "\\u001b[31mred\\u001b[0m\n"


def test_json_output_can_be_imported(workspace: Workspace) -> None:
    lines = workspace.run(*WEATHER, "--json", "--no-log").stdout
    workspace.run("import", "-", "--trusted", stdin=lines)
    durable = [event for event in map(orjson.loads, lines.splitlines()) if not event["sub"]]
    assert workspace.events() == durable


def test_strategy_is_selected_by_name(workspace: Workspace) -> None:
    done = workspace.run("run", "2 + 2", "--strategy", "chain-of-thought", "--json")
    events = [Event.from_json(line, strict=True) for line in done.stdout.splitlines()]
    assert isinstance(events[0], TaskEvent)
    assert events[0].strategy == "chain_of_thought"
    stages = [event.to_stage for event in events if isinstance(event, StageEvent)]
    assert (stages[0], stages[-1]) == ("problem_reception", "final_response")


def test_unknown_strategy_is_invalid_usage(workspace: Workspace) -> None:
    done = workspace.run("run", "2 + 2", "--strategy", "magic", code=2)
    assert "unknown strategy 'magic'" in done.stderr
    assert (
        "--strategy must be the name of a strategy"
        in workspace.run("run", "2 + 2", "--strategy", "mine.json", code=2).stderr
    )
