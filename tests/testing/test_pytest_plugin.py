"""Tests for the pytest plugin, using separate pytest processes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def run_pytest(folder: Path, source: str, *options: str) -> str:
    """Run a test file in a separate project, and return the output of pytest."""
    (folder / "test_mine.py").write_text(source, encoding="utf-8")
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src"), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    command = (sys.executable, "-m", "pytest", "-p", "rxloop_pytest", "-p", "no:cacheprovider", "-W", "error")
    result = subprocess.run(
        (*command, "-q", *options, "test_mine.py"),
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    return result.stdout + result.stderr


def test_fixtures_work_in_another_project(tmp_path: Path) -> None:
    output = run_pytest(
        tmp_path,
        """
import asyncio

import pytest

from rxloop import Agent, op
from rxloop.testing import assert_marbles, frames


def test_a_script(scripted_model):
    model = scripted_model("7 C.")
    assert Agent(model).run_sync("Weather?").output == "7 C."
    assert scripted_model.made == [model]


def test_a_recording(scripted_model, tmp_path):
    path = tmp_path / "run.jsonl"

    async def run_once(model, view):
        await Agent(model).run("Weather?").pipe(view)

    asyncio.run(run_once(scripted_model("7 C."), op.record(path)))
    asyncio.run(run_once(scripted_model.recorded(path), op.compare(path)))
    with pytest.raises(AssertionError, match="7 C."):
        asyncio.run(run_once(scripted_model("8 C."), op.compare(path)))


def test_a_minute_takes_no_time(scripted_model, virtual_time):
    run = Agent(scripted_model(frames("-7 C.|", 60))).run("Weather?")
    assert_marbles(run, "(twl) 120s (cF|)")
    assert virtual_time.now == 120


def test_a_model_that_answers_by_rules(offline_model):
    agent = Agent(offline_model.provider())
    assert "4" in agent.run_sync("What is 2 + 2?").output
    assert offline_model.requests[0]["stream"] is True
""",
    )
    assert "4 passed" in output, output


def test_open_stream_fails_the_test(tmp_path: Path) -> None:
    output = run_pytest(
        tmp_path,
        """
def test_leaves(scripted_model):
    model = scripted_model("7 C.")
    model.open = 1


async def test_wrong(virtual_time):
    pass
""",
    )
    assert "the test left 1 stream of a scripted model open" in output
    assert "virtual_time creates an event loop, so the test must be a plain `def`" in output


def test_plugin_imports_nothing_for_tests_without_its_fixtures(tmp_path: Path) -> None:
    output = run_pytest(
        tmp_path,
        """
import sys


def test_nothing_was_imported(pytestconfig):
    assert pytestconfig.pluginmanager.has_plugin("rxloop_pytest")
    assert [name for name in sys.modules if name.partition(".")[0] in ("rxloop", "reactivex", "httpx", "asyncio")] == []
""",
        "-p",
        "no:unraisableexception",
    )
    assert "1 passed" in output, output


@pytest.mark.parametrize("fixture", ["scripted_model", "virtual_time", "offline_model"])
def test_every_fixture_has_a_description(fixture: str) -> None:
    import rxloop_pytest

    description = getattr(rxloop_pytest, fixture).__doc__ or ""
    assert description.strip()


CHAOS = """
import asyncio

SHOP = '''
from rxloop import Agent
from rxloop.testing import ScriptedModel

def agent():
    return Agent(ScriptedModel(*["Hello."] * 100), thoughts=False, name="shop")
'''


def test_shop(chaos, tmp_path, monkeypatch):
    (tmp_path / "shop.py").write_text(SHOP)
    monkeypatch.syspath_prepend(tmp_path)

    async def run_scenario():
        async with chaos("shop:agent", workers=2) as workers:
            report = await workers.run_scenario("Hi", runs=4, seconds=1, kill_every=None, freeze_every=None)
            report.check()
            assert report.states == {"completed": 4}, report

    asyncio.run(run_scenario())
"""


@pytest.mark.service("postgres")
def test_chaos_fixture_creates_a_database(tmp_path: Path, postgres: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RXLOOP_TEST_PG", postgres)
    assert "1 passed" in run_pytest(tmp_path, CHAOS)
    monkeypatch.delenv("RXLOOP_TEST_PG")
    assert "set RXLOOP_TEST_PG=" in run_pytest(tmp_path, CHAOS, "-rs")
