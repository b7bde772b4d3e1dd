"""Parser for cities, temperatures and sums in questions."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, cast

from rxloop.demo.conversation import parse_json, parse_object

_OTHER_WORDS = frozenset(
    re.findall(
        r"\w+",
        """
    a an and april are at august but c calculate can celsius check compare compute convert could december degree
    degrees did difference do does f fahrenheit february find for forecast friday get give good hello here hey hi how
    i if in is it january july june let look march may me monday my no november now october ok okay or plan please
    saturday september should show sunday tell temperature temperatures thanks the then there thursday today tomorrow
    tuesday was weather wednesday weekend what when where which who why will with would yes you your
    """,
    )
)

_TEMPERATURE = re.compile(
    r"(?P<value>[-\u2212]?\d+(?:\.\d+)?)\s*(?:°|degrees?|deg)?\s*(?P<unit>celsius|fahrenheit|[cf])\b", re.IGNORECASE
)

_SUM = re.compile(r"[-(\s]*\d(?:[\d.\s()%/+*-]*[\d)])?")

_WORDS = (
    (r"(?<=\d),(?=\d{3}\b)", ""),
    (r"\b(?:multiplied by|times)\b|[\u00d7\u00b7]|(?<=\d)\s*x\s*(?=\d)", " * "),
    (r"\bmultiply (?:that|it|this) by\b", "*"),
    (r"\bdivide (?:that|it|this) by\b", "/"),
    (r"\b(?:divided by|over)\b|\u00f7", "/"),
    (r"\b(?:plus|add)\b", "+"),
    (r"\b(?:minus|subtract)\b|\u2212", "-"),
    (r"\^|\bto the power of\b", "**"),
)

_CONTINUED_SUM = re.compile(
    r"^\W*(?:and|now|then|so)?\W*(?:what is|what's)?\s*(?:that|it|this|the result)?\s*"
    r"(?P<operation>\*\*|[-+*/])\s*(?P<number>\d+(?:\.\d+)?)\W*$",
    re.IGNORECASE,
)

_FAILURE = re.compile(
    r"error|exception|\b(?:fail(?:ed|ure)?|time[sd]? ?out|unknown|refused|denied|cannot|can't|could not|couldn't|"
    r"interrupted|cancell?ed|unavailable|invalid|not found|no such|no city)\b",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Temperature:
    """Temperature in its original unit, either Celsius or Fahrenheit."""

    value: float
    unit: str

    @property
    def celsius(self) -> float:
        """The temperature in Celsius."""
        return self.value if self.unit == "C" else (self.value - 32) * 5 / 9

    @property
    def sum_in_celsius(self) -> str:
        """Formula that converts the temperature to Celsius."""
        return format_exact(self.value) if self.unit == "C" else f"({format_exact(self.value)} - 32) * 5 / 9"

    def __str__(self) -> str:
        return f"{format_number(self.value)} °{self.unit}"


def format_number(value: float) -> str:
    """Format a number, rounded to one decimal place."""
    return f"{value:.0f}" if abs(value - round(value)) < 0.05 else f"{value:.1f}"


def format_exact(value: float) -> str:
    """Format a number with all digits."""
    return str(int(value)) if value == int(value) and abs(value) < 1e15 else f"{value:.10g}"


def find_cities(text: str) -> list[str]:
    """Extract city names from a question, based on capital letters or a preceding "in"."""
    cities: list[str] = []
    words: list[str] = []
    for token in [*re.findall(r"[^\W\d_][\w'\u2019-]*|\S", text), "."]:
        word = re.sub(r"['\u2019]s$", "", token)
        if word[0].isupper() and word.lower() not in _OTHER_WORDS:
            words.append(word)
        elif words:
            cities.append(" ".join(words))
            words = []
    if not cities:
        candidates = re.findall(r"\bin\s+([^\W\d_]{3,})", text)
        cities = [word.capitalize() for word in candidates if word.lower() not in _OTHER_WORDS]
    return list(dict.fromkeys(cities))


def find_temperatures(text: str) -> list[tuple[Temperature, str | None]]:
    """Extract temperatures from text, along with the subsequent city."""
    matches = list(_TEMPERATURE.finditer(text))
    ends = [*(match.start() for match in matches[1:]), len(text)]
    temperatures: list[tuple[Temperature, str | None]] = []
    for match, end in zip(matches, ends, strict=False):
        location = re.match(r"\s+in\s+(.*)", text[match.end() : end], re.DOTALL)
        cities = find_cities(location.group(1)) if location else []
        temperatures.append((_to_temperature(match), cities[0] if cities else None))
    return temperatures


def _to_temperature(match: re.Match[str]) -> Temperature:
    return Temperature(float(match["value"].replace("\u2212", "-")), match["unit"][0].upper())


def parse_temperature(result: str | None) -> Temperature | None:
    """Return the temperature in a tool result (JSON or text), or None."""
    value = parse_json(result)
    if isinstance(value, int | float) and not isinstance(value, bool):
        return Temperature(float(value), "C")
    if isinstance(value, dict | list):
        return _find_temperature(value)
    match = _TEMPERATURE.search(result or "")
    return _to_temperature(match) if match else None


def _find_temperature(data: Any) -> Temperature | None:
    fields = list(_iter_fields(data))
    unit = next((str(value) for key, value in fields if "unit" in key), "C")
    for key, value in fields:
        if isinstance(value, str) and (match := _TEMPERATURE.search(value)):
            return _to_temperature(match)
        if not isinstance(value, int | float) or isinstance(value, bool):
            continue
        if "fahrenheit" in key or re.search(r"(^|_)f$", key):
            return Temperature(value, "F")
        if "celsius" in key or re.search(r"(^|_)c$", key):
            return Temperature(value, "C")
        if "temp" in key or "degree" in key:
            return Temperature(value, "F" if "F" in unit.upper() else "C")
    return None


def _iter_fields(data: Any) -> Iterator[tuple[str, Any]]:
    """Iterate over nested JSON values and their field names."""
    if isinstance(data, dict):
        for key, value in cast("dict[str, Any]", data).items():
            if isinstance(value, dict | list):
                yield from _iter_fields(value)
            else:
                yield key.lower(), value
    elif isinstance(data, list):
        for value in cast("list[Any]", data):
            yield from _iter_fields(value)


def is_failure(result: str | None) -> bool:
    """Return True if a tool result describes a failure."""
    if "error" in parse_object(result):
        return True
    return parse_json(result) is None and parse_temperature(result) is None and bool(_FAILURE.search(result or "error"))


def describe_result(result: str | None) -> str:
    """Return a short description of a tool result, without the temperature."""
    value = parse_json(result)
    if value is None:
        return (result or "").strip()
    if isinstance(value, str):
        return value
    return ", ".join(str(leaf) for _, leaf in _iter_fields(value) if isinstance(leaf, str) and len(leaf) > 1)


def parse_number(result: str | None) -> float | None:
    """Extract a number from a calculator result, or return None."""
    value = parse_json(result)
    if isinstance(value, dict | list):
        numbers = [leaf for _, leaf in _iter_fields(value) if isinstance(leaf, int | float)]
        return float(numbers[-1]) if numbers else None
    if isinstance(value, int | float):
        return float(value)
    matches = re.findall(r"-?\d+(?:\.\d+)?", (result or "").replace(",", ""))
    return float(matches[-1]) if matches and not is_failure(result) else None


def find_expression(question: str, last: float | None) -> str | None:
    """Extract an arithmetic expression from a question.

    Expressions with a leading operator continue the previous result. Returns None if there is no expression.
    """
    text = question
    for pattern, sign in _WORDS:
        text = re.sub(pattern, sign, text, flags=re.IGNORECASE)
    if last is not None and (continued := _CONTINUED_SUM.match(text)):
        return f"{format_exact(last)} {continued['operation']} {continued['number']}"
    for match in sorted(_SUM.findall(text[:500]), key=len, reverse=True):
        expression = " ".join(match.split())
        if re.search(r"[\d)]\s*(?:\*\*|[-+*/%])\s*[-(]*\d", expression) and _parse_expression(expression) is not None:
            return expression
    return None


OPERATIONS: dict[type[ast.operator], tuple[str, Callable[[float, float], float]]] = {
    ast.Add: ("+", lambda a, b: a + b),
    ast.Sub: ("-", lambda a, b: a - b),
    ast.Mult: ("*", lambda a, b: a * b),
    ast.Div: ("/", lambda a, b: a / b),
    ast.Mod: ("%", lambda a, b: a % b),
    ast.Pow: ("**", lambda a, b: a**b),
}
"""Arithmetic operators with symbols and implementations."""


def _parse_expression(expression: str) -> ast.expr | None:
    try:
        return ast.parse(expression.strip(), mode="eval").body
    except SyntaxError:
        return None


def evaluate(expression: str) -> float:
    """Evaluate an arithmetic expression.

    Raises:
        ArithmeticError: Invalid expression or excessively large result.
    """
    node = _parse_expression(expression)
    if node is None:
        raise ArithmeticError("unsupported expression")
    return _evaluate_node(node)


def _evaluate_node(node: ast.expr) -> float:
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        return node.value
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_evaluate_node(node.operand)
    if isinstance(node, ast.BinOp) and type(node.op) in OPERATIONS:
        left, right = _evaluate_node(node.left), _evaluate_node(node.right)
        if isinstance(node.op, ast.Pow) and (abs(right) > 64 or abs(left) > 1e6 or (left < 0 and right != int(right))):
            raise ArithmeticError("result exceeds the supported range")
        return OPERATIONS[type(node.op)][1](left, right)
    raise ArithmeticError("unsupported expression")
