from typing import Any

import pytest
from pydantic import ValidationError

from rxloop.protocol.settings import Limits, ModelSettings


def test_settings_override_others_where_they_are_set() -> None:
    agent = ModelSettings(temperature=0.2, max_tokens=100, seed=1)
    run = ModelSettings(temperature=0.0, stop=["END"])

    assert run.merge_defaults(agent) == ModelSettings(temperature=0.0, max_tokens=100, seed=1, stop=["END"])
    assert run.merge_defaults(None) is run


def test_setting_that_is_none_does_not_override() -> None:
    assert ModelSettings(temperature=None).merge_defaults(ModelSettings(temperature=0.2)).temperature == 0.2


def test_bodies_and_headers_are_merged_by_key() -> None:
    agent = ModelSettings(extra_body={"a": 1, "b": 1}, headers={"X-A": "1"})
    run = ModelSettings(extra_body={"b": 2}, headers={"X-B": "2"})

    merged = run.merge_defaults(agent)

    assert merged.extra_body == {"a": 1, "b": 2}
    assert merged.headers == {"X-A": "1", "X-B": "2"}
    assert agent.extra_body == {"a": 1, "b": 1}


@pytest.mark.parametrize(
    "fields",
    [
        {"iterations": 0},
        {"iterations": -1},
        {"tool_failures": 0},
        {"tokens": 0},
        {"seconds": 0},
        {"seconds": -0.5},
        {"iteration": 3},
    ],
)
def test_invalid_limit_is_refused_with_its_name(fields: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match=next(iter(fields))):
        Limits(**fields)


def test_unknown_setting_is_refused_with_its_name() -> None:
    with pytest.raises(ValidationError, match="temprature"):
        ModelSettings.model_validate({"temprature": 0.1})


def test_default_limits_are_the_documented_ones() -> None:
    assert Limits() == Limits(iterations=20, tool_failures=3, tokens=None, seconds=None)
