"""The line below what a run writes, at a terminal."""

from __future__ import annotations

from io import StringIO

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from rich.text import Text

from commands import Place
from rxloop.cli.status import status
from rxloop.cli.statusline import StatusLine
from terminals import Screen, Terminal
from timelines import LETTERS, live

WEATHER = ("run", "Compare the weather in Oslo and Bergen.", "--tools", "kit:get_weather")


def test_the_status_says_what_is_at_work_and_what_has_come() -> None:
    found = live(status(3), "--t--l--d--d--d--(uc)--s-S------x---X--F|")
    assert [(second, str(value)) for second, value in found if value != "|"] == [
        (5, "3 s · waiting for the model"),
        (8, "6 s · 1 token"),
        (11, "9 s · 2 tokens"),
        (14, "12 s · 3 tokens"),
        # The provider's own count.
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


def test_the_rate_is_that_of_the_last_window() -> None:
    found = [str(value) for _, value in live(status(3), "t-l(dddddd)ddd-(uc)F|")]
    assert "3 s · 8 tokens · 2/s" in found


def test_of_many_tools_two_are_named() -> None:
    third = LETTERS["s"].model_copy(update={"index": 2})
    found = [str(value) for _, value in live(status(3), "t(sSa)-F|", a=third)]
    assert "0 s · look, search and 1 more" in found


def test_while_it_streams_there_is_a_status_and_none_when_it_is_over(place: Place) -> None:
    terminal = Terminal(place, *WEATHER)
    code, _ = terminal.leaves()
    assert code == 0
    assert any("waiting for the model" in line for line in terminal.statuses)
    assert any("get_weather" in line for line in terminal.statuses)
    assert any("token" in line for line in terminal.statuses)
    screen = terminal.screen()
    assert not any(line in screen for line in terminal.statuses)
    assert screen[-1].startswith("rxloop show ")
    assert any("completed · 3 model calls · 2 tool calls" in line for line in screen)


@pytest.mark.parametrize(("columns", "rows"), [(120, 24), (40, 6), (20, 5), (9, 4)])
def test_what_is_written_stays_whole_in_a_terminal_of_any_size(place: Place, columns: int, rows: int) -> None:
    terminal = Terminal(place, *WEATHER, "--thoughts", "none", columns=columns, rows=rows)
    code, _ = terminal.leaves()
    assert code == 0
    written = "".join(terminal.screen())
    answer = "Oslo is warmer than Bergen, by 5 °C. In Oslo it is 18 °C, rain. In Bergen it is 13 °C, rain."
    assert answer.replace(" ", "") in written.replace(" ", "")
    assert all(len(line) < columns for line in terminal.statuses)


@given(
    st.lists(st.text("ab界\t\n ", min_size=1, max_size=12), min_size=1, max_size=20),
    st.integers(4, 30),
    st.integers(3, 8),
)
def test_the_screen_is_the_same_as_without_a_status(pieces: list[str], columns: int, rows: int) -> None:
    pieces = [piece.replace("\t", "    ") for piece in pieces]
    out = StringIO()
    console = Console(file=out, width=columns, force_terminal=True, highlight=False)
    line = StatusLine(console)
    line.show(Text("a status that is longer than the terminal is wide"))
    for piece in pieces:
        with line.aside(piece):
            out.write(piece.replace("\n", "\r\n"))
    line.hide()
    plain = "".join(pieces).replace("\n", "\r\n")
    assert Screen(columns, rows).write(out.getvalue()) == Screen(columns, rows).write(plain)


@pytest.mark.parametrize("arguments", [(), ("--json",)])
def test_a_pipe_gets_no_status(place: Place, arguments: tuple[str, ...]) -> None:
    process = place.process(*WEATHER, *arguments)
    out, err = process.communicate(timeout=10)
    assert b"waiting for the model" not in out + err
    assert b"\x1b" not in out + err


def test_a_pipe_that_is_to_have_colours_gets_no_status_either(place: Place) -> None:
    place.env["FORCE_COLOR"] = "1"
    out, err = place.process(*WEATHER).communicate(timeout=10)
    assert b"\x1b[3" in err
    assert b"\x1b[J" not in out + err


@pytest.mark.parametrize("case", ["json", "dumb", "file"])
def test_there_is_no_status_where_it_would_be_in_the_way(place: Place, case: str) -> None:
    options = {}
    if case == "dumb":
        place.env["TERM"] = "dumb"
    if case == "file":
        options["stdout"] = (place.folder / "answer.txt").open("wb")
    terminal = Terminal(place, *WEATHER, *(["--json"] if case == "json" else []), **options)
    code, _ = terminal.leaves()
    for file in options.values():
        file.close()
    assert (code, terminal.statuses) == (0, [])


def test_the_second_ctrl_c_takes_the_status_along(place: Place) -> None:
    terminal = Terminal(place, "run", "Please resist.", "--tools", "kit:tools")
    terminal.sees("… resist: begun")
    terminal.types("\x03")
    terminal.sees("cancelling; Ctrl-C once more leaves at once")
    terminal.types("\x03")
    code, _ = terminal.leaves()
    assert code == 130
    assert terminal.screen()[-1].endswith("left without waiting")
    assert terminal.statuses
    assert not set(terminal.statuses) & set(terminal.screen())
