"""JSON in text that is not JSON.  # P16"""

from __future__ import annotations

import time
from contextlib import suppress

import orjson
import pytest

from rxloop.protocol.lenient import LONGEST, find_json
from rxloop.protocol.messages import ToolCall
from rxloop.tools.output import make_output

FENCE = "`" * 3


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('Here is the answer: {"a": 1}', {"a": 1}),
        ('{"a": 1}\n\nLet me know if you need more!', {"a": 1}),
        (f'Sure!\n\n{FENCE}json\n{{"a": 1}}\n{FENCE}\n\nDone.', {"a": 1}),
        (f'{FENCE}json5 title="x"\n{{"a": 1}}\n{FENCE}', {"a": 1}),
        ('~~~json\n{"a": [1, {"b": 2}]}\n~~~', {"a": [1, {"b": 2}]}),
        ('`{"a": 1}`', {"a": 1}),
        (f'{FENCE}json {{"a": 1}} {FENCE}', {"a": 1}),
        (f'{FENCE}json\n{{"a": 1}}', {"a": 1}),
        ("The list is [1, 2].", [1, 2]),
        ('\ufeff{"a": 1}', {"a": 1}),
        ('{"a": "one\ntwo\tthree\x01"}', {"a": "one\ntwo\tthree\x01"}),
        ('Text: {"a": "with } and { and \\" inside"} end', {"a": 'with } and { and " inside'}),
        (f"The number:\n{FENCE}\n7\n{FENCE}\n", 7),
        (f"{FENCE}json\ntrue\n{FENCE}\nis the answer", True),
        ('"a\nb"', "a\nb"),
        ("\ufeff7", 7),
        ('As in [1], {"a": 1}', {"a": 1}),
        ('Use {name}: {"a": 1}', {"a": 1}),
        ('{"a": 1} [see above](http://x)', {"a": 1}),
        ('- [ ] Done: ["a", "b"]', ["a", "b"]),
        ('<think>Maybe {"a": 0}, as in [1].</think>\n{"a": 1}', {"a": 1}),
        (f'<thinking>{{x}}</thinking>{FENCE}json\n{{"a": 1}}\n{FENCE}', {"a": 1}),
        ('Maybe {"a": 0}.\n</think>\n\n{"a": 1}', {"a": 1}),
        ("<think>Hm.</think>7", 7),
        (f'{FENCE}python\nx = {{1: [2]}}\n{FENCE}\nThat is:\n{FENCE}json\n{{"a": 1}}\n{FENCE}', {"a": 1}),
        (f'{FENCE}sh\necho [1]\n{FENCE}\n{FENCE}\n{{"a": 1}}\n{FENCE}\nSee {{x}}.', {"a": 1}),
        (f'As in [1]:\n{FENCE}json\n{{"a": 1}}\n{FENCE}\nSee [docs](http://x).', {"a": 1}),
        (f"{FENCE}\n1\n{FENCE}\n{FENCE}json\n2\n{FENCE}", 2),
        (f'{FENCE}json\n{{"a": "one\n{FENCE}\ntwo"}}\n{FENCE}', {"a": f"one\n{FENCE}\ntwo"}),
    ],
)
def test_only_json_value_in_a_text_is_found(text: str, value: object) -> None:  # P16
    json_text = find_json(text)
    assert json_text is not None
    assert orjson.loads(json_text) == value


@pytest.mark.parametrize(
    "text",
    [
        "",
        "No idea.",
        "7 or 8",
        '{"a": 1} or {"a": 2}',
        '{"a": 1}{"a": 1}',
        '{"a": {"b": 1}',
        '{"a": {"b": 1}, "c": ',
        'As in [1, 2], {"a": 1}',
        "According to [1], there is none.",
        "[1] or [2]",
        '{"a": 1} ["see above"]',
        '{name: {"a": 1}',
        '{name: {"a": 1}}',
        '<think>Maybe {"a": 0}.</think>',
        '<think>Maybe {"a": 0}.',
        f'{FENCE}json\n{{"a": 1}}\n{FENCE}\n{FENCE}json\n{{"a": 2}}\n{FENCE}',
        f"{FENCE}json\n{{'a': 1}}\n{FENCE}\n{FENCE}\n{{\"a\": 2}}\n{FENCE}",
        f'{{"a": "\n{FENCE}json\n{{"b": 1}}\n{FENCE}',
        f"{FENCE}\n7\n{FENCE}\nor\n{FENCE}\n8\n{FENCE}",
        "{'a': 1}",
        '{"a": NaN}',
        '{"a": 1,}',
        "[" * 100_000,
        " " * LONGEST + '{"a": 1}',
    ],
    ids=lambda text: text[:20],
)
def test_ambiguous_or_incomplete_text_has_no_json_value(text: str) -> None:  # P16
    assert find_json(text) is None


@pytest.mark.parametrize(
    "piece", ["{", "[", "{}", '{"', '"', f"{FENCE}\n", "~~~\n", f"{FENCE}a\n{{\n", "\n ", "`", "<think>", "[1]", "\\"]
)
@pytest.mark.parametrize("start", ["", f"{FENCE}json", '{"a": "'])
def test_large_text_is_searched_in_linear_time(start: str, piece: str) -> None:  # P16
    text = start + piece * (100_000 // len(piece))
    started = time.perf_counter()
    with suppress(ValueError):
        make_output(dict[str, int]).parse(text)
    assert time.perf_counter() - started < 3.0


def test_digits_of_a_number_are_kept() -> None:  # P16
    assert find_json('So: {"price": 1.10}') == '{"price": 1.10}'


@pytest.mark.parametrize(
    ("raw", "arguments"),
    [
        ('{"text": "one\ntwo"}', {"text": "one\ntwo"}),
        (f'{FENCE}json\n{{"text": "a"}}\n{FENCE}', {"text": "a"}),
        ('I call it with {"text": "a"}.', {"text": "a"}),
        ('"{\\"text\\": \\"a\\nb\\"}"', {"text": "a\nb"}),
    ],
)
def test_arguments_are_read_leniently_and_sent_back_as_json(raw: str, arguments: dict[str, str]) -> None:  # P16
    call = ToolCall.parse("1", "write", raw)
    assert call.error is None
    assert call.arguments == arguments
    assert call.raw is not None
    assert orjson.loads(call.raw) == arguments


@pytest.mark.parametrize("raw", ['{"a": 1}{"a": 2}', '{"a": 1', "[1, 2", "no", 'The list [1, 2] and {"a": 1}'])
def test_ambiguous_arguments_stay_an_error(raw: str) -> None:  # P16
    call = ToolCall.parse("1", "write", raw)
    assert call.error is not None
    assert call.arguments == {}
    assert call.raw == raw


def test_answer_with_very_many_citations_is_ambiguous() -> None:
    assert find_json(f'{{"a": 1}} {"[1] " * 1_000}') == '{"a": 1}'
    assert find_json("[1] " * 200_000) is None
    assert find_json(f'{{"a": 1}} {"[1] " * 200_000}') is None
