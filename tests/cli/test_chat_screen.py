"""Screen and input line of a chat, with an emulated terminal."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest
from prompt_toolkit import PromptSession
from prompt_toolkit.history import InMemoryHistory

from rxloop.cli.chat.completion import ChatCompleter
from rxloop.cli.chat.history import get_history_path, open_history
from rxloop.cli.chat.screen import Key
from rxloop.cli.terminal import notify
from support.chat_terminals import CTRL_C, CTRL_D, CTRL_J, ENTER, LINE_BREAK, open_screen, paste


async def test_enter_sends_and_other_keys_insert_line_breaks() -> None:
    async with open_screen() as shown:
        shown.keyboard.send_text("one" + LINE_BREAK + "two" + CTRL_J + "three" + ENTER)
        assert await shown.screen.read() == "one\ntwo\nthree"


async def test_pasted_text_is_one_message_in_a_narrow_terminal() -> None:
    async with open_screen(columns=20, rows=6) as shown:
        shown.keyboard.send_text(paste("first\r\nsecond\r" + "word " * 8 + "\nend"))
        await shown.wait_for("end")
        shown.keyboard.send_text(ENTER)
        assert await shown.screen.read() == "first\nsecond\n" + "word " * 8 + "\nend"


async def test_output_is_printed_above_the_tail_the_status_and_the_input() -> None:
    async with open_screen(columns=30) as shown:
        shown.keyboard.send_text("typed")
        shown.screen.print("finished 1\n")
        shown.screen.set_tail(lambda: "unfinished\n")
        shown.screen.set_notes(["a note"])
        shown.screen.set_status("a status")
        await shown.wait_for("a status")
        await shown.wait_for("typed")
        shown.screen.print("finished 2\n")
        await shown.wait_for("finished 2")
        lines = shown.emulator.lines
        assert lines[:5] == ["finished 1", "finished 2", "unfinished", "", "a note"]
        assert lines[5].endswith(" a status")
        assert lines[6:] == ["> typed"]
        shown.screen.set_status(None)
        shown.screen.set_notes([])
        shown.screen.set_tail(None)
        await shown.wait_until_gone("a status")
        assert shown.emulator.lines == ["finished 1", "finished 2", "", "> typed"]


async def test_finished_output_and_the_shorter_tail_appear_in_one_write() -> None:
    async with open_screen() as shown:
        shown.screen.set_tail(lambda: "block\n")
        await shown.wait_for("block")
        count = len(shown.writes)
        shown.screen.print("block\n")
        shown.screen.set_tail(lambda: "next\n")
        await shown.wait_for("next")
        [write] = shown.writes[count:]
        assert "block" in write
        assert "next" in write
        assert shown.emulator.lines[:2] == ["block", "next"]


async def test_only_the_end_of_a_long_tail_is_shown_and_the_whole_text_is_printed() -> None:
    async with open_screen(rows=10) as shown:
        shown.screen.set_tail(lambda: "".join(f"line {number}\n" for number in range(50)))
        await shown.wait_for("line 49")
        assert "line 40" not in shown.emulator.text
        shown.screen.print("".join(f"line {number}\n" for number in range(50)))
        shown.screen.set_tail(None)
        await shown.wait_for("line 0")
        assert shown.emulator.lines[:50] == [f"line {number}" for number in range(50)]


async def test_output_of_the_program_is_printed_above_the_input_line() -> None:
    async with open_screen() as shown:
        print("from a tool")
        sys.stderr.write("half a ")
        await asyncio.to_thread(print, "line")
        notify("a notice")
        await shown.wait_for("a notice")
        assert shown.emulator.lines[:3] == ["from a tool", "half a line", "a notice"]
        print("unfinished", end="")
    assert shown.emulator.lines == ["from a tool", "half a line", "a notice", "unfinished"]


async def test_ctrl_c_removes_the_text_unless_an_answer_is_written() -> None:
    async with open_screen() as shown:
        shown.keyboard.send_text("typed" + CTRL_C + CTRL_C)
        assert await shown.screen.read() is Key.interrupt
        shown.screen.set_prompt("hint", is_busy=True)
        shown.keyboard.send_text("kept" + CTRL_C + ENTER)
        assert await shown.screen.read() is Key.interrupt
        assert await shown.screen.read() == "kept"
        shown.keyboard.send_text("x" + CTRL_D + "\x7f" + CTRL_D)
        assert await shown.screen.read() is Key.end


async def test_closed_terminal_ends_the_chat() -> None:
    async with open_screen() as shown:
        shown.keyboard.close()
        assert await shown.screen.read() is Key.closed


async def test_unexpected_error_of_the_input_line_ends_the_chat(monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(_: object) -> None:
        raise RuntimeError("no input line")

    monkeypatch.setattr(PromptSession, "prompt_async", fail)
    async with open_screen() as shown:
        with pytest.raises(RuntimeError, match="no input line"):
            await shown.screen.read()


async def test_answers_and_secrets_are_not_added_to_the_history() -> None:
    history = InMemoryHistory()
    async with open_screen(history=history) as shown:
        shown.keyboard.send_text("a message" + ENTER)
        assert await shown.screen.read() == "a message"
        shown.screen.ask("secret > ", is_secret=True)
        shown.keyboard.send_text("00724913")
        await shown.wait_for("secret > ********")
        shown.keyboard.send_text(ENTER)
        assert await shown.screen.read() == "00724913"
    assert history.get_strings() == ["a message"]
    assert not any("724" in write for write in shown.writes)


@pytest.mark.parametrize(
    ("typed", "completed"),
    [
        ("/he", "/help"),
        ("/thoughts br", "/thoughts brief"),
        ("/model anthropic:claude-sonnet-4-5", "/model anthropic:claude-sonnet-4-5"),
        ("/save not", "/save notes"),
        ("no command", "no command"),
    ],
)
async def test_tab_completes_commands_and_arguments(
    typed: str, completed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "notes").touch()
    async with open_screen(completer=ChatCompleter()) as shown:
        shown.keyboard.send_text(typed)
        await shown.wait_for(typed)
        shown.keyboard.send_text("\t")
        await shown.wait_for(f"> {completed}")
        shown.keyboard.send_text(ENTER + ENTER)
        assert (await shown.screen.read()) == completed


async def test_one_enter_sends_a_command_with_a_single_completion() -> None:
    async with open_screen(completer=ChatCompleter()) as shown:
        shown.keyboard.send_text("/he")
        await shown.wait_for("/he")
        shown.keyboard.send_text("\t")
        await shown.wait_for("> /help")
        shown.keyboard.send_text(ENTER + "next" + ENTER)
        assert [await shown.screen.read(), await shown.screen.read()] == ["/help", "next"]


async def test_earlier_message_is_found_by_ctrl_r() -> None:
    history = InMemoryHistory()
    history.append_string("Weather in Oslo?")
    history.append_string("2 + 2")
    async with open_screen(history=history) as shown:
        shown.screen.set_prompt("hint", is_busy=False)
        await shown.wait_for("> hint")
        shown.keyboard.send_text("\x12Weath")
        await shown.wait_for("backward: Weath")
        assert "> Weather in Oslo?" in shown.emulator.lines
        shown.keyboard.send_text(ENTER + ENTER)
        assert await shown.screen.read() == "Weather in Oslo?"


async def test_menu_fits_into_a_small_terminal() -> None:
    async with open_screen(columns=24, rows=5, completer=ChatCompleter()) as shown:
        shown.keyboard.send_text("/t")
        await shown.wait_for("/tools")
        assert "too small" not in shown.emulator.text


def test_history_file_is_private_and_an_unusable_one_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    history = open_history(is_stored=True)
    history.append_string("one\ntwo")
    path = get_history_path()
    assert path.stat().st_mode & 0o777 == 0o600
    assert list(open_history(is_stored=True).load_history_strings()) == ["one\ntwo"]
    path.chmod(0o666)
    open_history(is_stored=True)
    assert path.stat().st_mode & 0o777 == 0o600
    path.unlink()
    path.symlink_to(tmp_path / "target")
    open_history(is_stored=True).append_string("lost")
    assert "messages are not kept for later chats" in capsys.readouterr().err
    assert not (tmp_path / "target").exists()
    assert open_history(is_stored=False).get_strings() == []
