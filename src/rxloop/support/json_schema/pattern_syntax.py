r"""Parser of regular expressions.

It accepts the syntax that ECMA-262, Python and Rust have in common. As in Python and Rust, `\w`, `\d` and `\s` include
the letters, digits and spaces of all scripts.
"""

from __future__ import annotations

import unicodedata
from bisect import bisect_right
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

MAX_LENGTH = 5_000
"""Maximum number of characters of a pattern."""

_MAX_DEPTH = 50
"""Maximum nesting depth of groups."""

_MAX_REPETITIONS = 1_000_000
"""Higher numbers of repetitions are shortened, since they are too many anyway."""


def is_word(character: str) -> bool:
    """Return True for letters, digits and the underscore."""
    return character == "_" or character.isalnum()


_CLASSES: dict[str, Callable[[str], bool]] = {"d": str.isdecimal, "s": str.isspace, "w": is_word}

_CONTROLS = {"n": "\n", "r": "\r", "t": "\t", "f": "\f", "v": "\v", "a": "\a"}

_ASSERTIONS = {"A": "start", "b": "word", "B": "not_word", "Z": "end", "z": "end"}

_SYNTAX = frozenset("()[]*+?\\.^$|{")

_REPETITIONS = frozenset("*+?{")

_CATEGORIES = frozenset(
    (
        *("C", "Cc", "Cf", "Cn", "Co", "Cs", "L", "Ll", "Lm", "Lo", "Lt", "Lu", "M", "Mc", "Me", "Mn", "N", "Nd", "Nl"),
        *("No", "P", "Pc", "Pd", "Pe", "Pf", "Pi", "Po", "Ps", "S", "Sc", "Sk", "Sm", "So", "Z", "Zl", "Zp", "Zs"),
    )
)


class CharacterSet:
    r"""Set of characters, as ranges and classes such as `\d`."""

    __slots__ = ("_ends", "_fold", "_negated", "_starts", "_tests")

    def __init__(
        self,
        ranges: Iterable[tuple[int, int]],
        tests: Iterable[Callable[[str], bool]] = (),
        *,
        negated: bool = False,
        fold: bool = False,
    ) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []
        for start, end in sorted(ranges):
            if self._ends and start <= self._ends[-1] + 1:
                self._ends[-1] = max(self._ends[-1], end)
            else:
                self._starts.append(start)
                self._ends.append(end)
        self._tests = tuple(tests)
        self._negated = negated
        self._fold = fold

    def contains(self, character: str) -> bool:
        """Return True if the set contains a character."""
        found = self._has(character)
        if not found and self._fold:
            variants = (character.lower(), character.upper(), character.title())
            found = any(len(each) == 1 and self._has(each) for each in variants)
        return found != self._negated

    def _has(self, character: str) -> bool:
        code = ord(character)
        index = bisect_right(self._starts, code) - 1
        if index >= 0 and code <= self._ends[index]:
            return True
        return any(test(character) for test in self._tests)


Node = CharacterSet | tuple[Any, ...]
"""Set of characters, an assertion such as `("start",)`, `("sequence", nodes)`, `("alternatives", nodes)`, or
`("repeat", node, low, high)`."""


class ParsedPattern(NamedTuple):
    """Syntax tree of a pattern."""

    root: Node
    unsupported: str | None
    """Feature that cannot be matched in linear time or differs between dialects. None if the tree is complete."""
    is_common: bool
    """True if Python supports all escape sequences. Other dialects do not agree on the rest."""


class _Flags(NamedTuple):
    fold: bool = False
    dot_all: bool = False


def parse_pattern(text: str) -> ParsedPattern:
    """Parse a regular expression.

    Raises:
        ValueError: The pattern is invalid, or longer than `MAX_LENGTH`.
    """
    if len(text) > MAX_LENGTH:
        raise ValueError(f"it is longer than {MAX_LENGTH:,} characters")
    return _Parser(text).parse()


