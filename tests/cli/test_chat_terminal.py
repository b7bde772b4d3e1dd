"""`rxloop chat` in a pseudo-terminal."""

from __future__ import annotations

from pathlib import Path

from support.chat_terminals import CTRL_C, CTRL_D, ENTER, ChatTerminal, paste
from support.cli_workspace import Workspace


def test_chat_renders_markdown_and_rejects_an_unknown_command(workspace: Workspace) -> None:
    chat = ChatTerminal(workspace)
    chat.wait_for_prompt()
    chat.send("/modle" + ENTER)
    chat.wait_for("unknown command /modle; did you mean /model?")
    chat.send("Please use Markdown." + ENTER)
    chat.wait_for("completed")
    chat.wait_for_prompt()
    chat.send("/quit" + ENTER)
    code, lines = chat.close()
    assert code == 0
    start = lines.index("> Please use Markdown.")
    assert lines[start + 2 : start + 14] == [
        "Colours",
        "",
        " • red",
        " • green",
        "",
        "name    wave",
        "────────────",
        "red      650",
        "green    550",
        "",
        "python ─────────────────────────────────────────────────────────────────────────",
        'print("red")',
    ]
    assert "continue with: rxloop chat --context " in "\n".join(lines)
    assert [row["question"] for row in workspace.rows()] == ["Please use Markdown."]


def test_pasted_block_is_one_utf_8_message_in_any_locale_and_the_history_is_private(workspace: Workspace) -> None:
    workspace.env |= {"PYTHONUTF8": "0", "PYTHONIOENCODING": "ascii"}
    chat = ChatTerminal(workspace, columns=40)
    chat.wait_for_prompt()
    chat.send(paste("café 2 + 2\nand explain\r\nit"))
    chat.wait_for("\n  it")
    chat.send(ENTER)
    chat.wait_for("completed")
    chat.wait_for_prompt()
    chat.send(CTRL_D)
    assert chat.close()[0] == 0
    assert [row["question"] for row in workspace.rows()] == ["café 2 + 2\nand explain\nit"]
    history = workspace.folder / "data" / "rxloop" / "chat_history"
    assert history.stat().st_mode & 0o777 == 0o600
    again = ChatTerminal(workspace, "--context", workspace.rows()[0]["contextId"])
    again.wait_for_prompt()
    again.send("\x1b[A")
    again.wait_for("\n  it")
    again.send(CTRL_C + CTRL_D)
    assert again.close()[0] == 0


def test_messages_steer_the_answer_and_ctrl_c_stops_only_the_answer(workspace: Workspace) -> None:
    chat = ChatTerminal(workspace, "--tools", "kit:tools")
    chat.wait_for_prompt()
    chat.send("Please wait." + ENTER)
    chat.wait_for("… wait: begun")
    chat.send("Only briefly." + ENTER)
    chat.wait_for("+ user (steering): Only briefly.")
    chat.send(CTRL_C)
    chat.wait_for("cancelled · ")
    chat.wait_for_prompt()
    chat.send("café 2 + 2" + ENTER)
    chat.wait_for("completed")
    chat.wait_for_prompt()
    chat.send(CTRL_C)
    chat.wait_for("press Ctrl-C again, or Ctrl-D, to end the chat")
    chat.send(CTRL_C)
    code, lines = chat.close()
    assert code == 0
    assert "continue with: rxloop chat --context " in "".join(lines)
    assert [row["state"] for row in workspace.rows()] == ["completed", "canceled"]
    assert workspace.rows()[0]["question"] == "café 2 + 2"
    added = [event for event in workspace.events(workspace.rows()[1]["taskId"]) if event["kind"] == "message-added"]
    assert [event["content"] for event in added] == ["Only briefly."]


def test_second_ctrl_c_exits_and_restores_the_terminal(workspace: Workspace) -> None:
    chat = ChatTerminal(workspace, "--tools", "kit:tools")
    chat.wait_for_prompt()
    chat.send("Please resist." + ENTER)
    chat.wait_for("… resist: begun")
    chat.send(CTRL_C)
    chat.wait_for("cancelling; press Ctrl-C again to exit immediately")
    chat.send(CTRL_C)
    code, lines = chat.close()
    assert code == 130
    assert lines[-1] == "exited without waiting"
    assert chat.terminal.has_line_mode


def test_chat_names_the_extra_if_prompt_toolkit_is_missing(workspace: Workspace) -> None:
    error = 'raise ModuleNotFoundError("missing", name="prompt_toolkit")'
    (workspace.folder / "prompt_toolkit.py").write_text(error, encoding="utf-8")
    code, lines = ChatTerminal(workspace).close()
    assert code == 1
    message = 'The command needs prompt_toolkit, which is not installed: pip install "rxloop[cli]"'
    assert message in "".join(lines)


def test_chat_with_redirected_output_reads_lines(workspace: Workspace) -> None:
    with Path("answer.txt").open("wb") as file:
        chat = ChatTerminal(workspace, stdout=file)
        chat.wait_for("/help lists commands")
        chat.send("2 + 2\n")
        chat.wait_for("completed")
        chat.send("/quit\n")
        assert chat.close()[0] == 0
    assert b"\x1b" not in Path("answer.txt").read_bytes()
    assert "press Ctrl-C" not in chat.terminal.written
