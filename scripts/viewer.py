"""Build of the viewer page. Bundles the TypeScript sources with esbuild and inlines them into a single HTML file."""

from __future__ import annotations

import argparse
import gzip
import json
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, cast

ROOT = Path(__file__).parents[1]
SOURCES = ROOT / "src/rxloop/server/viewer/page"
PAGE = SOURCES.parent / "page.html"
PACKAGES = ROOT / "build/viewer"
"""Folder of the npm packages, outside of the sources."""
LINK = SOURCES / "node_modules"
SCHEMA = ROOT / "docs/protocol.schema.json"
TYPES = SOURCES / "protocol.d.ts"
"""Types of the events, generated from the schema."""
API_TYPES = SOURCES / "http_api.d.ts"
"""Types of the bodies of the HTTP API, generated from its OpenAPI document."""
BUDGET, LIMIT = 90_000, 100_000
"""Size of the compressed page in bytes: a warning above the first value, a failure above the second one."""


class BuildError(Exception):
    """Failure with a message for developers."""


def is_installed() -> bool:
    """Return True if the packages of the current lock file are installed."""
    lock = PACKAGES / "package-lock.json"
    is_current = lock.is_file() and lock.read_bytes() == (SOURCES / "package-lock.json").read_bytes()
    return is_current and (PACKAGES / "node_modules/.bin/esbuild").exists()


def install() -> None:
    """Install the pinned packages, unless they are already installed.

    Raises:
        BuildError: npm is missing, or failed.
    """
    if not is_installed():
        npm = shutil.which("npm")
        if npm is None:
            raise BuildError("the viewer is built with Node.js and npm, which are not installed")
        shutil.rmtree(PACKAGES, ignore_errors=True)
        PACKAGES.mkdir(parents=True)
        for name in ("package.json", "package-lock.json"):
            shutil.copyfile(SOURCES / name, PACKAGES / name)
        _run([npm, "ci", "--no-fund", "--no-audit", "--silent"], PACKAGES)
    if not LINK.exists():
        LINK.unlink(missing_ok=True)
        LINK.symlink_to(Path("../../../../..") / PACKAGES.relative_to(ROOT) / "node_modules")


def build() -> bytes:
    """Bundle the sources and return the HTML page.

    Raises:
        BuildError: esbuild reported an error, or the page exceeds the size limit.
    """
    with tempfile.TemporaryDirectory() as folder:
        script, style = Path(folder) / "page.js", Path(folder) / "page.css"
        common = ["--bundle", "--minify", "--target=es2022", "--charset=utf8", "--log-level=warning"]
        jsx = ["--jsx=automatic", "--jsx-import-source=preact", "--format=esm", "--legal-comments=eof"]
        _run([_program("esbuild"), "main.tsx", *common, *jsx, f"--outfile={script}"], SOURCES)
        _run([_program("esbuild"), "style.css", *common, f"--outfile={style}"], SOURCES)
        # `</script` would end the element, even inside a string.
        code = script.read_text(encoding="utf-8").strip().replace("</script", "<\\/script")
        rules = style.read_text(encoding="utf-8").strip()
    frame = (SOURCES / "page.html").read_text(encoding="utf-8")
    before, rest = frame.split("/* style */")
    between, after = rest.split("/* script */")
    page = "".join([before, rules, between, code, after]).encode()
    size = len(gzip.compress(page, 9, mtime=0))
    if size > LIMIT:
        raise BuildError(f"the compressed page has {size:,} bytes, more than the limit of {LIMIT:,}")
    if size > BUDGET:
        sys.stderr.write(f"The compressed page has {size:,} bytes, more than the budget of {BUDGET:,}.\n")
    return page


def generate_types() -> dict[Path, str]:
    """Return TypeScript types of the events in the protocol schema, and of the HTTP API, by file.

    Raises:
        BuildError: json2ts reported an error, or rxloop is not installed.
    """
    try:
        from rxloop.server.http.openapi import make_document
    except ImportError as error:
        raise BuildError(f"the types of the HTTP API require rxloop: {error}; run scripts/setup") from error
    schemas = json.dumps(make_document(secured=False)["components"]["schemas"])
    bodies = {"$defs": json.loads(schemas.replace("#/components/schemas/", "#/$defs/"))}
    for definition in bodies["$defs"].values():
        # The API omits optional properties instead of sending null.
        for name in {*definition.get("properties", ())} - {*definition.get("required", ())}:
            definition["properties"][name] = _remove_null(definition["properties"][name])
    events = json.loads(SCHEMA.read_text(encoding="utf-8"))
    return {
        TYPES: _to_typescript({**events, "title": "Event"}, str(SCHEMA.relative_to(ROOT))),
        API_TYPES: _to_typescript({**bodies, "title": "HttpApi"}, "the OpenAPI document"),
    }


