from ag_ui.core.events import TokenUsage

from rxloop.server.agui.frames import COUNT_NAMES, list_usage


def test_usage_counts_have_the_names_of_the_protocol() -> None:
    [counts] = list_usage({"m": [9, 8, 7, 6, 5]}) or []
    parsed = TokenUsage.model_validate(counts).model_dump(exclude_none=True, by_alias=True)
    assert parsed == counts
    assert counts == {"model": "m", **dict(zip(COUNT_NAMES.values(), [9, 8, 7, 6, 5], strict=True))}


def test_zero_cache_writes_are_omitted() -> None:
    assert list_usage({"": [9, 8, 7, 6, 0]}) == [
        {"inputTokens": 9, "outputTokens": 8, "reasoningTokens": 7, "cachedInputTokens": 6}
    ]
