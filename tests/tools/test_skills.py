"""Skills in the open format: offered descriptions, learned content, and protection of other files."""

from __future__ import annotations

import logging
import os
import sys
from contextlib import suppress
from pathlib import Path
from time import thread_time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rxloop import Agent, Limits, MemoryEventLog, skills
from rxloop.errors import ConfigurationError
from rxloop.testing import ScriptedModel, call
from rxloop.tools.skills import MAX_SKILLS, InvalidSkill, SkillFolder, parse_skill

BODY = "# Writing minutes\n\nBegin with who was there. See references/style.md."


def write_skill(folder: Path, name: str, *, text: str | None = None, description: str = "Writes minutes.") -> Path:
    skill = folder / name
    skill.mkdir(parents=True, exist_ok=True)
    front = f"---\nname: {name}\ndescription: {description}\n---\n\n{BODY}\n"
    (skill / "SKILL.md").write_text(front if text is None else text, encoding="utf-8")
    return skill


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    skill = write_skill(tmp_path / "skills", "minutes", description="Writes minutes. Use it after a meeting.")
    (skill / "references").mkdir()
    (skill / "references/style.md").write_text("Short sentences, \u00e5s always.\n", encoding="utf-8")
    write_skill(tmp_path / "skills", "summary", description="Sums up.")
    (tmp_path / "skills/README.md").write_text("Not a skill.")
    (tmp_path / "skills/notes").mkdir()
    (tmp_path / "secret.md").write_text("secret")
    return tmp_path / "skills"


async def collect_answers(folder: Path, *calls: Any) -> list[str]:
    agent = Agent(ScriptedModel(*calls, "Done."), tools=[skills(folder)], limits=Limits(tool_failures=99))
    result = await agent.run("Go.")
    return [message.text for message in result.messages if message.role == "tool"]


async def list_offered_tools(folder: Path) -> dict[str, Any]:
    """Return the offered tools by name."""
    model = ScriptedModel("Hi.")
    await Agent(model, tools=[skills(folder)], thoughts=False).run("Hi.")
    return {definition.name: definition for definition in model.requests[0].tools}


async def test_model_gets_the_names_and_descriptions(folder: Path) -> None:
    learn = (await list_offered_tools(folder))["learn_skill"]
    assert "- minutes: Writes minutes. Use it after a meeting.\n- summary: Sums up." in learn.description


async def test_long_descriptions_are_moved_to_the_parameter(folder: Path) -> None:
    write_skill(folder, "long", description="Long. " * 150)
    learn = (await list_offered_tools(folder))["learn_skill"]
    assert len(learn.description) < 1024
    assert "- minutes: Writes minutes." in learn.parameters["properties"]["name"]["description"]


async def test_learned_skill_stays_in_the_history(folder: Path) -> None:  # L130
    log = MemoryEventLog()
    model = ScriptedModel(call("learn_skill", name="minutes"), "Learned.", "Written.")
    agent = Agent(model, tools=[skills(folder)], log=log)
    await agent.run("Learn.", context_id="c")
    await agent.run("Write.", context_id="c")
    learned = f"{BODY}\n\n[Files of this skill, for read_skill_file: references/style.md]"
    assert [message.text for message in model.requests[-1].messages if message.role == "tool"] == [learned]


async def test_unknown_skill_is_answered_with_the_known_names(folder: Path) -> None:  # L130
    [error] = await collect_answers(folder, call("learn_skill", name="Minute"))
    assert error == "There is no skill 'Minute'. Did you mean 'minutes'? The skills are: minutes, summary."


async def test_skill_file_is_read_in_parts(folder: Path) -> None:
    def read(**fields: Any) -> Any:
        return call("read_skill_file", skill="minutes", path="references/style.md", **fields)

    whole, first, last_part = await collect_answers(folder, read(), read(limit=18), read(offset=17))
    assert whole == "Short sentences, \u00e5s always.\n"
    assert first == "[bytes 0 to 17 of references/style.md; read on with offset=17]\nShort sentences, "
    assert last_part == "[bytes 17 to 29 of references/style.md; the end of it]\n\u00e5s always.\n"


@pytest.mark.parametrize(
    "path",
    [
        *("../../secret.md", "/etc/passwd", "references/../../summary/SKILL.md", "..", ".", "", "a//b", "\0", "C:\\x"),
        *("link.md", "linked/secret.md", "references", "pipe", "deep/link.md", ".hidden/../../secret.md", ".env"),
    ],
)
async def test_files_outside_a_skill_cannot_be_read(folder: Path, path: str) -> None:
    skill = folder / "minutes"
    (skill / "link.md").symlink_to(folder.parent / "secret.md")
    (skill / "linked").symlink_to(folder.parent)
    (skill / "deep").mkdir()
    (skill / "deep/link.md").symlink_to(folder.parent / "secret.md")
    os.mkfifo(skill / "pipe")
    (skill / ".env").write_text("KEY=secret")
    [error] = await collect_answers(folder, call("read_skill_file", skill="minutes", path=path))
    assert "secret" not in error.replace(path, "").replace("secret.md", "")
    assert "is not a path in the skill" in error or "has no file" in error


