"""Strategies from JSON and YAML."""

from __future__ import annotations

import sys
from itertools import pairwise
from pathlib import Path

import pytest

from rxloop.errors import ConfigurationError
from rxloop.thinking import Stage, StrategyDefinition
from rxloop.thinking.stages import Branching, IterationPoint

OWN = StrategyDefinition(
    name="own",
    title="My own",
    when="For texts that must hold to rules.",
    stages=(
        Stage(name="draft", next=("check",), prompt="Write.", fields=("text",)),
        Stage(name="check", next=("draft", "done"), description="Is it right?"),
        Stage(name="done"),
    ),
    decision_points=("check",),
    iteration_point=IterationPoint(stage="check", back_to=("draft",)),
    branching=Branching(kind="explicit", stage="draft", fields=("branchId",)),
    features=frozenset({"revision"}),
)

JSON = """
{"name": "own", "title": "My own", "when": "For texts that must hold to rules.",
 "stages": {
    "draft": {"next": "check", "prompt": "Write.", "fields": ["text"]},
    "check": {"next": ["draft", "done"], "description": "Is it right?"},
    "done": {}},
 "decision_points": ["check"],
 "iteration_point": {"stage": "check", "back_to": "draft"},
 "branching": {"kind": "explicit", "stage": "draft", "fields": ["branchId"]},
 "features": ["revision"]}
"""

YAML = """
name: own
title: My own
when: For texts that must hold to rules.
stages:
  draft:
    next: check
    prompt: Write.
    fields: [text]
  check:
    next: [draft, done]
    description: Is it right?
  done:
decision_points: check
iteration_point: {stage: check, back_to: draft}
branching:
  kind: explicit
  stage: draft
  fields: branchId
features: [revision]
"""


def test_strategy_is_read_from_json(tmp_path: Path) -> None:  # T72
    assert StrategyDefinition.from_json(JSON) == OWN
    assert StrategyDefinition.from_json(JSON.encode()) == OWN
    (tmp_path / "own.json").write_text(JSON)
    assert StrategyDefinition.from_json(tmp_path / "own.json") == OWN


def test_strategy_is_read_from_yaml(tmp_path: Path) -> None:  # T72
    assert StrategyDefinition.from_yaml(YAML) == OWN
    (tmp_path / "own.yaml").write_text(YAML)
    assert StrategyDefinition.from_yaml(tmp_path / "own.yaml") == OWN


def test_stages_may_be_a_list() -> None:
    text = '{"name": "own", "stages": [{"name": "a", "next": ["b"]}, {"name": "b"}]}'
    assert [stage.name for stage in StrategyDefinition.from_json(text).stages] == ["a", "b"]
    text = "name: own\nstages:\n- {name: a, next: [b]}\n- {name: b}\nterminal: [b]"
    assert StrategyDefinition.from_yaml(text).terminal == ("b",)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"name": "x"}', "stages is missing"),
        ("[]", "dictionary"),
        ('{"name": "x", "stages": []}', "strategy 'x' has no stages"),
        ('{"name": "x", "stages": {"a": {"nxt": "b"}, "b": {}}}', "unknown field stages.a.nxt"),
        (
            '{"name": "x", "stages": {"a": {"next": [1]}, "b": {}}}',
            "stages.a.next.0: input should be a valid string (got 1)",
        ),
        ('{"name": "x", "stages": {"a": "b", "b": {}}}', "stages.a: "),
        ('{"name": "x", "stages": {"a": {"name": "b"}}}', "the stage with the key 'a' has the name 'b'"),
        (
            '{"name": "x", "stages": {"a": {"next": "c"}, "b": {}}}',
            "strategy 'x' has no stage 'c', named as the next stage of 'a'",
        ),
        ('{"name": "x", "stages": {"a": {}, "a": {}}}', "the key 'a' appears twice in one object"),
        ('{"name": "x",\n "stages": {"a": {},}}', "(line 2, column "),
        ('{"name": "x", "stages": {"a": {}}, "features": ["speed"]}', "features.0: input should be 'external_tools'"),
        ('{"name": "x", "stages": {"a": {}}, "branching": {"kind": "bush", "stage": "a"}}', "branching.kind: "),
        ("own.json", "Expecting value (line 1, column 1); for a file, pass a pathlib.Path"),
    ],
)
def test_json_error_names_its_position(text: str, message: str) -> None:  # T71
    with pytest.raises(ConfigurationError) as caught:
        StrategyDefinition.from_json(text)
    assert str(caught.value).startswith("the JSON of a strategy")
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name: x", "stages is missing"),
        ("", "dictionary"),
        ("own.yaml", "must be a mapping, got a string; for a file, pass a pathlib.Path"),
        ("name: x\nstages:\n  a: {next: [no]}\n  b:", "stages.a.next.0: input should be a valid string (got False)"),
        ("name: x\nstages:\n  a: {next: b}\n  a:", "the key 'a' appears twice in one mapping (line 4, column 3)"),
        ("name: x\nstages: [\n", "(line 3, column 1)"),
        ("name: !!python/object:os.system x", "could not determine a constructor"),
        ("&self [*self]", "aliases are not supported, replace *self by the value (line 1, column 8)"),
        ("name: x\nstages:\n  1: {}", "stages.1.name: input should be a valid string (got 1)"),
    ],
)
def test_yaml_error_names_its_position(text: str, message: str) -> None:  # T71
    with pytest.raises(ConfigurationError) as caught:
        StrategyDefinition.from_yaml(text)
    assert str(caught.value).startswith("the YAML of a strategy")
    assert message in str(caught.value)


