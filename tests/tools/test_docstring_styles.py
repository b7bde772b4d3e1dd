"""Docstrings in all styles, whose text must be kept except for entries of hidden parameters."""

from __future__ import annotations

import functools
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rxloop import tool
from rxloop.pipeline.run_context import RunContext
from rxloop.tools.docstring import parse

NAMES = ("city", "days", "lat", "lon")
CITY, DAYS = {"city": "The city."}, {"city": "The city.", "days": "How many."}

CASES: dict[str, tuple[str, dict[str, str], str]] = {
    "nested brackets": (
        "Args:\n    city (dict[str, list[int]]): The city.\n    days (Callable[[int], tuple[()]]): How many.",
        DAYS,
        "",
    ),
    "brackets and quotes": ("Args:\n    city (Literal['a)', \"b: (\"], optional): The city.", CITY, ""),
    "braces": ("Args:\n    city {str} -- The city.\n    days {int}: How many.", DAYS, ""),
    "square brackets": ("Args:\n    city [str]: The city.", CITY, ""),
    "wrapped type": ("Args:\n    city (dict[str,\n        list[int]]): The city.\n    days: How many.", DAYS, ""),
    "colon without space": ("Args:\n    city:The city.", CITY, ""),
    "bullets": ("Args:\n    - city: The city.\n    - days (int): How many.", DAYS, ""),
    "stars as bullets": ("Args:\n    * city: The city.\n    * days: How many.", DAYS, ""),
    "numbers": ("Args:\n    1. city: The city.\n    2) days: How many.", DAYS, ""),
    "backquotes": ("Args:\n    `city`: The city.\n    ``days`` (int): How many.", DAYS, ""),
    "bold": ("Args:\n    **city**: The city.\n    *days*: How many.", DAYS, ""),
    "quotes": ("Args:\n    'city': The city.\n    \"days\": How many.", DAYS, ""),
    "dashes": ("Args:\n    city - The city.\n    days (int) -- How many.", DAYS, ""),
    "remark first": ("Args:\n    All are in English.\n\n    city: The city.", CITY, "All are in English."),
    "remark of two lines": ("Args:\n    All are\n    in English.\n    city: The city.", CITY, "All are\nin English."),
    "two names": ("Args:\n    lat, lon: The place.", {"lat": "The place.", "lon": "The place."}, ""),
    "two names and a type": ("Args:\n    lat, lon (float): The place.", {"lat": "The place.", "lon": "The place."}, ""),
    "names with and": ("Args:\n    lat and lon: The place.", {"lat": "The place.", "lon": "The place."}, ""),
    "names with a slash": ("Args:\n    lat / lon: The place.", {"lat": "The place.", "lon": "The place."}, ""),
    "names in backquotes": ("Args:\n    `lat`, `lon`: The place.", {"lat": "The place.", "lon": "The place."}, ""),
    "other parameters": ("Args:\n    city: The city.\n\nOther Parameters:\n    days: How many.", DAYS, ""),
    "keyword args": ("Args:\n    city: The city.\n\nKeyword Args:\n    days: How many.", DAYS, ""),
    "keyword arguments": ("Keyword Arguments:\n    city: The city.\n    days: How many.", DAYS, ""),
    "other arguments": ("Other Arguments:\n    city: The city.", CITY, ""),
    "matching attributes": ("Attributes:\n    city: The city.", CITY, ""),
    "other attributes": ("Attributes:\n    size: The size.", {}, "Attributes:\n    size: The size."),
    "unknown entry": ("Args:\n    city: The city.\n    days_old: Gone.\n        Long ago.", CITY, "days_old: Gone."),
    "stars": ("Args:\n    city: The city.\n    *args: More.\n    **kwargs: Even more.", CITY, "**kwargs: Even more."),
    "group": ("Args:\n    Where:\n        city: The city.\n    When:\n        days: How many.", DAYS, "Where:"),
    "tabs": ("Args:\n\tcity: The city.\n\tdays: How many,\n\t\tat most.", {**CITY, "days": "How many, at most."}, ""),
    "windows": ("Args:\r\n    city: The city.\r\n    days: How many.\r\n", DAYS, ""),
    "one line": ("Args: city: The city.", CITY, ""),
    "one line and more": ("Args: city: The city.\n    days: How many.", DAYS, ""),
    "blank line": ("Args:\n\n    city: The city.\n\n    days: How many.", DAYS, ""),
    "lower case": ("args:\n    city: The city.", CITY, ""),
    "paragraphs": ("Args:\n    city: The city.\n\n        In English.", {"city": "The city.\n\nIn English."}, ""),
    "text below": ("Args:\n    city:\n        The city.\n    days:\n        How many.", DAYS, ""),
    "not indented": ("Args:\ncity: The city.", {}, "Args:\ncity: The city."),
    "numpy": (
        "Parameters\n----------\ncity : str\n    The city.\ndays : int, optional\n    How many.\n\nReturns\n-------\n"
        "str\n    A text.\n\nNotes\n-----\nSlow.",
        DAYS,
        "Slow.",
    ),
    "numpy without types": ("Parameters\n----------\ncity\n    The city.\ndays\n    How many.", DAYS, ""),
    "numpy names": (
        "Parameters\n----------\nlat, lon : float\n    The place.",
        {"lat": "The place.", "lon": "The place."},
        "",
    ),
    "numpy on one line": ("Parameters\n----------\ncity : The city.\ndays : How many.", DAYS, ""),
    "numpy other": (
        "Parameters\n----------\ncity : str\n    The city.\n\nOther Parameters\n----------------\ndays\n    How many.",
        DAYS,
        "",
    ),
    "numpy unknown": (
        "Parameters\n----------\n*args : int\n    More.\ncity : dict[str, int]\n    The city.",
        CITY,
        "*args : int\n    More.",
    ),
    "numpy paragraphs": (
        "Parameters\n----------\ncity : str\n    The city.\n\n    In English.",
        {"city": "The city.\n\nIn English."},
        "",
    ),
    "sphinx": (":param city: The city.\n:type city: str\n:param int days: How many.\n:returns: A text.", DAYS, ""),
    "sphinx wrapped": (":param city: The\n    city.\n:rtype: str\n:raises ValueError: Never.", CITY, ""),
    "sphinx type": (":param dict[str, int] city: The city.", CITY, ""),
    "sphinx unknown": (":param size: The size.\n:param city: The city.", CITY, ":param size: The size."),
    "sphinx keyword": (":keyword city: The city.\n:arg days: How many.", DAYS, ""),
    "epytext": ("@param city: The city.\n@param days: How many.", DAYS, ""),
}


