"""Status line of runs on terminals."""

from __future__ import annotations

import re
from io import StringIO
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from rich.control import Control
from rich.text import Text

from rxloop.cli.live_view import render_status
from rxloop.cli.terminal import StatusLine
from support.cli_workspace import Workspace
from support.terminals import Screen, Terminal
from support.timelines import LETTERS, observe_live

NAP = ("run", "Please nap.", "--tools", "kit:tools")


def test_status_shows_active_tools_and_tokens() -> None:
    values = observe_live(render_status(3), "--t--l--d--d--d--(uc)--s-S------x---X--F|")
    assert [(second, str(value)) for second, value in values if value != "|"] == [
        (5, "3 s · waiting for the model"),
        (8, "6 s · 1 token"),
        (11, "9 s · 2 tokens"),
        (14, "12 s · 3 tokens"),
        # Token count of the provider.
        (17, "15 s · 12 tokens"),
        (20, "18 s · look · 12 tokens"),
        (22, "18 s · look, search · 12 tokens"),
        (23, "21 s · look, search · 12 tokens"),
        (26, "24 s · look, search · 12 tokens"),
        (29, "27 s · search · 12 tokens"),
        (32, "30 s · search · 12 tokens"),
        (33, "30 s · 12 tokens"),
        (35, "33 s · 12 tokens"),
        (36, "34 s · 12 tokens"),
    ]


def test_status_shows_the_rate_of_the_last_window() -> None:
    values = [str(value) for _, value in observe_live(render_status(3), "t-l(dddddd)ddd-(uc)F|")]
    assert "3 s · 8 tokens · 2/s" in values


def test_status_names_at_most_two_tools() -> None:
    third = LETTERS["s"].model_copy(update={"index": 2})
    values = [str(value) for _, value in observe_live(render_status(3), "t(sSa)-F|", a=third)]
    assert "0 s · look, search and 1 more" in values


def test_status_is_shown_between_outputs_and_removed_at_the_end(workspace: Workspace) -> None:
    terminal = Terminal(workspace, *NAP)
    code, _ = terminal.wait()
    assert code == 0
    assert any("nap · " in line and "token" in line for line in terminal.statuses)
    screen = terminal.screen()
    assert not [line for line in screen if "\u2800" <= line[:1] <= "\u28ff"]
    assert "Done: awake." in screen
    assert screen[-1].startswith("rxloop show ")
    assert any("completed · 2 model calls · 1 tool call" in line for line in screen)


@pytest.mark.parametrize(("columns", "rows"), [(120, 24), (40, 6), (20, 5), (9, 4)])
def test_status_does_not_damage_output_in_terminals_of_any_size(workspace: Workspace, columns: int, rows: int) -> None:
    terminal = Terminal(workspace, *NAP, "--thoughts", "none", columns=columns, rows=rows)
    code, _ = terminal.wait()
    assert code == 0
    assert "Done:awake." in "".join(terminal.screen()).replace(" ", "")
    assert terminal.statuses
    assert all(len(line) < columns - 2 for line in terminal.statuses)


@given(
    st.lists(st.text("ab界\t\n ", min_size=1, max_size=12), min_size=1, max_size=20),
    st.integers(4, 30),
    st.integers(3, 8),
    st.booleans(),
)
def test_final_screen_is_the_same_with_and_without_a_status(
    pieces: list[str], columns: int, rows: int, is_answer: bool
) -> None:
    pieces = [piece.replace("\t", "    ") for piece in pieces]
    out = StringIO()
    console = Console(file=out, width=columns, force_terminal=True, highlight=False)
    line = StatusLine(console)
    # The thread of Rich would render frames at the same time as the test.
    with patch("rich.live._RefreshThread.run"):
        for piece in pieces:
            line.show(Text("a status that is longer than the terminal is wide"))
            # Rich renders a frame like this twelve times per second.
            console.print(Control())
            with line.suspend(piece, is_answer=is_answer):
                out.write(piece)
        line.hide()
    written, plain = (text.replace("\n", "\r\n") for text in (out.getvalue(), "".join(pieces)))
    assert Screen(columns, rows).write(written) == Screen(columns, rows).write(plain)
    assert "\u2800" <= re.sub(r"\x1b\[[0-9;?]*[a-z]", "", written)[0] <= "\u28ff"


@pytest.mark.parametrize("arguments", [(), ("--json",)])
def test_pipe_receives_no_status(workspace: Workspace, arguments: tuple[str, ...]) -> None:
    process = workspace.process(*NAP, *arguments)
    out, err = process.communicate(timeout=60)
    assert b"awake" in out + err
    assert b"\x1b" not in out + err


def test_pipe_with_forced_colours_receives_no_status(workspace: Workspace) -> None:
    workspace.env["FORCE_COLOR"] = "1"
    out, err = workspace.process(*NAP).communicate(timeout=60)
    assert b"\x1b[3" in err
    assert not re.search(rb"\x1b\[[^m]*[a-zA-Z]", re.sub(rb"\x1b\[[0-9;]*m", b"", out + err))


@pytest.mark.parametrize("case", ["json", "dumb", "file"])
def test_unsupported_terminal_receives_no_status(workspace: Workspace, case: str) -> None:
    options = {}
    if case == "dumb":
        workspace.env["TERM"] = "dumb"
    if case == "file":
        options["stdout"] = (workspace.folder / "answer.txt").open("wb")
    terminal = Terminal(workspace, *NAP, *(["--json"] if case == "json" else []), **options)
    code, _ = terminal.wait()
    for file in options.values():
        file.close()
    assert (code, terminal.statuses) == (0, [])


def test_second_ctrl_c_erases_the_status(workspace: Workspace) -> None:
    terminal = Terminal(workspace, "run", "Please resist.", "--tools", "kit:tools")
    terminal.expect("… resist: begun")
    terminal.send("\x03")
    terminal.expect("cancelling; press Ctrl-C again to exit immediately")
    terminal.send("\x03")
    code, _ = terminal.wait()
    assert code == 130
    assert terminal.screen()[-1] == "exited without waiting"