class _Parser:
    def __init__(self, text: str) -> None:
        self._text = text
        self._position = 0
        self._unsupported: str | None = None
        self._is_common = True
        self._tests: dict[str, Callable[[str], bool]] = {}
        self._literals: dict[tuple[int, bool], CharacterSet] = {}

    def parse(self) -> ParsedPattern:
        root = self._parse_alternatives(_Flags(), 0)
        if self._position < len(self._text):
            raise ValueError("a closing parenthesis has no opening one")
        return ParsedPattern(root, self._unsupported, self._is_common)

    def _peek(self) -> str:
        return self._text[self._position : self._position + 1]

    def _take(self) -> str:
        character = self._peek()
        if not character:
            raise ValueError("it ends too early")
        self._position += 1
        return character

    def _skip(self, prefix: str) -> bool:
        if not self._text.startswith(prefix, self._position):
            return False
        self._position += len(prefix)
        return True

    def _reject(self, feature: str) -> Node:
        self._unsupported = self._unsupported or feature
        return "sequence", ()

    def _parse_alternatives(self, flags: _Flags, depth: int) -> Node:
        if depth > _MAX_DEPTH:
            raise ValueError("it is nested too deep")
        options: list[Node] = []
        parts: list[Node] = []
        while (character := self._peek()) not in ("", ")"):
            if character not in _SYNTAX:
                self._position += 1
                literal = self._make_literal(ord(character), flags)
                parts.append(literal if self._peek() not in _REPETITIONS else self._parse_repetition(literal))
                continue
            if self._skip("|"):
                options.append(("sequence", tuple(parts)))
                parts = []
                continue
            group_flags = self._parse_flags(flags)
            if group_flags is not None:
                flags = group_flags
                continue
            parts.append(self._parse_repetition(self._parse_atom(flags, depth)))
        options.append(("sequence", tuple(parts)))
        return ("alternatives", tuple(options)) if len(options) > 1 else options[0]

    def _parse_flags(self, flags: _Flags) -> _Flags | None:
        """Parse flags for the rest of a group, such as `(?i)`."""
        end = self._text.find(")", self._position, self._position + 10)
        names = self._text[self._position + 2 : end]
        if end < 0 or not self._text.startswith("(?", self._position) or not names.isalpha():
            return None
        self._position = end + 1
        return self._add_flags(flags, names)

    def _add_flags(self, flags: _Flags, names: str) -> _Flags:
        if not set(names) <= {"i", "s"}:
            self._reject(f"the flag {names}")
        return _Flags(flags.fold or "i" in names, flags.dot_all or "s" in names)

    def _parse_repetition(self, node: Node) -> Node:
        start = self._position
        limits = self._parse_limits()
        if limits is None:
            return node
        if isinstance(node, tuple) and node[0] in ("start", "end", "word", "not_word"):
            raise ValueError("an assertion cannot be repeated")
        low, high = limits
        if high is not None and high < low:
            raise ValueError(f"{self._text[start : self._position]} has its limits in the wrong order")
        self._skip("?")
        if self._peek() == "+":
            self._position += 1
            self._reject("a possessive repetition")
        elif self._peek() in ("*", "?"):
            raise ValueError("a repetition cannot be repeated")
        return "repeat", node, low, high

    def _parse_limits(self) -> tuple[int, int | None] | None:
        for symbol, limits in (("*", (0, None)), ("+", (1, None)), ("?", (0, 1))):
            if self._skip(symbol):
                return limits
        if self._peek() != "{":
            return None
        end = self._text.find("}", self._position, self._position + 30)
        low, comma, high = self._text[self._position + 1 : end].partition(",")
        digits = low + high
        if end < 0 or not digits or not (digits.isascii() and digits.isdigit()):
            # As in ECMA-262, other braces are ordinary characters.
            return None
        self._position = end + 1
        start = min(int(low or 0), _MAX_REPETITIONS)
        if not comma:
            return start, start
        return start, min(int(high), _MAX_REPETITIONS) if high else None

    def _parse_atom(self, flags: _Flags, depth: int) -> Node:
        character = self._take()
        if character == "(":
            return self._parse_group(flags, depth)
        if character == "[":
            return self._parse_class(flags)
        if character == ".":
            return CharacterSet(() if flags.dot_all else ((10, 10),), negated=True)
        if character == "^":
            return ("start",)
        if character == "$":
            return ("end",)
        if character in "*+?":
            raise ValueError(f"{character} has nothing to repeat")
        if character == "\\":
            return self._parse_escape(flags)
        return self._make_literal(ord(character), flags)

    def _make_literal(self, code: int, flags: _Flags) -> CharacterSet:
        """Return the set of one character. Equal characters share one set."""
        key = code, flags.fold
        literal = self._literals.get(key)
        if literal is None:
            literal = self._literals[key] = CharacterSet(((code, code),), fold=flags.fold)
        return literal

    def _parse_group(self, flags: _Flags, depth: int) -> Node:
        is_supported = True
        if self._skip("?"):
            if self._skip("P<") or (self._peek() == "<" and self._text[self._position + 1 :][:1] not in ("=", "!")):
                end = self._text.find(">", self._position)
                if end < 0:
                    raise ValueError("the name of a group has no end")
                self._position = end + 1
            elif not self._skip(":"):
                is_supported = False
                for symbol in ("=", "!", "<=", "<!", ">"):
                    if self._skip(symbol):
                        self._reject(f"the group (?{symbol}")
                        break
                else:
                    end = self._text.find(":", self._position, self._position + 10)
                    names = self._text[self._position : end]
                    if end < 0 or not names.isalpha():
                        raise ValueError("the kind of a group is unknown")
                    self._position = end + 1
                    flags, is_supported = self._add_flags(flags, names), True
        inner = self._parse_alternatives(flags, depth + 1)
        if self._take() != ")":
            raise ValueError("a group has no end")
        return inner if is_supported else ("sequence", ())

    def _parse_escape(self, flags: _Flags) -> Node:
        assertion = _ASSERTIONS.get(self._peek())
        if assertion is not None:
            self._position += 1
            return (assertion,)
        escaped = self._parse_character()
        if isinstance(escaped, int):
            return self._make_literal(escaped, flags)
        return CharacterSet((), (escaped,))

    def _parse_class(self, flags: _Flags) -> Node:
        negated = self._skip("^")
        ranges: list[tuple[int, int]] = []
        tests: dict[int, Callable[[str], bool]] = {}
        while not self._skip("]"):
            if self._text.startswith(("[:", "&&["), self._position):
                self._reject("an operation on sets")
            start = self._parse_class_item()
            if self._peek() == "-" and self._text[self._position + 1 : self._position + 2] not in ("]", ""):
                self._position += 1
                end = self._parse_class_item()
                if not isinstance(start, int) or not isinstance(end, int):
                    for each in (start, end, ord("-")):
                        if isinstance(each, int):
                            ranges.append((each, each))
                        else:
                            tests[id(each)] = each
                    continue
                if end < start:
                    raise ValueError("a range has its limits in the wrong order")
                ranges.append((start, end))
            elif isinstance(start, int):
                ranges.append((start, start))
            else:
                tests[id(start)] = start
        return CharacterSet(ranges, tests.values(), negated=negated, fold=flags.fold)

    def _parse_class_item(self) -> int | Callable[[str], bool]:
        character = self._take()
        if character != "\\":
            return ord(character)
        if self._skip("b"):
            return 8
        return self._parse_character()

    def _parse_character(self) -> int | Callable[[str], bool]:
        """Parse the rest of an escape sequence for a character or a class of characters."""
        character = self._take()
        if character.lower() in _CLASSES:
            return self._get_test(character)
        if character in "pP":
            self._is_common = False
            return self._get_test(character + self._parse_property())
        if character in _CONTROLS:
            return ord(_CONTROLS[character])
        if character == "0" and not self._peek().isdigit():
            return 0
        if character in "xuU":
            return self._parse_code(character)
        if character == "c" and self._peek().isascii() and self._peek().isalpha():
            return ord(self._take()) % 32
        if character.isdigit() or character == "k":
            self._reject("a reference to a group")
        elif character.isalpha() and character.isascii():
            self._is_common = False
            self._reject(f"\\{character}")
        return ord(character)

    def _get_test(self, name: str) -> Callable[[str], bool]:
        """Return the function that tests for a class. Equal classes share one function."""
        test = self._tests.get(name)
        if test is None:
            test = self._tests[name] = _make_test(name)
        return test

    def _parse_property(self) -> str:
        if not self._skip("{"):
            name = self._take()
        else:
            end = self._text.find("}", self._position)
            if end < 0:
                raise ValueError("the name of a property has no end")
            name = self._text[self._position : end]
            self._position = end + 1
        if name not in _CATEGORIES:
            self._reject(f"the property {name[:50]}")
            return "L"
        return name

    def _parse_code(self, kind: str) -> int:
        r"""Parse a hexadecimal code such as `\u0041` or `\u{1F600}`."""
        if kind != "U" and self._skip("{"):
            self._is_common = False
            end = self._text.find("}", self._position, self._position + 10)
            digits = self._text[self._position : end] if end > 0 else ""
            self._position = end + 1
        else:
            length = {"x": 2, "u": 4, "U": 8}[kind]
            digits = self._text[self._position : self._position + length]
            if len(digits) < length:
                digits = ""
            self._position += length
        try:
            code = int(digits, 16)
        except ValueError:
            raise ValueError(f"\\{kind} must be followed by a hexadecimal number") from None
        if 0xD800 <= code < 0xDC00 and self._skip("\\u"):
            # ECMA-262 writes some characters as two codes.
            low = self._parse_code("u")
            return 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00 & 0x3FF)
        if code > 0x10FFFF:
            raise ValueError(f"{code:x} is not a character")
        return code


def _make_test(name: str) -> Callable[[str], bool]:
    if name[0] in "pP":
        category, is_positive = name[1:], name[0] == "p"
        return lambda character: unicodedata.category(character).startswith(category) == is_positive
    test = _CLASSES[name.lower()]
    return test if name.islower() else lambda character: not test(character)
