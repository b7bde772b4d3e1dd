from __future__ import annotations

import re
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rxloop.errors import ConfigurationError
from rxloop.providers.codecs.thought_tags import MAX_TAG_LENGTH, TagSplitter, Thought, ThoughtText, make_event_fields
from rxloop.providers.vendors import THOUGHT_TAGS

FRAGMENTS = (
    *("<think>", "</think>", "<thinking>", "</thinking>", "<THOUGHT ", "<reflection", "</reasoning >", "<think/>"),
    *("<", "</", ">", "/>", "/", "think", "`", "``", "```", "````", "~~~", "\n", "\r\n", " ", "\t", "> ", "- ", "x"),
    *("id=", "type", '"', "'", "=", 'a="b"', " a='>'", " content=", "<T>", "é", "\U0001f914", "\x00", "&lt;"),
)
ANY_TEXT = st.lists(st.sampled_from(FRAGMENTS) | st.text(max_size=4), max_size=25).map("".join)
LONGEST_NAME = max(map(len, THOUGHT_TAGS))


def iter_pieces(text: str, cuts: list[int]) -> list[str]:
    marks = sorted({0, len(text), *(cut % (len(text) + 1) for cut in cuts)})
    return [text[a:b] for a, b in pairwise(marks)]


def split(*pieces: str, names: tuple[str, ...] = THOUGHT_TAGS, thinks_first: bool = False) -> list[Any]:
    """Return text and thoughts in order, with adjacent texts joined. Checks each thought against its pieces."""
    splitter = TagSplitter(names, thinks_first=thinks_first)
    found: list[Any] = []
    streamed: list[str] = []
    for piece in [each for text in pieces for each in splitter.feed(text)] + splitter.finish():
        if isinstance(piece, ThoughtText):
            streamed.append(piece.text)
        elif isinstance(piece, Thought):
            if piece.closing or piece.incomplete:
                assert "".join(streamed) == piece.content
            streamed = []
            found.append(piece)
        elif found and isinstance(found[-1], str):
            found[-1] += piece
        else:
            found.append(piece)
    assert not streamed
    return found


def simplify(found: list[Any]) -> list[Any]:
    return [(piece.content,) if isinstance(piece, Thought) else piece for piece in found]


def test_tagged_thought_is_removed_from_the_text() -> None:
    # L40
    assert simplify(split("a <thinking>x</thinking> b")) == ["a ", ("x",), " b"]


@pytest.mark.parametrize("name", THOUGHT_TAGS)
def test_tag_names_are_case_insensitive(name: str) -> None:
    assert simplify(split(f"a<{name}>x</{name}>b")) == ["a", ("x",), "b"]
    assert simplify(split(f"a<{name.upper()}>x</{name.title()}>b")) == ["a", ("x",), "b"]


def test_text_is_split_equally_at_any_read_boundaries() -> None:
    # L41
    text = (
        'a <think id="p" type=plan>b < c <think>d</think> `</t`</think > e <T> <thought content="f>"/>\n```\n<think>\n'
    )
    whole = split(text)
    assert len(whole) == 5
    for cut in range(len(text) + 1):
        assert split(text[:cut], text[cut:]) == whole
    assert split(*text) == whole


@given(ANY_TEXT, st.lists(st.integers(0, 1000), max_size=12))
def test_any_text_is_split_equally_at_any_read_boundaries(text: str, cuts: list[int]) -> None:
    # L41
    assert split(*iter_pieces(text, cuts)) == split(text) == split(*text)


@given(ANY_TEXT, st.lists(st.integers(0, 1000), max_size=12))
def test_no_character_is_lost_or_repeated(text: str, cuts: list[int]) -> None:
    found = split(*iter_pieces(text, cuts))
    assert "".join(piece.raw if isinstance(piece, Thought) else piece for piece in found) == text


@given(ANY_TEXT, st.lists(st.integers(0, 1000), max_size=12))
def test_text_without_an_opening_tag_is_unchanged(text: str, cuts: list[int]) -> None:
    # L46
    text = re.sub(rf"<({'|'.join(THOUGHT_TAGS)})(?=[\s/>])", "<b", text, flags=re.IGNORECASE)
    assert "".join(split(*iter_pieces(text, cuts))) == text


