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
    """The text and the thoughts in their order; adjacent texts joined, and each thought checked against its pieces."""
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


def brief(found: list[Any]) -> list[Any]:
    return [(piece.content,) if isinstance(piece, Thought) else piece for piece in found]


def test_a_thought_between_tags_is_taken_out_of_the_text() -> None:
    # L40
    assert brief(split("a <thinking>x</thinking> b")) == ["a ", ("x",), " b"]


@pytest.mark.parametrize("name", THOUGHT_TAGS)
def test_each_of_the_names_opens_a_thought_in_upper_and_lower_case(name: str) -> None:
    assert brief(split(f"a<{name}>x</{name}>b")) == ["a", ("x",), "b"]
    assert brief(split(f"a<{name.upper()}>x</{name.title()}>b")) == ["a", ("x",), "b"]


def test_a_text_cut_anywhere_is_split_the_same() -> None:
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
def test_any_text_cut_anywhere_is_split_the_same(text: str, cuts: list[int]) -> None:
    # L41
    assert split(*iter_pieces(text, cuts)) == split(text) == split(*text)


@given(ANY_TEXT, st.lists(st.integers(0, 1000), max_size=12))
def test_nothing_is_lost_or_doubled_on_any_text(text: str, cuts: list[int]) -> None:
    found = split(*iter_pieces(text, cuts))
    assert "".join(piece.raw if isinstance(piece, Thought) else piece for piece in found) == text


@given(ANY_TEXT, st.lists(st.integers(0, 1000), max_size=12))
def test_a_text_without_an_opening_tag_is_the_same_to_the_letter(text: str, cuts: list[int]) -> None:
    # L46
    text = re.sub(rf"<({'|'.join(THOUGHT_TAGS)})(?=[\s/>])", "<b", text, flags=re.IGNORECASE)
    assert "".join(split(*iter_pieces(text, cuts))) == text


@given(ANY_TEXT, ANY_TEXT, st.lists(st.integers(0, 1000), max_size=12))
def test_what_stands_in_a_fenced_block_is_text_and_what_follows_it_is_not(
    code: str, after: str, cuts: list[int]
) -> None:
    # L47
    block = "````md\n" + code.replace("````", "") + "\n````\n"
    assert brief(split(*iter_pieces(f"{block}<think>x</think>{after}", cuts)))[:2] == [block, ("x",)]


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
def test_the_attributes_of_a_tag_are_read_in_any_quotes_or_none(tag: str, attributes: dict[str, str]) -> None:
    # L42
    before, thought, after = split(f"x{tag}y")
    assert (before, after) == ("x", "y")
    assert thought.attributes == attributes
    assert (thought.content, thought.opening, thought.raw) == (attributes["content"], tag, tag)


@pytest.mark.parametrize("name", ["content", "text", "thought", "Content"])
def test_a_tag_without_a_body_is_the_thought_that_its_attribute_says(name: str) -> None:
    # L42
    assert brief(split(f'a<think {name}="x"/>b')) == ["a", ("x",), "b"]


