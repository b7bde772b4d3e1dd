"""Letters to runs, and their JSON."""

import secrets
from datetime import date

import pytest
from pydantic import ValidationError

from rxloop.errors import ConfigurationError
from rxloop.protocol.commands import AnswerCommand, CancelCommand, Command, MessageCommand, read_command
from rxloop.protocol.messages import Message


@pytest.mark.parametrize(
    "letter",
    [
        CancelCommand(),
        CancelCommand(reason="the user left"),
        AnswerCommand(inputs={}),
        AnswerCommand(inputs={"a": True, "b": {"city": "Zürich", "days": [1, 2.5, None]}}),
        MessageCommand(messages=[Message.user("Only half of it", message_id="m1")]),
        MessageCommand(messages=[Message.user("Stop"), Message.system("Be brief.")], interrupt=True),
        MessageCommand(messages=[], superseding_task_id="run-2"),
    ],
    ids=repr,
)
def test_a_letter_is_read_as_it_was_written(letter: Command) -> None:
    again = read_command(letter.to_json())

    assert again is not None
    assert type(again) is type(letter)
    assert again == letter
    assert again.to_json() == letter.to_json()


def test_an_answer_of_a_type_that_json_does_not_have_is_the_same_before_and_after() -> None:
    letter = AnswerCommand(inputs={"when": date(2026, 11, 22)})

    assert letter.inputs == {"when": "2026-11-22"}
    assert read_command(letter.to_json()) == letter


def test_an_answer_that_cannot_be_written_is_refused_when_the_letter_is_made() -> None:
    with pytest.raises(ValidationError, match="answers"):
        AnswerCommand(inputs={"a": object()})


def test_a_letter_of_a_newer_version_is_read_without_what_this_one_does_not_know() -> None:
    data = '{"kind": "say", "messages": [{"role": "user", "content": "Stop", "mood": "bad"}], "louder": true}'
    assert read_command(data) == MessageCommand(messages=[Message.user("Stop")])


def test_a_letter_of_an_unknown_kind_is_none_and_each_kind_is_told_of_once(caplog: pytest.LogCaptureFixture) -> None:
    one, other = (secrets.token_hex(4) for _ in range(2))
    assert [read_command(f'{{"kind": "{kind}", "steps": 3}}') for kind in (one, other, one)] == [None] * 3
    first, second = [record.getMessage() for record in caplog.records]
    assert f"kind '{one}', update rxloop" in first
    assert f"kind '{other}', update rxloop" in second


@pytest.mark.parametrize("data", ["", "[]", "{}", '{"reason": "no kind"}', '{"kind": "say"}'])
def test_what_is_no_letter_is_refused(data: str) -> None:
    with pytest.raises(ConfigurationError, match="must be a command"):
        read_command(data)