@given(ANY_TEXT, ANY_TEXT, st.lists(st.integers(0, 1000), max_size=12))
def test_fenced_block_is_text_but_not_what_follows(code: str, after: str, cuts: list[int]) -> None:
    # L47
    block = "````md\n" + code.replace("````", "") + "\n````\n"
    assert simplify(split(*iter_pieces(f"{block}<think>x</think>{after}", cuts)))[:2] == [block, ("x",)]


@pytest.mark.parametrize(
    ("tag", "attributes"),
    [
        ('<thought type="planning" content="a > b"/>', {"type": "planning", "content": "a > b"}),
        ("<thought type=planning content='say \"hi\"' />", {"type": "planning", "content": 'say "hi"'}),
        ("<think  id = p1\n content=a/b/>", {"id": "p1", "content": "a/b"}),
        ('<think content="a &amp; b&quot;"/>', {"content": 'a & b"'}),
        ("<think content='first' content='second'/>", {"content": "first"}),
    ],
)
def test_attributes_are_read_with_or_without_quotes(tag: str, attributes: dict[str, str]) -> None:
    # L42
    before, thought, after = split(f"x{tag}y")
    assert (before, after) == ("x", "y")
    assert thought.attributes == attributes
    assert (thought.content, thought.opening, thought.raw) == (attributes["content"], tag, tag)


@pytest.mark.parametrize("name", ["content", "text", "thought", "Content"])
def test_self_closing_tag_has_its_thought_in_an_attribute(name: str) -> None:
    # L42
    assert simplify(split(f'a<think {name}="x"/>b')) == ["a", ("x",), "b"]


def parse_fields(attributes: str, name: str = "think") -> dict[str, Any]:
    (thought,) = split(f"<{name} {attributes}>x</{name}>")
    return make_event_fields(thought)


@pytest.mark.parametrize(
    "attributes",
    [
        "id='p' type='planning' verbosity='brief' confidence='0.8' related_to='q'",
        'thought_id="p" thought-type="PLANNING" Verbosity="Brief" Confidence=".8" related-to=" q "',
        "thoughtId=p thoughtType=planning verbosity=brief confidence=8e-1 relatedTo=q",
    ],
)
def test_attribute_names_are_accepted_in_any_spelling(attributes: str) -> None:
    # L43
    assert parse_fields(attributes) == {
        "thought_id": "p",
        "thought_type": "planning",
        "verbosity": "brief",
        "confidence": 0.8,
        "related_to": "q",
        "metadata": {},
    }


@pytest.mark.parametrize(
    "attribute",
    [
        *(
            "type=musing",
            "confidence=high",
            "confidence=1.5",
            "confidence=nan",
            "verbosity=loud",
            "id=' '",
            "mood=good",
        ),
        f"id={'x' * 201}",
        "content=y",
    ],
)
def test_invalid_attribute_is_kept_in_the_metadata(attribute: str) -> None:
    # L43
    name, _, value = attribute.partition("=")
    assert parse_fields(attribute) == {"metadata": {name: value.strip("'")}}


def test_repeated_attribute_counts_once() -> None:
    assert parse_fields("related_to=a relatedTo=b") == {"related_to": "a", "metadata": {"relatedTo": "b"}}


@pytest.mark.parametrize("name", ["reasoning", "reflection", "thinking"])
def test_tag_named_as_a_thought_type_sets_the_type(name: str) -> None:
    assert parse_fields("id=p", name)["thought_type"] == name
    assert parse_fields("type=decision", name)["thought_type"] == "decision"


@pytest.mark.parametrize("text", ["b", "b</thi", "b</think", "b <think>c</think>", "b ```\n</thinking> <"])
def test_text_that_ends_within_a_thought_is_incomplete(text: str) -> None:
    # L44
    before, thought = split(f"a<think>{text}")
    assert (before, thought.content, thought.incomplete, thought.closing) == ("a", text, True, "")


@pytest.mark.parametrize("text", ["<", "<thi", "<think", "<think ", "<think id", '<think id="<think', "<think id='a'/"])
def test_text_that_ends_within_an_opening_tag_keeps_the_tag(text: str) -> None:
    assert split(f"a{text}") == [f"a{text}"]


def test_nested_tags_of_the_same_name_belong_to_the_thought() -> None:
    # L45
    assert simplify(split("a<think>b<think>c</think>d<think x=y>e</think></think>f")) == [
        "a",
        ("b<think>c</think>d<think x=y>e</think>",),
        "f",
    ]
    assert simplify(split("<think>a<think/>b</think>c")) == [("a<think/>b",), "c"]