def fields(attributes: str, name: str = "think") -> dict[str, Any]:
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
def test_attributes_fill_the_fields_of_a_thought_in_any_spelling(attributes: str) -> None:
    # L43
    assert fields(attributes) == {
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
def test_what_does_not_fit_falls_back_and_is_kept_in_the_metadata(attribute: str) -> None:
    # L43
    name, _, value = attribute.partition("=")
    assert fields(attribute) == {"metadata": {name: value.strip("'")}}


def test_an_attribute_that_comes_twice_counts_once() -> None:
    assert fields("related_to=a relatedTo=b") == {"related_to": "a", "metadata": {"relatedTo": "b"}}


@pytest.mark.parametrize("name", ["reasoning", "reflection", "thinking"])
def test_a_tag_that_is_called_as_a_type_says_the_type(name: str) -> None:
    assert fields("id=p", name)["thought_type"] == name
    assert fields("type=decision", name)["thought_type"] == "decision"


@pytest.mark.parametrize("text", ["b", "b</thi", "b</think", "b <think>c</think>", "b ```\n</thinking> <"])
def test_a_text_that_ends_inside_a_thought_leaves_it_incomplete(text: str) -> None:
    # L44
    before, thought = split(f"a<think>{text}")
    assert (before, thought.content, thought.incomplete, thought.closing) == ("a", text, True, "")


@pytest.mark.parametrize("text", ["<", "<thi", "<think", "<think ", "<think id", '<think id="<think', "<think id='a'/"])
def test_a_text_that_ends_inside_an_opening_tag_keeps_it(text: str) -> None:
    assert split(f"a{text}") == [f"a{text}"]


def test_tags_of_the_same_name_inside_a_thought_belong_to_it() -> None:
    # L45
    assert brief(split("a<think>b<think>c</think>d<think x=y>e</think></think>f")) == [
        "a",
        ("b<think>c</think>d<think x=y>e</think>",),
        "f",
    ]
    assert brief(split("<think>a<think/>b</think>c")) == [("a<think/>b",), "c"]


def test_other_tags_inside_a_thought_mean_nothing() -> None:
    assert brief(split("<think>a<thought>b</thinking>c</think>d</thought>")) == [
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
def test_what_is_no_tag_of_ours_stays_to_the_letter(text: str) -> None:
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
        assert brief(found) == [block, ("y",)]


@pytest.mark.parametrize("text", ["``\n", "a ```\n", "``` a ``` ", "```a`b\n", "``\n`\n", "~~\n", "`a`\n"])
def test_backticks_that_are_no_fence_hide_nothing(text: str) -> None:
    for found in (split(f"{text}<think>y</think>"), split(*f"{text}<think>y</think>")):
        assert brief(found) == [text, ("y",)]


def test_a_block_that_is_not_closed_goes_on_to_the_end() -> None:
    text = "```\n<think>x</think>\n\n<think>y</think>"
    assert split(text) == [text]


def test_a_tag_right_behind_a_backtick_is_being_written_about() -> None:
    text = "Put it between `<think>` and `</think>`."
    assert split(text) == split(*text) == [text]


def test_a_fence_inside_a_thought_hides_nothing_in_or_after_it() -> None:
    assert brief(split("<think>\n```\n</think>a\n<think>b</think>")) == [("\n```\n",), "a\n", ("b",)]


@given(ANY_TEXT, st.lists(st.integers(0, 1000), max_size=12))
def test_no_more_is_held_back_than_the_start_of_a_tag(text: str, cuts: list[int]) -> None:
    # L48
    splitter = TagSplitter()
    for piece in iter_pieces(text, cuts):
        splitter.feed(piece)
    left = [piece for piece in splitter.finish() if not isinstance(piece, Thought)]
    held = "".join(piece if isinstance(piece, str) else piece.text for piece in left)
    assert len(held) <= LONGEST_NAME + 2 or re.match(rf"</?({'|'.join(THOUGHT_TAGS)})[\s/]", held, re.IGNORECASE)


def test_text_flows_on_behind_a_stray_tag() -> None:
    # L48
    for stray in ("<T> ", "<think x y ", "a < ", "<thinking! ", "</think> "):
        splitter = TagSplitter()
        splitter.feed(stray)
        assert [splitter.feed(f"{i} ") for i in range(500)] == [[f"{i} "] for i in range(500)]


def test_a_tag_that_never_ends_is_given_up_as_text() -> None:
    # L48
    for start in ('<think id="', "<think id=", "<think ", "<think id ", "<think a='b' "):
        splitter = TagSplitter()
        text = start + "x" * MAX_TAG_LENGTH if "=" in start else start + " " * MAX_TAG_LENGTH
        out = splitter.feed(start) + [piece for char in text[len(start) :] for piece in splitter.feed(char)]
        assert "".join(map(str, out)) == text


def test_a_tag_as_long_as_may_be_counts_and_a_longer_one_does_not() -> None:
    longest = "<think id='" + "x" * (MAX_TAG_LENGTH - 13) + "'>"
    assert len(longest) == MAX_TAG_LENGTH
    for found in (split(longest, "a</think>b"), split(*longest, "a</think>b")):
        assert brief(found) == [("a",), "b"]
    longer = longest.replace("x", "xx", 1)
    for found in (split(longer, "a</think>b"), split(*longer, "a</think>b")):
        assert found == [f"{longer}a</think>b"]


def test_several_thoughts_in_one_piece_keep_their_order() -> None:
    # L50
    text = "a<think>1</think><think>2</think>b<thought content='3'/>c<reasoning>4</reasoning>"
    assert brief(split(text)) == ["a", ("1",), ("2",), "b", ("3",), "c", ("4",)]


def test_the_names_can_be_others() -> None:
    assert brief(split("<plan_1>a</plan_1><think>b</think>", names=("plan_1",))) == [("a",), "<think>b</think>"]


@pytest.mark.parametrize("names", [("",), ("<think>",), ("a b",), ("think", "1")])
def test_a_name_that_is_none_is_refused(names: tuple[str, ...]) -> None:
    with pytest.raises(ConfigurationError, match="a tag name must match"):
        TagSplitter(names)


def test_a_text_that_begins_inside_a_thought_needs_no_opening_tag() -> None:
    assert brief(split("\nHmm.\n</think>\n\nHello", thinks_first=True)) == [("\nHmm.\n",), "\n\nHello"]
    assert brief(split("a</think>b<think>c</think>d", thinks_first=True)) == [("a",), "b", ("c",), "d"]
    assert brief(split("a<think>b</think>c</think>d", thinks_first=True)) == [("a<think>b</think>c",), "d"]
    assert brief(split("a</plan>b", names=("Plan",), thinks_first=True)) == [("a",), "b"]


def test_the_opening_tag_may_come_all_the_same() -> None:
    for whole in (
        "<think>a</think>b",
        " \n<THINK id=x>a</think>b",
        "<reasoning>a</reasoning>b",
        "<think content='a'/>b",
    ):
        for found in (split(whole, thinks_first=True), split(*whole, thinks_first=True)):
            assert "".join(piece for piece in found if isinstance(piece, str)).strip() == "b"
            assert [piece for piece in brief(found) if isinstance(piece, tuple)] == [("a",)]


def test_a_text_that_ends_before_its_first_thought_does_is_that_thought() -> None:
    # L44
    (thought,) = split("Hm", "m <thi", thinks_first=True)
    assert (thought.content, thought.incomplete, thought.raw) == ("Hmm <thi", True, "Hmm <thi")
    assert split(thinks_first=True) == []
    assert split(" ", "\n", thinks_first=True) == [" \n"]


def test_the_first_words_of_a_thought_are_not_held_back() -> None:
    splitter = TagSplitter(thinks_first=True)
    assert splitter.feed("\n") == []
    assert splitter.feed("Hm") == [ThoughtText("\nHm")]
    assert splitter.feed("m") == [ThoughtText("m")]


def test_a_splitter_that_is_told_that_the_answer_comes_first_takes_no_thought_for_granted() -> None:
    splitter = TagSplitter(thinks_first=True)
    assert not splitter.idle
    splitter.skip_leading_thought()
    assert splitter.idle
    assert splitter.feed("a</think>b") == ["a</think>b"]


@given(ANY_TEXT, st.lists(st.integers(0, 1000), max_size=12))
def test_a_text_that_begins_inside_a_thought_is_split_the_same_however_it_is_cut(text: str, cuts: list[int]) -> None:
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
def test_a_line_is_one_line_also_where_a_thought_was_taken_out_of_it(text: str, found: list[Any]) -> None:
    # L47
    assert brief(split(text)) == brief(split(*text)) == found


def test_more_blanks_than_a_tag_may_be_long_are_not_held_back() -> None:
    splitter = TagSplitter(("think",), thinks_first=True)
    assert splitter.feed(" " * 4_000) == []
    assert splitter.feed(" " * 4_000) == [ThoughtText(" " * 8_000)]
    assert splitter.feed(" ") == [ThoughtText(" ")]
