"""Slash commands received through pipes."""

from __future__ import annotations

import pytest

from rxloop.testing import OfflineModel
from support.cli_workspace import Workspace


def get_questions(offline: OfflineModel) -> list[str]:
    """Return the user messages of the last request."""
    return [message["content"] for message in offline.requests[-1]["messages"] if message["role"] == "user"]


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("/hepl", "unknown command /hepl; did you mean /help? Use //hepl to send it as a message"),
        ("/usr/bin/env", "unknown command /usr/bin/env; /help lists all commands."),
        ("/", "unknown command /; /help lists all commands."),
        ("/undo 3", "/undo accepts no argument, got '3'"),
        ("/thoughts loud", "/thoughts must be followed by one of none, brief, all, got 'loud'"),
        ("/save", "/save needs a file name, for example /save chat.md"),
        ("/save x.md", "cannot save an empty conversation; ask a question first"),
        ("/fork", "cannot copy an empty conversation; ask a question first, or pass a run ID such as /fork 9f3ac2"),
        ("/fork abcdef", "no run with the id 'abcdef'"),
        ("/model nonsense", "'nonsense' needs a provider"),
    ],
)
def test_invalid_command_is_rejected_and_not_sent(workspace: Workspace, line: str, error: str) -> None:
    done = workspace.run("chat", stdin=f"{line}\n")
    assert f"rxloop: {error}" in done.stderr
    assert done.stdout == ""
    assert workspace.rows() == []


def test_two_slashes_send_a_message_with_one(workspace: Workspace, offline: OfflineModel) -> None:
    workspace.run("chat", stdin="//help 2 + 2\n")
    assert get_questions(offline) == ["/help 2 + 2"]


def test_help_lists_commands_and_keys(workspace: Workspace) -> None:
    output = workspace.run("chat", stdin="/help\n/?\n").stderr
    assert output.count("/fork [SEQ|RUN]") == output.count("Ctrl-D   ") == 2


def test_model_is_switched_for_the_following_questions(workspace: Workspace, offline: OfflineModel) -> None:
    other = f"{workspace.url}#other"
    done = workspace.run("chat", stdin=f"2 + 2\n/model {other}\n/model\nAnd 3 + 3?\n")
    assert done.stderr.count(f"model: {other}\n") == 2
    assert [request["model"] for request in offline.requests[-2:]] == ["demo", "other"]
    assert get_questions(offline) == ["2 + 2", "And 3 + 3?"]


def test_tools_are_listed(workspace: Workspace) -> None:
    assert "pay " in workspace.run("chat", "--tools", "kit:tools", stdin="/tools\n").stderr
    assert "no tools; add some with" in workspace.run("chat", "--agent", "kit:bare", stdin="/tools\n").stderr


def test_level_of_thoughts_is_selected(workspace: Workspace) -> None:
    done = workspace.run("chat", stdin="/thoughts\n/thoughts none\n/thoughts\n")
    assert [line for line in done.stderr.splitlines() if line.startswith("thoughts: ")] == [
        "thoughts: brief",
        "thoughts: none",
        "thoughts: none",
    ]


def test_costs_include_removed_and_earlier_answers(workspace: Workspace) -> None:
    workspace.run("chat", stdin="2 + 2\n")
    context = workspace.rows()[0]["contextId"]
    done = workspace.run("chat", "--context", context, stdin="/cost\n3 + 3\n/undo\n/cost\n")
    first, second = [line.partition(" tokens")[0] for line in done.stderr.splitlines() if "the price of " in line]
    assert 0 < int(first) < int(second)


def test_undo_removes_exchanges_one_by_one(workspace: Workspace, offline: OfflineModel) -> None:
    done = workspace.run("chat", stdin="1 + 1\n2 + 2\n3 + 3\n/undo\n/undo\n4 + 4\n/undo\n5 + 5\n/undo\n/undo\n/undo\n")
    assert get_questions(offline) == ["1 + 1", "5 + 5"]
    removed = [line.split(": ")[1].split(" (")[0] for line in done.stderr.splitlines() if "removed from" in line]
    assert removed == ["3 + 3", "2 + 2", "4 + 4", "5 + 5", "1 + 1"]
    assert "nothing to undo: the conversation is empty" in done.stderr
    assert [row["question"] for row in workspace.rows()][::-1] == ["1 + 1", "2 + 2", "3 + 3", "4 + 4", "5 + 5"]


def test_undo_removes_a_cancelled_or_waiting_exchange(workspace: Workspace, offline: OfflineModel) -> None:
    workspace.run("chat", "--tools", "kit:tools", stdin="2 + 2\nPlease pay.\n/undo\n3 + 3\n")
    assert get_questions(offline) == ["2 + 2", "3 + 3"]


