"""Error messages for invalid command lines, which contain the value and a remedy."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import pytest

from rxloop.cli.commands import COMMANDS
from support.cli_workspace import Workspace

MODEL = ("--model", "ollama:x")
FILES = {
    "bad.json": "{",
    "list.json": "[]",
    "kinds.json": '{"type": "strange"}',
    "empty.txt": "",
    "binary.bin": "\x00\x01\x02",
    "twice.jsonl": '"a"\n"a"\n',
    "numbers.jsonl": "1\n",
    "broken.jsonl": "{\n",
}
USAGES: list[tuple[str, int, tuple[str, ...]]] = [
    # The main command.
    ("rnu", 2, ("'rnu'", "did you mean 'run'", "rxloop --help")),
    ("--nonsense", 2, ("--nonsense", "rxloop --help")),
    # run
    ("run --modle x", 2, ("--modle", "; did you mean --model?", "rxloop run --help")),
    ("run Hi --thoughts loud", 2, ("--thoughts must be one of none, brief, all, got 'loud'",)),
    ("run", 2, ("the question must not be empty", "rxloop run")),
    ("run Hi", 2, ("no model selected", "--model")),
    ("run Hi --model", 2, ("--model", "requires an argument", "rxloop --help")),
    ("run Hi --model nope:x", 2, ("'nope'", "use one of")),
    ("run Hi --model glm-4.7", 2, ("'glm-4.7' needs a provider", "'zai:glm-4.7'")),
    ("run Hi --model openai:", 2, ("'openai:' needs a model", "'openai'")),
    ("run Hi --model zai:glm-4.7", 2, ("missing key", "rxloop keys set ZAI_API_KEY")),
    ("run Hi --model ollama:x --base-url ftp://h", 2, ("'ftp://h'", "http://localhost:8000/v1")),
    ("run Hi --model ollama:x --tools kit", 2, ("'kit'", "module:object")),
    ("run Hi --model ollama:x --tools nope:x", 2, ("'nope'", "no module")),
    ("run Hi --model ollama:x --tools kit:nope", 2, ("'nope'", "kit")),
    ("run Hi --model ollama:x --mcp 'a", 2, ("--mcp", "'a")),
    ("run Hi --agent kit:agent --mcp x", 2, ("--mcp cannot be used with --agent", "its own tools")),
    ("run Hi --agent kit:agent --system x", 2, ("--system cannot be used with --agent", "its own instructions")),
    ("run Hi --agent kit:agent --schema a", 2, ("--schema cannot be used with --agent", "its own output_type")),
    ("run Hi --agent kit:number", 2, ("'kit:number'", "must be an Agent", "got 5")),
    ("run Hi --model ollama:x --strategy magic", 2, ("'magic'", "expected one of")),
    ("run Hi --model ollama:x --strategy mine.json", 2, ("'mine.json'", "--agent")),
    ("run Hi --model ollama:x --system @nope.txt", 2, ("'nope.txt'", "@FILE")),
    ("run Hi --model ollama:x --system ''", 2, ("--system must not be empty", "omit it")),
    ("run Hi --model ollama:x --schema ''", 2, ("--schema must not be empty", "name, age int")),
    ("run Hi --model ollama:x --schema nope.json", 2, ("'nope.json'", "No such file")),
    ("run Hi --model ollama:x --schema bad.json", 2, ("bad.json is not JSON", "list fields")),
    ("run Hi --model ollama:x --schema list.json", 2, ("list.json must be a JSON Schema object", "got list")),
    ("run Hi --model ollama:x --schema 'name, age int, name'", 2, ("the field 'name' is listed twice", "rename")),
    ("run Hi --model ollama:x --schema kinds.json", 2, ("'strange'", "must be one of")),
    ("run Hi --model ollama:x --schema 'age number'", 2, ("'age number'", "str, int, float, bool")),
    ("run Hi --model ollama:x --schema '{}'", 2, ("--schema", '"type"')),
    ("run Hi --model ollama:x -a nope.png", 2, ("'nope.png'", "pass the path of a file")),
    ("run Hi --model ollama:x -a empty.txt", 2, ("'empty.txt' must not be empty", "another file")),
    ("run Hi --model ollama:x -a .", 2, ("'.'", "pass the path of a file")),
    ("run Hi --model ollama:x -a binary.bin", 2, ("'binary.bin'", "report.pdf")),
    ("run Hi --model ollama:x -a - -a -", 2, ("--attach -", "omit one")),
    ("run Hi - --model ollama:x -a -", 2, ("--attach -", "omit one")),
    ("run Hi --model ollama:x --max-cost 1", 2, ("'ollama:x'", "--max-cost", "rxloop models")),
    ("run Hi --model ollama:x --max-cost -1", 2, ("--max-cost", "positive", "-1")),
    ("run Hi --model ollama:x --max-cost lots", 2, ("--max-cost must be a number", "'lots'")),
    ("run Hi --model ollama:x --approve maybe", 2, ("--approve must be one of ask, always, never", "'maybe'")),
    ("run Hi --model ollama:x -c --context x", 2, ("--continue", "--context", "omit one")),
    ("run Hi --model ollama:x -c --no-log", 2, ("--continue", "--no-log")),
    ("run Hi --model ollama:x --context nope", 1, ("'nope'", "rxloop runs")),
    ("run Hi --model ollama:x --db mysql://h/d", 2, ("mysql", "postgresql://")),
    # chat
    ("chat --model nope:x", 2, ("'nope'", "use one of")),
    ("chat --model ollama:x -a -", 2, ("--attach -", "rxloop chat")),
    ("chat extra words", 2, ("extra", "rxloop chat --help")),
    # map
    ("map", 2, ("FILE.jsonl", "rxloop map --help")),
    ("map nope.jsonl --out o.jsonl", 2, ("'nope.jsonl'", "check the path")),
    ("map twice.jsonl --out o.jsonl", 2, ("'a' twice", "--key")),
    ("map numbers.jsonl --out o.jsonl", 2, ("numbers.jsonl, line 1", "--prompt")),
    ("map broken.jsonl --out o.jsonl", 2, ("broken.jsonl, line 1", "not JSON")),
    ("map broken.jsonl --out o.jsonl --concurrency 0", 2, ("--concurrency must be at least 1", "'0'")),
    # Recorded runs.
    ("runs --limit x", 2, ("--limit must be an integer", "'x'", "rxloop runs --help")),
    ("runs --limit -1", 2, ("--limit must be at least 0", "'-1'")),
    ("runs --grep ''", 2, ("--grep must not be empty", "omit it")),
    ("runs --context nope", 1, ("'nope'", "rxloop runs")),
    ("runs --db nope.db", 1, ("nope.db", "rxloop run", "--db")),
    ("show", 2, ("missing argument", "RUN", "rxloop show --help")),
    ("show last more", 2, ("more", "rxloop show --help")),
    ("show nope", 1, ("'nope'", "rxloop runs")),
    ("show last --full", 2, ("--full requires --json",)),
    ("show last --after -1", 2, ("--after must be at least 0", "'-1'")),
    ("replay last --speed x", 2, ("--speed must be a number", "'x'")),
    ("replay last --speed -1", 2, ("speed", "-1")),
    ("replay last --until 0", 2, ("--until must be at least 1", "'0'")),
    ("resume nope", 1, ("'nope'", "rxloop runs")),
    ("resume last --input 1", 2, ("--input", "NAME=JSON", "'1'")),
    ("resume last --input a=b", 2, ("'b' is not JSON", "'a=\"b\"'")),
    ("fork last", 2, ("--at", "rxloop fork --help")),
    ("fork last --at x", 2, ("--at must be an integer", "'x'")),
    ("fork last --at 999 --model ollama:x", 2, ("999", "events")),
    ("diff last", 2, ("RUN", "rxloop diff --help")),
    ("graph last --format png", 2, ("--format must be one of tree, mermaid, dot, json, html", "'png'")),
    ("graph last -o no/where.txt", 2, ("'no/where.txt'", "check the path")),
    ("export nope", 1, ("'nope'", "rxloop runs")),
    ("import nope.jsonl", 2, ("'nope.jsonl'", "check the path")),
    ("import broken.jsonl", 2, ("broken.jsonl, line 1",)),
    ("import empty.txt", 2, ("empty.txt contains no events", "rxloop export")),
    # Experiments, models, keys and the environment.
    ("eval nope:x", 2, ("'nope'", "no module")),
    ("eval kit:number", 2, ("'kit:number'", "must be an Experiment", "got 5")),
    ("eval kit:number --fail-under exact", 2, ("'exact'", "SCORER=MEAN")),
    ("eval kit:number --compare nope.json", 2, ("'nope.json'", "check the path")),
    ("models nope", 2, ("'nope'", "available vendors")),
    ("strategies nope", 2, ("'nope'", "expected one of")),
    ("strategies nope.json", 2, ("nope.json", "cannot be read")),
    ("strategies react --format png", 2, ("--format must be one of text, mermaid, json", "'png'")),
    ("protocol nope", 2, ("'nope'", "the kinds are")),
    ("doctor extra", 2, ("extra", "rxloop doctor --help")),
    ("stats extra", 2, ("extra", "rxloop stats --help")),
    ("keys set nope", 2, ("'nope'", "rxloop models lists all")),
    ("keys set ollama", 2, ("ollama has no API key", "rxloop models ollama")),
    ("keys set zai sk-1", 2, ("the key must not be an argument", "use a pipe")),
    ("keys set zai", 2, ("ZAI_API_KEY must not be empty", "use a pipe")),
    ("keys remove zai", 2, ("ZAI_API_KEY", "rxloop keys list")),
    ("keys nope", 2, ("'nope'", "rxloop keys --help")),
    ("completion csh", 2, ("SHELL must be one of bash, zsh, fish, powershell, got 'csh'",)),
    ("demo --nope", 2, ("--nope", "rxloop demo --help")),
    ("skill extra", 2, ("extra", "rxloop skill --help")),
    ("new", 2, ("NAME", "rxloop new --help")),
    ("new project --template nope", 2, ("--template must be one of agent, service, worker", "'nope'")),
    ("new 1-project", 2, ("'1-project'", "lower-case letters")),
    ("new taken", 2, ("'taken' already exists", "another name")),
    # Servers.
    ("view --port 99999", 2, ("--port must be at most 65535", "'99999'", "rxloop view --help")),
    ("view extra", 2, ("extra", "rxloop view --help")),
    ("serve", 2, ("MODULE:OBJECT", "rxloop serve --help")),
    ("serve nope:agent", 2, ("'nope'", "no module")),
    ("serve kit:number", 2, ("'kit:number'", "got 5")),
    ("serve kit:agent_itself --port 99999", 2, ("--port must be at most 65535", "'99999'")),
    ("serve kit:agent_itself --host 0.0.0.0", 2, ("0.0.0.0", "--keys")),
    ("serve kit:agent_itself --keys nope.txt", 2, ("nope.txt",)),
    ("serve kit:agent_itself --queue", 2, ("a queue requires", "postgresql://")),
    ("worker kit:agent_itself", 2, ("--db", "postgresql://")),
    ("worker kit:agent_itself --concurrency 0", 2, ("--concurrency must be at least 1", "'0'")),
    ("mcp nope:agent", 2, ("'nope'", "no module")),
    ("mcp sequential-thinking --port x", 2, ("--port must be an integer", "'x'")),
]


def parse(line: str) -> list[str]:
    return line.split() if line.count("'") == 1 else shlex.split(line)


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory, offline_url: str) -> Workspace:
    """Workspace with a recorded run and invalid files."""
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("shop")
        patch.chdir(folder)
        for name, text in FILES.items():
            (folder / name).write_text(text)
        (folder / "taken").mkdir()
        workspace = Workspace(folder, offline_url)
        workspace.run("run", "2 + 2")
    workspace.env["RXLOOP_MODEL"] = ""
    return workspace


@pytest.mark.parametrize(("line", "code", "expected"), USAGES, ids=[usage[0] for usage in USAGES])
def test_wrong_usage_exits_with_one_helpful_line(
    shop: Workspace, monkeypatch: pytest.MonkeyPatch, line: str, code: int, expected: tuple[str, ...]
) -> None:
    monkeypatch.chdir(shop.folder)
    sys.modules.pop("kit", None)
    files = {path.name for path in Path.cwd().iterdir()} - {"__pycache__"}
    done = shop.run(*parse(line), code=None, stdin="")
    assert (done.exit_code, done.stdout) == (code, "")
    assert done.stderr.startswith("rxloop: "), done.stderr
    assert done.stderr.count("\n") == 1, done.stderr
    assert [part for part in expected if part not in done.stderr] == [], done.stderr
    assert {path.name for path in Path.cwd().iterdir()} - {"__pycache__"} == files


def test_wrong_usages_cover_all_commands() -> None:
    assert {parse(line)[0] for line, _, _ in USAGES} >= set(COMMANDS)
    assert len(USAGES) >= 60
