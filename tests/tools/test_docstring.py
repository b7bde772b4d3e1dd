from hypothesis import given
from hypothesis import strategies as st

from rxloop.tools.docstring import parse


def test_description_and_parameters_are_parsed() -> None:
    docstring = parse(
        """Current weather for a city.

        Only cities of more than
        1,000 people.

        Args:
            city: A city name, such as "Oslo".
            days (int, optional): How many days,
                today included.

                At most ten:
                - one is fine
                - so is none
            *names: More.

        Returns:
            The temperature.

        Example:
            weather("Oslo")

        Raises:
            ToolError: No such city.
        """
    )
    assert docstring.description == (
        'Current weather for a city.\n\nOnly cities of more than\n1,000 people.\n\nExample:\n    weather("Oslo")'
    )
    assert docstring.parameters == {
        "city": 'A city name, such as "Oslo".',
        "days": "How many days, today included.\n\nAt most ten:\n- one is fine\n- so is none",
        "names": "More.",
    }


def test_missing_docstring_is_empty() -> None:
    assert parse(None).description == ""
    assert parse("").parameters == {}


def test_header_without_an_indented_block_is_text() -> None:
    assert parse("Do.\n\nReturns:\nnothing at all.").description == "Do.\n\nReturns:\nnothing at all."


def test_colon_in_a_continuation_line_starts_no_parameter() -> None:
    docstring = parse("Do.\n\nArgs:\n    unit: One of\n      celsius: the usual one\n    city: A city.")
    assert docstring.parameters == {"unit": "One of celsius: the usual one", "city": "A city."}


WORD = st.text("abcdefgh ", min_size=1).map(str.strip).filter(bool)


@given(WORD, st.dictionaries(st.from_regex(r"[a-z_][a-z0-9_]{0,8}", fullmatch=True), WORD, min_size=1), WORD)
def test_generated_sections_are_parsed(summary: str, parameters: dict[str, str], result: str) -> None:
    entries = "\n".join(f"    {name}: {text}" for name, text in parameters.items())
    docstring = parse(f"{summary}\n\nArgs:\n{entries}\n\nReturns:\n    {result}")
    assert docstring.description == summary
    assert docstring.parameters == parameters


@given(st.text())
def test_any_text_can_be_parsed(text: str) -> None:
    parse(text)


@given(st.lists(st.sampled_from(["Args:", "    x: y", "", "  ", "Returns:", "text", "\tz", "        w: v"])))
def test_any_order_of_lines_can_be_parsed(lines: list[str]) -> None:
    parse("\n".join(lines))