@pytest.mark.parametrize("style", CASES)
def test_entries_describe_their_parameters_and_other_text_is_kept(style: str) -> None:  # P29
    text, parameters, remaining_text = CASES[style]
    docstring = parse(f"Look it up.\n\n{text}", NAMES)
    assert docstring.parameters == parameters
    assert docstring.description.startswith("Look it up.")
    assert remaining_text in docstring.description
    if not remaining_text:
        assert docstring.description == "Look it up."


def split_words(text: str) -> set[str]:
    return set(text.replace(":", " ").replace("*", " ").replace("`", " ").split())


@pytest.mark.parametrize("style", [name for name in CASES if not name.startswith(("numpy", "sphinx"))])
def test_no_word_is_lost_when_the_function_has_no_such_parameters(style: str) -> None:  # P29
    text = CASES[style][0]
    docstring = parse(text, ())
    assert docstring.parameters == {}
    headers = {"Args", "args", "Keyword", "Arguments", "Other", "Parameters", "Attributes"}
    assert split_words(text) - headers <= split_words(docstring.description)


LINES = [
    *(
        "Args:",
        "    city: aa",
        "    days (list[int]): bb",
        "    - lat, x: cc",
        "",
        "  dd",
        "ee",
        "\tff",
        "        gg: hh",
    ),
    *("Parameters", "----------", "city : ii", "jj", "Note:", "Args: city: kk", "Args: mm: nn", "    oo - pp"),
]


@given(st.lists(st.sampled_from(LINES), max_size=12), st.sampled_from([(), NAMES]))
@example(["Parameters", "----------", "Args:", "    city: aa", "    days (list[int]): bb"], NAMES)
def test_no_description_is_lost_for_any_order_of_lines(lines: list[str], names: Any) -> None:  # P29
    docstring = parse("\n".join(lines), names)
    texts = f"{docstring.description} {' '.join(docstring.parameters.values())}"
    expected = split_words("\n".join(lines)) & {each * 2 for each in "abcdefghjkmnop"}
    assert expected <= split_words(texts)


@pytest.mark.parametrize("style", ["sections", "numpy", "sphinx"])
def test_sections_about_results_are_dropped_and_others_kept(style: str) -> None:  # P29
    text = {
        "sections": "Args:\n    city: The city.\n\nReturns:\n    A text.\n\nRaises:\n    E: No.\n\nExample:\n    f(1)",
        "numpy": "Parameters\n----------\ncity\n    The city.\n\nRaises\n------\nE\n    No.\n\nExample\n-------\nf(1)",
        "sphinx": ":param city: The city.\n:returns: A text.\n:raises E: No.\n\nExample:\n    f(1)",
    }[style]
    docstring = parse(f"Look.\n\n{text}", NAMES)
    assert docstring.parameters == CITY
    assert "Example" in docstring.description
    assert "f(1)" in docstring.description
    assert "No." not in docstring.description
    assert "A text." not in docstring.description


HIDDEN = {
    "google": "Args:\n    ctx: Run.\n        Private.\n    city: The city.\n    api_key: Private.\n\n        Very.",
    "two names": "Args:\n    ctx, city: The city.\n    api_key: Private.",
    "numpy": "Parameters\n----------\nctx : Ctx\n    Private.\ncity : str\n    The city.\napi_key : str\n    Private.",
    "sphinx": ":param ctx: Private.\n    Very.\n:param city: The city.\n:param api_key: Private.\n:type api_key: str",
}


@pytest.mark.parametrize("text", HIDDEN.values(), ids=HIDDEN)
@pytest.mark.parametrize("positional", [True, False])
def test_entries_of_contexts_and_bound_arguments_are_hidden(text: str, positional: bool) -> None:  # P26 P29
    def look(api_key: str, ctx: RunContext[Any], city: str) -> None: ...

    look.__doc__ = f"Look it up.\n\n{text}"
    bound: Any = functools.partial(look, "k") if positional else functools.partial(look, api_key="k")
    definition = tool(bound, name="look").definition
    assert definition.description == "Look it up."
    assert definition.parameters["properties"] == {"city": {"type": "string", "description": "The city."}}


def test_tool_of_a_method_hides_self() -> None:  # P29
    class Desk:
        def look(self, city: str) -> None:
            """Look it up.

            Args:
                self: The desk.
                city: The city.
                country: Not supported any more.
            """

    definition = tool(Desk().look).definition
    assert definition.description == "Look it up.\n\ncountry: Not supported any more."
    assert definition.parameters["properties"]["city"]["description"] == "The city."