def _remove_null(schema: dict[str, Any]) -> dict[str, Any]:
    options = [each for each in schema.get("anyOf", ()) if each.get("type") != "null"]
    rest = {name: each for name, each in schema.items() if name != "anyOf"}
    return {**rest, **options[0]} if len(options) == 1 else {**rest, "anyOf": options} if options else schema


def _to_typescript(schema: dict[str, Any], source: str) -> str:
    stripped = json.dumps({**_strip_documentation(schema), "title": schema["title"]})
    # json2ts only knows tuples of earlier versions of JSON Schema.
    banner = f"// Generated by scripts/viewer from {source}."
    options = ["--unreachableDefinitions", "--no-additionalProperties", "--bannerComment", banner]
    types = _run([_program("json2ts"), *options], ROOT, stripped.replace('"prefixItems"', '"items"'))
    # Repeated for each type.
    return re.sub(r"/\*\*\n \* This interface was referenced by .*?\*/\n", "", types, flags=re.DOTALL)


def _strip_documentation(schema: Any, *, is_named: bool = False) -> Any:
    """Remove descriptions, which make the types three times longer and separate equal types.

    Args:
        schema: Schema, or part of it.
        is_named: True if the keys are names of properties or definitions.
    """
    if isinstance(schema, list):
        return [_strip_documentation(each) for each in cast("list[Any]", schema)]
    if not isinstance(schema, dict):
        return schema
    items = cast("dict[str, Any]", schema)
    kept = {name: each for name, each in items.items() if is_named or name not in ("default", "description", "title")}
    return {
        name: _strip_documentation(each, is_named=not is_named and name in ("properties", "$defs"))
        for name, each in kept.items()
    }


def test() -> None:
    """Check types with tsc and run unit tests with Node.js.

    Raises:
        BuildError: tsc or a test failed.
    """
    _check_types()
    _run([_program("tsc"), "--project", "."], SOURCES)
    with tempfile.TemporaryDirectory() as folder:
        names = sorted(path.name for path in (SOURCES / "tests").glob("*.test.ts"))
        options = ["--bundle", "--platform=node", "--format=esm", "--out-extension:.js=.mjs", "--log-level=warning"]
        _run([_program("esbuild"), *names, *options, f"--outdir={folder}"], SOURCES / "tests")
        _run(["node", "--test", *(f"{folder}/{name.removesuffix('.ts')}.mjs" for name in names)], ROOT)


def watch() -> None:
    """Rebuild the page whenever a source file changes."""
    built = 0.0
    while True:
        changed = max(path.stat().st_mtime for path in SOURCES.rglob("*") if "node_modules" not in path.parts)
        if changed > built:
            built = changed
            try:
                PAGE.write_bytes(build())
                print(f"{time.strftime('%H:%M:%S')} built {PAGE.relative_to(ROOT)}")
            except BuildError as error:
                print(error)
        time.sleep(0.3)


def main() -> int:
    """Build, check or test the page. Returns the exit code."""
    parser = argparse.ArgumentParser("scripts/viewer", description="Build the viewer page.")
    group = parser.add_mutually_exclusive_group()
    group.add_argument("--check", action="store_true", help="compare the page with its sources")
    group.add_argument("--test", action="store_true", help="check the types and run the unit tests")
    group.add_argument("--watch", action="store_true", help="build after each change")
    arguments = parser.parse_args()
    try:
        install()
        if arguments.test:
            test()
            print("types and unit tests passed")
            return 0
        if arguments.watch:
            watch()
        if arguments.check:
            _check_types()
        else:
            for path, types in generate_types().items():
                path.write_text(types, encoding="utf-8")
        page = build()
        if arguments.check and page != PAGE.read_bytes():
            raise BuildError(f"{PAGE.relative_to(ROOT)} differs from its sources; run scripts/viewer")
        PAGE.write_bytes(page)
        print(f"{PAGE.relative_to(ROOT)}: {len(page):,} bytes, {len(gzip.compress(page, 9, mtime=0)):,} compressed")
    except BuildError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


def _check_types() -> None:
    for path, types in generate_types().items():
        if not path.exists() or path.read_text(encoding="utf-8") != types:
            raise BuildError(f"{path.relative_to(ROOT)} differs from its source; run scripts/viewer")


def _program(name: str) -> str:
    return str(PACKAGES / "node_modules/.bin" / name)


def _run(command: list[str], folder: Path, text: str = "") -> str:
    done = subprocess.run(command, check=False, cwd=folder, capture_output=True, text=True, input=text)
    if done.returncode:
        raise BuildError(f"{Path(command[0]).name} failed:\n{done.stdout}{done.stderr}")
    return done.stdout


if __name__ == "__main__":
    sys.exit(main())
