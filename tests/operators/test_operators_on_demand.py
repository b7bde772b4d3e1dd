"""The operators are imported when they are asked for, and `op` has them whatever was imported before."""

from __future__ import annotations

import ast
import importlib
import inspect
import pickle
import pkgutil
import random
import subprocess
import sys
from types import ModuleType

import pytest

from rxloop import op

MODULES = [found.name for found in pkgutil.walk_packages(op.__path__, "rxloop.operators.") if not found.ispkg]

CHECK = """
import sys, types
from importlib import import_module
for step in sys.argv[1:]:
    exec(step)
from rxloop import op
wrong = [name for name in op.__all__ if isinstance(getattr(op, name), types.ModuleType)]
wrong += [name for name in op.__all__ if getattr(op, name) is not getattr(sys.modules["rxloop.operators"], name)]
for name in op.__all__:
    value = getattr(op, name)
    home = getattr(value, "__module__", "")
    if home.startswith("rxloop.") and value is not getattr(import_module(home), value.__name__):
        wrong.append(name)
print(wrong)
"""

DIRECT = [f"import {name}" for name in MODULES]
NAMED = [f"from {home} import {name}" for home in MODULES if (name := home.rpartition(".")[2]) in op.__all__]


def python(code: str, *arguments: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", code, *arguments], check=True, capture_output=True, text=True
    ).stdout.strip()


@pytest.mark.parametrize(
    "steps",
    [
        [],
        DIRECT,
        DIRECT[::-1],
        NAMED,
        random.Random(1).sample(DIRECT + NAMED, len(DIRECT)),
        ["import rxloop", "rxloop.op.after", *DIRECT],
        ["from rxloop.operators import *", *NAMED],
        ["from rxloop import Agent"],
        ["import importlib, rxloop.operators.views.text", "importlib.reload(sys.modules['rxloop.operators'])", *DIRECT],
    ],
    ids=["nothing", "modules", "backwards", "names", "mixed", "after a use", "star", "agent", "reloaded"],
)
def test_every_name_is_its_function_whatever_was_imported_before(steps: list[str]) -> None:
    assert python(CHECK, *steps) == "[]"


def test_asking_for_one_operator_imports_no_other() -> None:
    code = (
        "import sys; from rxloop import op; op.cost; print(*[m for m in sys.modules if 'rxloop.operators.views.' in m])"
    )
    assert set(python(code).split()) == {"rxloop.operators.views.cost", "rxloop.operators.views.make_view"}


def test_an_agent_imports_no_view_that_it_does_not_need() -> None:
    code = "import sys; from rxloop import Agent; print(*sys.modules)"
    loaded = set(python(code).split())
    assert "rxloop.operators.loop.iterate" in loaded
    unneeded = {
        "rxloop.operators.views.stalled",
        "rxloop.operators.views.thought_graph",
        "rxloop.run.fork",
        "rxloop.pipeline.records",
    }
    assert loaded & {*unneeded, "reactivex.operators", "reactivex.testing", "anyio", "httpx", "difflib"} == set()


def test_what_the_type_checker_sees_of_the_operators_is_what_comes() -> None:
    [block] = [node for node in ast.parse(inspect.getsource(op)).body if isinstance(node, ast.If)]
    seen = {
        alias.name: str(node.module) for node in block.body if isinstance(node, ast.ImportFrom) for alias in node.names
    }
    assert {*seen} == {*op.__all__}
    for name, module in seen.items():
        assert getattr(op, name) is getattr(importlib.import_module(module), name)


def test_the_package_can_be_looked_at() -> None:
    assert {*dir(op)} >= {*op.__all__}
    members = dict(inspect.getmembers(op))
    assert all(members[name] is getattr(op, name) for name in op.__all__)
    assert inspect.getdoc(op)
    assert isinstance(op, ModuleType)
    assert pickle.loads(pickle.dumps(op.text)) is op.text


def test_an_operator_that_there_is_not_is_said_so() -> None:
    with pytest.raises(AttributeError, match=r"module 'rxloop\.operators' has no attribute 'iterat'"):
        _ = op.iterat  # pyright: ignore[reportAttributeAccessIssue, reportUnknownVariableType, reportUnknownMemberType]
    with pytest.raises(ImportError, match="cannot import name 'iterat'"):
        exec("from rxloop.operators import iterat")


def test_what_a_test_puts_in_the_place_of_an_operator_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    mine = object()
    monkeypatch.setattr(op, "text", mine)
    importlib.import_module("rxloop.operators.views.text")
    assert op.text is mine