def test_fork_continues_in_a_copy(workspace: Workspace, offline: OfflineModel) -> None:
    done = workspace.run("chat", stdin="1 + 1\n2 + 2\n/fork\n3 + 3\n4 + 4\n")
    assert get_questions(offline) == ["1 + 1", "2 + 2", "3 + 3", "4 + 4"]
    assert "continuing in a copy with 4 messages" in done.stderr
    contexts = [row["contextId"] for row in workspace.rows()]
    assert contexts[0] == contexts[1] != contexts[2] == contexts[3]


def test_fork_continues_after_a_run_of_any_conversation(workspace: Workspace, offline: OfflineModel) -> None:
    workspace.run("chat", stdin="1 + 1\n2 + 2\n")
    run = workspace.rows()[1]["taskId"]
    workspace.run("chat", stdin=f"9 + 9\n/fork {run}\n3 + 3\n")
    assert get_questions(offline) == ["1 + 1", "3 + 3"]


def test_fork_continues_after_an_event_of_the_last_run(workspace: Workspace, offline: OfflineModel) -> None:
    question = "Weather in Oslo?"
    workspace.run("chat", "--agent", "kit:agent", stdin=f"1 + 1\n{question}\n")
    last = workspace.rows()[0]
    seq = next(event["seq"] for event in workspace.events() if event["kind"] == "tool-complete")
    done = workspace.run(
        "chat",
        "--agent",
        "kit:agent",
        "--context",
        last["contextId"],
        stdin=f"/fork {last['seq'] + 1}\n/fork {seq}\n3 + 3\n/undo\n/undo\n4 + 4\n",
    )
    assert f"SEQ must be between 1 and {last['seq']}, got {last['seq'] + 1}" in done.stderr
    forked, undone = offline.requests[-2:]
    assert [message["role"] for message in forked["messages"]] == [
        "user", "assistant", "user", "assistant", "tool", "user",
    ]  # fmt: skip
    assert [message["content"] for message in undone["messages"] if message["role"] == "user"] == ["1 + 1", "4 + 4"]


def test_fork_within_a_tool_call_closes_the_call(workspace: Workspace, offline: OfflineModel) -> None:
    workspace.run("chat", "--agent", "kit:agent", stdin="Weather in Oslo?\n")
    last = workspace.rows()[0]
    seq = next(event["seq"] for event in workspace.events() if event["kind"] == "content-complete")
    workspace.run("chat", "--agent", "kit:agent", "--context", last["contextId"], stdin=f"/fork {seq}\n3 + 3\n")
    assert [message["role"] for message in offline.requests[-1]["messages"]] == ["user", "assistant", "tool", "user"]


def test_conversation_is_saved_to_a_new_private_file(workspace: Workspace) -> None:
    lines = "Weather in Oslo?\n/save chat.md\n/save chat.md\n/save missing/chat.md\n"
    done = workspace.run("chat", "--tools", "kit:tools", stdin=lines)
    path = workspace.folder / "chat.md"
    text = path.read_text(encoding="utf-8")
    assert text.startswith(
        '## User\n\nWeather in Oslo?\n\n## Assistant\n\nTool call: `get_weather(city="Oslo")`\n\n```\n{'
    )
    assert "wrote 5 messages to chat.md" in done.stderr
    assert done.stderr.count("planning plan: ") == 1
    assert "chat.md already exists and was left unchanged" in done.stderr
    assert "cannot create missing/chat.md: No such file or directory" in done.stderr
    assert path.stat().st_mode & 0o777 == 0o600


def test_clear_starts_a_new_conversation(workspace: Workspace, offline: OfflineModel) -> None:
    done = workspace.run("chat", stdin="1 + 1\n/clear\n2 + 2\n/clear\n/exit\n")
    assert get_questions(offline) == ["2 + 2"]
    previous = workspace.rows()[1]["contextId"]
    shown = next(line for line in done.stderr.splitlines() if "the previous one: rxloop chat --context " in line)
    assert previous.endswith(shown.rpartition(" ")[2])


def test_commands_work_without_a_stored_log(workspace: Workspace, offline: OfflineModel) -> None:
    workspace.run("chat", "--no-log", stdin="1 + 1\n2 + 2\n/undo\n/fork\n3 + 3\n/cost\n/clear\n")
    assert get_questions(offline) == ["1 + 1", "3 + 3"]


def test_chat_uses_the_strategy_option(workspace: Workspace) -> None:
    done = workspace.run("chat", "--strategy", "chain-of-thought", stdin="2 + 2\n")
    assert "--strategy chain-of-thought" in done.stderr
    assert workspace.events()[0]["strategy"] == "chain_of_thought"
