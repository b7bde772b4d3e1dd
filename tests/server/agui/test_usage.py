from ag_ui.core.events import TokenUsage

from rxloop.server.agui.frames import COUNTED, usage_of


def test_each_count_has_the_name_that_the_protocol_has_for_it() -> None:
    [told] = usage_of({"m": [9, 8, 7, 6, 5]}) or []
    read = TokenUsage.model_validate(told).model_dump(exclude_none=True, by_alias=True)
    assert read == told
    assert told == {"model": "m", **dict(zip(COUNTED.values(), [9, 8, 7, 6, 5], strict=True))}


def test_nothing_written_to_a_cache_is_not_told() -> None:
    assert usage_of({"": [9, 8, 7, 6, 0]}) == [
        {"inputTokens": 9, "outputTokens": 8, "reasoningTokens": 7, "cachedInputTokens": 6}
    ]
