"""Letters to runs, and their JSON."""

from datetime import date

import pytest
from pydantic import ValidationError

from rxloop.errors import ConfigurationError
from rxloop.protocol.mail import AnswerMail, CancelMail, Mail, SayMail, read_mail
from rxloop.protocol.messages import Message


@pytest.mark.parametrize(
    "letter",
    [
        CancelMail(),
        CancelMail(reason="the user left"),
        AnswerMail(inputs={}),
        AnswerMail(inputs={"a": True, "b": {"city": "Zürich", "days": [1, 2.5, None]}}),
        SayMail(messages=[Message.user("Only half of it", message_id="m1")]),
        SayMail(messages=[Message.user("Stop"), Message.system("Be brief.")], interrupt=True),
    ],
    ids=repr,
)
def test_a_letter_is_read_as_it_was_written(letter: Mail) -> None:
    again = read_mail(letter.to_json())

    assert type(again) is type(letter)
    assert again == letter
    assert again.to_json() == letter.to_json()


def test_an_answer_of_a_type_that_json_does_not_have_is_the_same_before_and_after() -> None:
    letter = AnswerMail(inputs={"when": date(2026, 11, 22)})

    assert letter.inputs == {"when": "2026-11-22"}
    assert read_mail(letter.to_json()) == letter


def test_an_answer_that_cannot_be_written_is_refused_when_the_letter_is_made() -> None:
    with pytest.raises(ValidationError, match="answers"):
        AnswerMail(inputs={"a": object()})


@pytest.mark.parametrize("data", ["", "[]", '{"kind": "greet"}', '{"reason": "no kind"}', '{"kind": "cancel", "x": 1}'])
def test_what_is_no_letter_is_refused(data: str) -> None:
    with pytest.raises(ConfigurationError, match="not a letter"):
        read_mail(data)
