"""Lazy imports of the operators."""

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

MODULES = [module.name for module in pkgutil.walk_packages(op.__path__, "rxloop.operators.") if not module.ispkg]

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


def run_python(code: str, *arguments: str) -> str:
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
def test_every_name_is_its_function_after_any_order_of_imports(steps: list[str]) -> None:
    assert run_python(CHECK, *steps) == "[]"


def test_access_to_one_operator_imports_no_other_operator() -> None:
    code = (
        "import sys; from rxloop import op; op.cost; print(*[m for m in sys.modules if 'rxloop.operators.views.' in m])"
    )
    assert set(run_python(code).split()) == {"rxloop.operators.views.cost", "rxloop.operators.views.make_view"}


def test_import_of_agent_loads_no_views() -> None:
    code = "import sys; from rxloop import Agent; print(*sys.modules)"
    loaded = set(run_python(code).split())
    assert "rxloop.operators.loop.iterate" in loaded
    unneeded = {
        "rxloop.operators.views.stalled",
        "rxloop.operators.views.thought_graph",
        "rxloop.run.fork",
        "rxloop.pipeline.records",
    }
    assert loaded & {*unneeded, "reactivex.operators", "reactivex.testing", "anyio", "httpx", "difflib"} == set()


def test_names_for_the_type_checker_are_the_runtime_names() -> None:
    [block] = [node for node in ast.parse(inspect.getsource(op)).body if isinstance(node, ast.If)]
    modules = {
        alias.name: str(node.module) for node in block.body if isinstance(node, ast.ImportFrom) for alias in node.names
    }
    assert {*modules} == {*op.__all__}
    for name, module in modules.items():
        assert getattr(op, name) is getattr(importlib.import_module(module), name)


def test_package_can_be_inspected_and_its_operators_pickled() -> None:
    assert {*dir(op)} >= {*op.__all__}
    members = dict(inspect.getmembers(op))
    assert all(members[name] is getattr(op, name) for name in op.__all__)
    assert inspect.getdoc(op)
    assert isinstance(op, ModuleType)
    assert pickle.loads(pickle.dumps(op.text)) is op.text


def test_unknown_operator_raises_attribute_error_and_import_error() -> None:
    with pytest.raises(AttributeError, match=r"module 'rxloop\.operators' has no attribute 'iterat'"):
        _ = op.iterat  # pyright: ignore[reportAttributeAccessIssue, reportUnknownVariableType, reportUnknownMemberType]
    with pytest.raises(ImportError, match=r"no attribute 'iterat'; did you mean 'iterate'\?"):
        exec("from rxloop.operators import iterat")


def test_operator_replaced_by_a_test_stays_after_an_import(monkeypatch: pytest.MonkeyPatch) -> None:
    mine = object()
    monkeypatch.setattr(op, "text", mine)
    importlib.import_module("rxloop.operators.views.text")
    assert op.text is mine