def test_inconsistent_json_has_the_same_error_as_a_python_definition() -> None:  # T71
    with pytest.raises(ConfigurationError) as caught:
        StrategyDefinition.from_json('{"name": "x", "stages": {"a": {"next": "b"}, "lost": {"next": "b"}, "b": {}}}')
    assert str(caught.value) == "the JSON of a strategy is invalid: strategy 'x' has no path from 'a' to lost"


def test_unreadable_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"cannot be read: .*missing\.json"):
        StrategyDefinition.from_json(tmp_path / "missing.json")
    (tmp_path / "latin.yaml").write_bytes(b"name: \xe9")
    with pytest.raises(ConfigurationError, match="is not UTF-8"):
        StrategyDefinition.from_yaml(tmp_path / "latin.yaml")
    (tmp_path / "bad.json").write_text("{}")
    with pytest.raises(ConfigurationError, match=r"strategy in .*bad\.json is invalid: name is missing"):
        StrategyDefinition.from_json(tmp_path / "bad.json")


def test_missing_yaml_package_is_an_error_that_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "yaml", None)
    with pytest.raises(ConfigurationError, match=r'which is not installed; pip install "rxloop\[yaml\]"'):
        StrategyDefinition.from_yaml(YAML)


BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{name}: &{name} [{', '.join([f'*{before}'] * 9)}]\n" for before, name in pairwise("abcdefghijkl")
)
HOSTILE_YAML = {
    "aliases": (BOMB + "name: *l", "aliases are not supported, replace *a by the value (line 2, column 8)"),
    "aliases of texts": (f"a: &a {'x' * 1_000}\nname: [{', '.join(['*a'] * 60_000)}]", "aliases are not supported"),
    "merges": (
        "a: &a {k: v}\n"
        + "".join(f"{b}: &{b} {{<<: [{', '.join([f'*{a}'] * 20)}]}}\n" for a, b in pairwise("abcdefg")),
        "aliases are not supported",
    ),
    "depth": ("name: " + "[" * 10_000, "the values are nested too deeply"),
    "depth of mappings": ("\n".join(" " * at + "a:" for at in range(600)), "the values are nested too deeply"),
    "a date": ("name: 2001-99-99", "month must be in 1..12"),
    "a number": ("name: " + "9" * 10_000, "Exceeds the limit"),
    "base64": ("name: !!binary '='", "the YAML of a strategy"),
    "a key": ("? [a, b]\n: c", "the YAML of a strategy"),
    "an alias to nothing": ("name: *nothing", "aliases are not supported"),
    "a control character": ("name: \x07", "the YAML of a strategy"),
    "a set": ("name: !!set {a, [b]}", "the YAML of a strategy"),
}


@pytest.mark.parametrize("kind", HOSTILE_YAML)
def test_hostile_yaml_is_refused(kind: str) -> None:
    text, message = HOSTILE_YAML[kind]
    with pytest.raises(ConfigurationError) as caught:
        StrategyDefinition.from_yaml(text)
    assert message in str(caught.value)
    assert len(str(caught.value)) < 5_000


HOSTILE_JSON = {
    "depth": ('{"name": ' + "[" * 100_000, "the values are nested too deeply"),
    "a text that does not end": ('"\\"' * 80_000, "the JSON of a strategy"),
    "brackets in a text": ('{"name": "' + "[" * 1_000 + '"}', "stages is missing"),
    "a number": ('{"name": ' + "9" * 10_000 + "}", "Exceeds the limit"),
    "size": (" " * 300_000, "must have at most 262144 characters"),
    "many faults": ('{"name": "x", "stages": [' + ", ".join(["1"] * 5_000) + "]}", "; and 4980 more"),
    "many stages": ('{"name": "x", "stages": [' + ", ".join(f'{{"name": "s{n}"}}' for n in range(501)) + "]}", "501"),
    "a long name": ('{"name": "' + "x" * 100_000 + '", "stages": ["a"]}', "the JSON of a strategy"),
    "an endless name": ('{"name": "' + "x" * 100_000 + '", "stages": [{"name": "a"}]}', "at most 100"),
}


@pytest.mark.parametrize("kind", HOSTILE_JSON)
def test_hostile_json_is_refused(kind: str) -> None:
    text, message = HOSTILE_JSON[kind]
    with pytest.raises(ConfigurationError) as caught:
        StrategyDefinition.from_json(text)
    assert message in str(caught.value)
    assert len(str(caught.value)) < 5_000


def test_invalid_file_is_named_with_its_problem(tmp_path: Path) -> None:
    path = tmp_path / "own.yaml"
    path.write_bytes(b"name: \xff")
    with pytest.raises(ConfigurationError, match=r"own\.yaml is not UTF-8: .* \(at byte 6\)"):
        StrategyDefinition.from_yaml(path)
    path.write_text("name: " + "[" * 10_000)
    with pytest.raises(ConfigurationError, match=r"own\.yaml: the values are nested too deeply"):
        StrategyDefinition.from_yaml(path)
    with path.open("wb") as file:
        file.truncate(1 << 33)
    with pytest.raises(ConfigurationError, match=r"own\.yaml must have at most 262144 characters"):
        StrategyDefinition.from_yaml(path)
    for wrong in (tmp_path, Path("a\0b")):
        with pytest.raises(ConfigurationError, match="cannot be read"):
            StrategyDefinition.from_json(wrong)


def test_deep_value_within_parser_limits_is_a_type_error() -> None:
    deep = "[" * 100 + "]" * 100
    for read, text in (
        (StrategyDefinition.from_json, f'{{"name": {deep}, "stages": {{"a": {{}}}}}}'),
        (StrategyDefinition.from_yaml, f"name: {deep}\nstages: {{a: }}"),
    ):
        with pytest.raises(ConfigurationError, match=r"name: input should be a valid string \(got \[\[\[\["):
            read(text)