async def test_read_beyond_the_end_of_a_file_is_empty(folder: Path) -> None:
    for offset in (10**6, 2**63, 10**30):
        [content] = await collect_answers(
            folder, call("read_skill_file", skill="minutes", path="SKILL.md", offset=offset)
        )
        assert content == f"[bytes {offset} to {offset} of SKILL.md; the end of it]\n"


async def test_unknown_skill_file_is_answered_with_the_known_files(folder: Path) -> None:
    [error] = await collect_answers(folder, call("read_skill_file", skill="minutes", path="references/Style.MD"))
    assert "Did you mean 'references/style.md'?" in error
    assert "It has: references/style.md, SKILL.md." in error


async def test_binary_skill_file_is_not_read(folder: Path) -> None:
    (folder / "minutes/logo.png").write_bytes(b"\x89PNG\r\n\x1a\n\0\0")
    (folder / "minutes/empty.txt").write_bytes(b"")
    binary, empty = await collect_answers(
        folder,
        call("read_skill_file", skill="minutes", path="logo.png"),
        call("read_skill_file", skill="minutes", path="empty.txt"),
    )
    assert binary == "'logo.png' is not text."
    assert empty == ""


async def test_change_of_the_folder_is_noticed_at_the_next_model_call(folder: Path) -> None:
    toolset = skills(folder)
    model = ScriptedModel("One.", "Two.", "Three.", "Four.")
    agent = Agent(model, tools=[toolset], thoughts=False)
    await agent.run("1")
    await agent.run("2")
    assert model.requests[0].tools is model.requests[1].tools
    write_skill(folder, "new", description="New.")
    await agent.run("3")
    assert "- new: New." in model.requests[2].tools[0].description
    for path in (*folder.rglob("SKILL.md"),):
        path.unlink()
    await agent.run("4")
    assert model.requests[3].tools == ()


async def test_removed_or_invalid_skill_is_reported(folder: Path) -> None:
    toolset = skills(folder)
    [learn, _] = await toolset.tools(None)  # pyright: ignore[reportArgumentType]
    (folder / "minutes/SKILL.md").write_text("nothing")
    with pytest.raises(Exception, match="front matter"):
        await learn.call({"name": "minutes"}, None)  # pyright: ignore[reportArgumentType]
    (folder / "minutes/SKILL.md").unlink()
    with pytest.raises(Exception, match="cannot be read"):
        await learn.call({"name": "minutes"}, None)  # pyright: ignore[reportArgumentType]


BAD = {
    "no-matter": ("# Just text", "start with front matter"),
    "open": ("---\nname: open\n", "start with front matter"),
    "no-yaml": ("---\nname: [\n---\n", "is not valid YAML"),
    "a-list": ("---\n- a\n---\n", "must have fields"),
    "no-name": ("---\ndescription: d\n---\n", "`name` must be a string, got None"),
    "upper": ("---\nname: Upper\ndescription: d\n---\n", "lowercase letters"),
    "twice": ("---\nname: a--b\ndescription: d\n---\n", "lowercase letters"),
    "ends": ("---\nname: -a\ndescription: d\n---\n", "lowercase letters"),
    "too-long": (f"---\nname: {'a' * 65}\ndescription: d\n---\n", "1 to 64"),
    "path": ("---\nname: ../a\ndescription: d\n---\n", "lowercase letters"),
    "no-description": ("---\nname: a\n---\n", "`description` must be a string .*, got None"),
    "blank": ("---\nname: a\ndescription: ' '\n---\n", "must be a string that says when"),
    "wordy": (f"---\nname: a\ndescription: {'d' * 1025}\n---\n", "at most 1024 characters, got 1025"),
    "much": (f"---\nname: a\ndescription: d\nx: {'x' * 20_000}\n---\n", "at most 16000 characters"),
    "deep": (
        f"---\nname: a\ndescription: d\nx: {'[' * 7_000}\n---\n",
        "not valid YAML: the values are nested too deeply",
    ),
    "alias": (
        "---\nname: &a a\ndescription: *a\n---\n",
        r"not valid YAML: aliases are not supported.* \(line 3, column 14\)",
    ),
    "key-twice": (
        "---\nname: a\nname: b\ndescription: d\n---\n",
        r"the key 'name' appears twice .* \(line 3, column 1\)",
    ),
    "date": ("---\nname: a\ndescription: d\nx: 2026-99-99\n---\n", "is not valid YAML: month must be in 1..12"),
    "code": ("---\nname: !!python/name:os.system\ndescription: d\n---\n", "is not valid YAML"),
    "number": ("---\nname: 7\ndescription: d\n---\n", "must be a string"),
}


