"""JSON form of commands."""

import secrets
from datetime import date

import pytest
from pydantic import ValidationError

from rxloop.errors import ConfigurationError
from rxloop.protocol.commands import AnswerCommand, CancelCommand, Command, MessageCommand, read_command
from rxloop.protocol.messages import Message


@pytest.mark.parametrize(
    "command",
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
def test_command_survives_json(command: Command) -> None:
    again = read_command(command.to_json())

    assert again is not None
    assert type(again) is type(command)
    assert again == command
    assert again.to_json() == command.to_json()


def test_answer_is_converted_to_json_types_at_construction() -> None:
    command = AnswerCommand(inputs={"when": date(2026, 11, 22)})

    assert command.inputs == {"when": "2026-11-22"}
    assert read_command(command.to_json()) == command


def test_answer_command_rejects_a_value_that_is_not_json() -> None:
    with pytest.raises(ValidationError, match="answers"):
        AnswerCommand(inputs={"a": object()})


def test_command_of_a_newer_version_is_read_without_its_unknown_fields() -> None:
    data = '{"kind": "message", "messages": [{"role": "user", "content": "Stop", "mood": "bad"}], "louder": true}'
    assert read_command(data) == MessageCommand(messages=[Message.user("Stop")])


def test_command_of_an_unknown_kind_is_none_and_logged_once_per_kind(caplog: pytest.LogCaptureFixture) -> None:
    one, other = (secrets.token_hex(4) for _ in range(2))
    assert [read_command(f'{{"kind": "{kind}", "steps": 3}}') for kind in (one, other, one)] == [None] * 3
    first, second = [record.getMessage() for record in caplog.records]
    assert f"kind '{one}', update rxloop" in first
    assert f"kind '{other}', update rxloop" in second


@pytest.mark.parametrize("data", ["", "[]", "{}", '{"reason": "no kind"}', '{"kind": "message"}'])
def test_invalid_command_is_refused(data: str) -> None:
    with pytest.raises(ConfigurationError, match="must be a command"):
        read_command(data)
