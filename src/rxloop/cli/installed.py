"""Which of the packages that rxloop names are installed."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from importlib import metadata

from rxloop.cli.finding import Finding, Findings, Grade

_REQUIREMENT = re.compile(
    r"""(?P<name>[\w.-]+) (?:\[[^]]*\])? \s* \(? (?P<range>[^;)]*) \)?
        (?: .* extra \s* == \s* ['"] (?P<extra>[\w-]+) ['"])?""",
    re.VERBOSE,
)
_FOR_BUILDERS = ("dev", "docs")
"""Extras for those who work on rxloop itself."""
_BRINGS = {
    "cli": "this command",
    "fast": "another transport (RXLOOP_TRANSPORT=aiohttp)",
    "mcp": "servers for MCP clients",
    "postgres": "runs in Postgres, on many machines",
    "vertex": "models on Google's Vertex, by the account of this machine",
    "yaml": "strategies in YAML, skills",
}


def installed() -> Findings:
    """Check the packages that rxloop needs, and those of its extras."""
    try:
        requirements = metadata.requires("rxloop") or []
    except metadata.PackageNotFoundError:
        yield Finding(
            Grade.note, "rxloop runs from its source and is not installed: its packages are not known", "pip install ."
        )
        return
    parts: dict[str, list[tuple[str, str]]] = {}
    for requirement in requirements:
        found = _REQUIREMENT.match(requirement)
        if found is not None:
            parts.setdefault(found["extra"] or "", []).append((found["name"], found["range"].strip()))
    yield from _needed(parts.pop("", []))
    for extra, packages in sorted(parts.items()):
        if extra not in _FOR_BUILDERS:
            yield _extra(extra, packages)


def _needed(packages: Iterable[tuple[str, str]]) -> Iterator[Finding]:
    lacking = [problem for name, wanted in packages if (problem := _lacks(name, wanted))]
    if lacking:
        yield Finding(Grade.bad, "; ".join(lacking), 'pip install --upgrade "rxloop"')
    yield Finding(Grade.good, ", ".join(f"{name} {_version(name)}" for name, _ in packages if _version(name)))


def _extra(extra: str, packages: Iterable[tuple[str, str]]) -> Finding:
    lacking = [problem for name, wanted in packages if (problem := _lacks(name, wanted))]
    what = f"[{extra}] {_BRINGS.get(extra, '')}".rstrip()
    if lacking:
        # What is there in part, or too old, is not what anybody asked for; but nobody may need it.
        return Finding(Grade.note, f"{what}: {'; '.join(lacking)}", f'pip install "rxloop[{extra}]"')
    return Finding(Grade.good, f"{what}: {', '.join(f'{name} {_version(name)}' for name, _ in packages)}")


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _lacks(name: str, wanted: str) -> str | None:
    """Say why a package is not what is wanted, or None."""
    version = _version(name)
    if version is None:
        return f"{name} is not installed"
    return None if fits(version, wanted) else f"{name} is {version} and should be {wanted}"


def fits(version: str, wanted: str) -> bool:
    """Return whether a version lies within a range such as `>=0.28,<1`, by the numbers at its beginning."""
    number = _number(version)
    for part in filter(None, (text.strip() for text in wanted.split(","))):
        sign = re.match(r"[<>=!~]+", part)
        other = _number(part[sign.end() :] if sign else part)
        match sign[0] if sign else "==":
            case ">=" if number < other:
                return False
            case "<" if number >= other:
                return False
            case "==" if number != other:
                return False
            case _:
                pass
    return True


def _number(version: str) -> tuple[int, ...]:
    found = re.match(r"\s*(\d+(?:\.\d+)*)", version)
    numbers = [int(digits) for digits in found[1].split(".")] if found else []
    while numbers and not numbers[-1]:
        numbers.pop()
    return tuple(numbers)