def test_other_tags_within_a_thought_are_ignored() -> None:
    assert simplify(split("<think>a<thought>b</thinking>c</think>d</thought>")) == [
        ("a<thought>b</thinking>c",),
        "d</thought>",
    ]


@pytest.mark.parametrize(
    "text",
    [
        "<b>bold</b> <thinker>x</thinker> <think-tank> <think:a> <_think> < think> <thought.x>",
        "if a < b && c > d: x = List<T>() << 2 <= 3 <- <-> <=> <!-- think --> <?xml?>",
        "<think about it> <thinking, fast and slow> <reasoning id> <think id=> <think =a> <think id=a b>",
        "</think> </thinking>",
        "<think id='a'b='c'> <think id=\"a\"x>",
    ],
)
def test_text_that_is_not_a_thought_tag_is_unchanged(text: str) -> None:
    # L46
    assert split(text) == split(*text) == [text]


@pytest.mark.parametrize(
    "block",
    [
        "```\n<think>x</think>\n```\n",
        "text\n~~~ xml\n<think>x</think>\n```\n~~\n<think>\n~~~~~\n",
        "- list\n    ```py\n    <think>x</think>\n    ```  \n",
        "> ```\n> <think>x</think>\n> ```\n",
        "```\r\n<think>x</think>\r\n```\r\n",
        "````\n```\n<think>x</think>\n```\n````\n",
        "```<think>x</think>\n```\n",
        "```\n``` not yet\n<think>x</think>\n```\n",
    ],
)
def test_tags_in_a_fenced_block_are_text(block: str) -> None:
    # L47
    for found in (split(f"{block}<think>y</think>"), split(*f"{block}<think>y</think>")):
        assert simplify(found) == [block, ("y",)]


@pytest.mark.parametrize("text", ["``\n", "a ```\n", "``` a ``` ", "```a`b\n", "``\n`\n", "~~\n", "`a`\n"])
def test_backticks_that_are_not_a_fence_hide_nothing(text: str) -> None:
    for found in (split(f"{text}<think>y</think>"), split(*f"{text}<think>y</think>")):
        assert simplify(found) == [text, ("y",)]


def test_unclosed_block_extends_to_the_end() -> None:
    text = "```\n<think>x</think>\n\n<think>y</think>"
    assert split(text) == [text]


def test_tag_after_a_backtick_is_text() -> None:
    text = "Put it between `<think>` and `</think>`."
    assert split(text) == split(*text) == [text]


def test_fence_within_a_thought_hides_nothing() -> None:
    assert simplify(split("<think>\n```\n</think>a\n<think>b</think>")) == [("\n```\n",), "a\n", ("b",)]


@given(ANY_TEXT, st.lists(st.integers(0, 1000), max_size=12))
def test_only_the_start_of_a_tag_is_held_back(text: str, cuts: list[int]) -> None:
    # L48
    splitter = TagSplitter()
    for piece in iter_pieces(text, cuts):
        splitter.feed(piece)
    left = [piece for piece in splitter.finish() if not isinstance(piece, Thought)]
    held = "".join(piece if isinstance(piece, str) else piece.text for piece in left)
    assert len(held) <= LONGEST_NAME + 2 or re.match(rf"</?({'|'.join(THOUGHT_TAGS)})[\s/]", held, re.IGNORECASE)


def test_text_after_a_stray_tag_is_not_delayed() -> None:
    # L48
    for stray in ("<T> ", "<think x y ", "a < ", "<thinking! ", "</think> "):
        splitter = TagSplitter()
        splitter.feed(stray)
        assert [splitter.feed(f"{i} ") for i in range(500)] == [[f"{i} "] for i in range(500)]


def test_endless_tag_becomes_text() -> None:
    # L48
    for start in ('<think id="', "<think id=", "<think ", "<think id ", "<think a='b' "):
        splitter = TagSplitter()
        text = start + "x" * MAX_TAG_LENGTH if "=" in start else start + " " * MAX_TAG_LENGTH
        out = splitter.feed(start) + [piece for char in text[len(start) :] for piece in splitter.feed(char)]
        assert "".join(map(str, out)) == text


def test_tag_length_is_limited() -> None:
    longest = "<think id='" + "x" * (MAX_TAG_LENGTH - 13) + "'>"
    assert len(longest) == MAX_TAG_LENGTH
    for found in (split(longest, "a</think>b"), split(*longest, "a</think>b")):
        assert simplify(found) == [("a",), "b"]
    longer = longest.replace("x", "xx", 1)
    for found in (split(longer, "a</think>b"), split(*longer, "a</think>b")):
        assert found == [f"{longer}a</think>b"]


