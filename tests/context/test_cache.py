from __future__ import annotations

from rxloop.context.token_estimator import MAX_ENTRIES, MAX_LENGTH, cache_short_strings


def test_only_results_for_short_strings_are_cached() -> None:
    counted: list[str] = []
    size = cache_short_strings(lambda text: counted.append(text) or len(text))
    short, long = "x" * MAX_LENGTH, "x" * (MAX_LENGTH + 1)
    assert [size(text) for text in (short, short, long, long)] == [
        MAX_LENGTH,
        MAX_LENGTH,
        MAX_LENGTH + 1,
        MAX_LENGTH + 1,
    ]
    assert counted == [short, long, long]


def test_size_of_the_cache_is_bounded() -> None:
    assert MAX_LENGTH * MAX_ENTRIES <= 2**20
