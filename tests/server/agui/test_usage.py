from ag_ui.core.events import TokenUsage

from rxloop.server.agui.frames import COUNTED, usage_of


def test_usage_counts_have_the_names_of_the_protocol() -> None:
    [counts] = usage_of({"m": [9, 8, 7, 6, 5]}) or []
    parsed = TokenUsage.model_validate(counts).model_dump(exclude_none=True, by_alias=True)
    assert parsed == counts
    assert counts == {"model": "m", **dict(zip(COUNTED.values(), [9, 8, 7, 6, 5], strict=True))}


def test_zero_cache_writes_are_omitted() -> None:
    assert usage_of({"": [9, 8, 7, 6, 0]}) == [
        {"inputTokens": 9, "outputTokens": 8, "reasoningTokens": 7, "cachedInputTokens": 6}
    ]