def test_thoughts_in_one_piece_keep_their_order() -> None:
    # L50
    text = "a<think>1</think><think>2</think>b<thought content='3'/>c<reasoning>4</reasoning>"
    assert simplify(split(text)) == ["a", ("1",), ("2",), "b", ("3",), "c", ("4",)]


def test_tag_names_are_configurable() -> None:
    assert simplify(split("<plan_1>a</plan_1><think>b</think>", names=("plan_1",))) == [("a",), "<think>b</think>"]


@pytest.mark.parametrize("names", [("",), ("<think>",), ("a b",), ("think", "1")])
def test_invalid_tag_name_is_rejected(names: tuple[str, ...]) -> None:
    with pytest.raises(ConfigurationError, match="a tag name must match"):
        TagSplitter(names)


def test_text_that_starts_within_a_thought_needs_no_opening_tag() -> None:
    assert simplify(split("\nHmm.\n</think>\n\nHello", thinks_first=True)) == [("\nHmm.\n",), "\n\nHello"]
    assert simplify(split("a</think>b<think>c</think>d", thinks_first=True)) == [("a",), "b", ("c",), "d"]
    assert simplify(split("a<think>b</think>c</think>d", thinks_first=True)) == [("a<think>b</think>c",), "d"]
    assert simplify(split("a</plan>b", names=("Plan",), thinks_first=True)) == [("a",), "b"]


def test_opening_tag_is_accepted_when_the_text_starts_within_a_thought() -> None:
    for whole in (
        "<think>a</think>b",
        " \n<THINK id=x>a</think>b",
        "<reasoning>a</reasoning>b",
        "<think content='a'/>b",
    ):
        for found in (split(whole, thinks_first=True), split(*whole, thinks_first=True)):
            assert "".join(piece for piece in found if isinstance(piece, str)).strip() == "b"
            assert [piece for piece in simplify(found) if isinstance(piece, tuple)] == [("a",)]


def test_text_that_ends_within_its_first_thought_is_incomplete() -> None:
    # L44
    (thought,) = split("Hm", "m <thi", thinks_first=True)
    assert (thought.content, thought.incomplete, thought.raw) == ("Hmm <thi", True, "Hmm <thi")
    assert split(thinks_first=True) == []
    assert split(" ", "\n", thinks_first=True) == [" \n"]


def test_start_of_a_thought_is_not_held_back() -> None:
    splitter = TagSplitter(thinks_first=True)
    assert splitter.feed("\n") == []
    assert splitter.feed("Hm") == [ThoughtText("\nHm")]
    assert splitter.feed("m") == [ThoughtText("m")]


def test_thinks_first_can_be_revoked() -> None:
    splitter = TagSplitter(thinks_first=True)
    assert not splitter.idle
    splitter.skip_leading_thought()
    assert splitter.idle
    assert splitter.feed("a</think>b") == ["a</think>b"]


@given(ANY_TEXT, st.lists(st.integers(0, 1000), max_size=12))
def test_text_that_starts_within_a_thought_is_split_equally_at_any_read_boundaries(text: str, cuts: list[int]) -> None:
    # L41
    whole = split(text, thinks_first=True)
    assert split(*iter_pieces(text, cuts), thinks_first=True) == whole == split(*text, thinks_first=True)
    assert "".join(piece.raw if isinstance(piece, Thought) else piece for piece in whole) == text


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("x<think>a</think>```\n<think>b</think>", ["x", ("a",), "```\n", ("b",)]),
        ("> <think>a</think>```\n<think>b</think>", ["> ", ("a",), "```\n<think>b</think>"]),
        ("<think>a</think>~~~\n<think>b</think>", [("a",), "~~~\n<think>b</think>"]),
        ("x\n<think>a</think> \t```\n<think>b</think>", ["x\n", ("a",), " \t```\n<think>b</think>"]),
    ],
)
def test_line_remains_one_line_without_its_thought(text: str, found: list[Any]) -> None:
    # L47
    assert simplify(split(text)) == simplify(split(*text)) == found


def test_many_spaces_are_not_held_back() -> None:
    splitter = TagSplitter(("think",), thinks_first=True)
    assert splitter.feed(" " * 4_000) == []
    assert splitter.feed(" " * 4_000) == [ThoughtText(" " * 8_000)]
    assert splitter.feed(" ") == [ThoughtText(" ")]