@pytest.mark.parametrize("name", BAD)
def test_invalid_skill_is_refused_with_the_reason(name: str) -> None:
    text, reason = BAD[name]
    with pytest.raises(InvalidSkill, match=reason):
        parse_skill(text, name)


@pytest.mark.parametrize(
    ("front", "name", "description"),
    [
        ("name: pdf-1\ndescription: Reads PDFs.", "pdf-1", "Reads PDFs."),
        ("name: pdf\ndescription: >\n  Reads\n  PDFs.\nmetadata:\n  a: b", "pdf", "Reads PDFs."),
        ("name: pdf\ndescription: Use it when: there is a PDF", "pdf", "Use it when: there is a PDF"),
        ('name: \'\u00fcber\'\ndescription: "Q: \\"A\\""\nallowed-tools: Read', "\u00fcber", 'Q: "A"'),
    ],
)
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_valid_skill_is_read(front: str, name: str, description: str, end: str) -> None:
    text = f"\ufeff---\n{front}\n---\nBody".replace("\n", end)
    skill = parse_skill(text, "f")
    assert skill.name == name
    assert skill.description == description


@given(st.text())
def test_parser_raises_only_bad_skill_for_any_text(text: str) -> None:
    for each in (text, f"---\n{text}\n---\n", f"---\nname: a\ndescription: {text}\n---\n"):
        with suppress(InvalidSkill):
            parse_skill(each, "f")


async def test_invalid_skill_affects_no_other_skill_and_is_reported_once(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for name, (text, _) in BAD.items():
        write_skill(folder, name, text=text)
    (folder / "linked").symlink_to(folder / "minutes")
    write_skill(folder, "double", text="---\nname: minutes\ndescription: Another.\n---\n")
    (folder / "latin").mkdir()
    (folder / "latin/SKILL.md").write_bytes(b"---\nname: latin\ndescription: \xe5\n---\n")
    write_skill(folder, "huge", text="---\nname: huge\ndescription: d\n---\n" + "x" * 300_000)
    toolset = skills(folder)
    with caplog.at_level(logging.WARNING, "rxloop"):
        await toolset.tools(None)  # pyright: ignore[reportArgumentType]
        learn, _ = await toolset.tools(None)  # pyright: ignore[reportArgumentType]
    assert learn.definition.description.endswith(
        "- minutes: Writes minutes. Use it after a meeting.\n- summary: Sums up."
    )
    assert learn.definition.description.count("\n- ") == 2
    messages = [record.getMessage() for record in caplog.records]
    assert len(messages) == len({*messages}) == len(BAD) + 4
    for name in (*BAD, "linked", "latin", "huge"):
        assert any(str(folder / name) in message for message in messages), name


async def test_unreadable_link_affects_no_skill(folder: Path) -> None:
    (folder / "long").symlink_to("a" * 300)
    (folder / "loop").symlink_to("loop")
    assert "minutes" in (await list_offered_tools(folder))["learn_skill"].description


async def test_description_with_invalid_unicode_is_repaired(folder: Path) -> None:
    write_skill(folder, "odd", description='"half \\ud83d of it"')
    assert "- odd: half \ufffd of it" in (await list_offered_tools(folder))["learn_skill"].description


def test_unterminated_description_is_parsed_in_linear_time() -> None:
    start = thread_time()
    with pytest.raises(InvalidSkill):
        parse_skill("---\nname: a\ndescription: a" + " \t" * 7_500 + "b: c\n---\n", "a")
    assert thread_time() - start < 1


def test_number_of_skills_is_limited(tmp_path: Path) -> None:
    for number in range(MAX_SKILLS + 50):
        write_skill(tmp_path, f"s{number:03}")
    (tmp_path / f"s{MAX_SKILLS + 20}/SKILL.md").write_text("bad")
    skill_folder = SkillFolder(tmp_path)
    assert len(skill_folder.scan()) == MAX_SKILLS
    [problem] = skill_folder.problems
    assert problem == f"{tmp_path}/s{MAX_SKILLS} and later folders are skipped: the limit is {MAX_SKILLS} skills"


async def test_empty_skill_folder_offers_no_tools(tmp_path: Path) -> None:
    assert await list_offered_tools(tmp_path) == {}


def test_missing_folder_is_refused(folder: Path) -> None:
    with pytest.raises(ConfigurationError, match="must be a folder"):
        skills(folder / "nowhere")
    with pytest.raises(ConfigurationError, match="needs a folder"):
        skills()


def test_missing_pyyaml_is_reported_with_the_extra(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "yaml", None)
    with pytest.raises(ConfigurationError, match=r'pip install "rxloop\[yaml\]"'):
        skills(folder)
