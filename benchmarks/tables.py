"""Benchmark results as Markdown tables."""

from __future__ import annotations

from typing import Any

Spread = dict[str, float]
TITLES = {"bare": "bare httpx", "rxloop-httpx": "rxloop, httpx", "rxloop-aiohttp": "rxloop, aiohttp"}


def markdown(report: dict[str, Any], earlier: dict[str, Any] | None = None) -> str:
    """Format the report, with ratios of an earlier report for comparison."""
    parts = [
        f"Python {report['python']}, {report['machine']}; median (lowest - highest) of {report['rounds']} rounds.",
        _main(report, earlier),
    ]
    if report["features"]:
        parts.append(_features(report, earlier))
    parts += [_imports(report), _packages(report)]
    return "\n\n".join(parts) + "\n"


def _main(report: dict[str, Any], earlier: dict[str, Any] | None) -> str:
    columns: list[str] = [column for column in report["columns"] if column != "bare"]
    header = ["measure", "bare httpx", *(title(column, report) for column in columns), "target"]
    rows = [header if earlier is None else [*header, "was"]]
    for name, row in report["cases"].items():
        costs: dict[str, Spread] = row["costs"]
        cells = [name, amount(costs["bare"], row["unit"]), *(ratio(row["ratios"].get(column)) for column in columns)]
        cells.append(verdicts(row))
        rows.append(cells if earlier is None else [*cells, _format_earlier_ratios(earlier["cases"].get(name), columns)])
    return table(rows)


def _features(report: dict[str, Any], earlier: dict[str, Any] | None) -> str:
    columns: list[str] = [column for column in report["columns"] if column.startswith("rxloop")]
    header = ["feature", *(cell for column in columns for cell in (title(column, report), "each"))]
    rows = [header if earlier is None else [*header, "was"]]
    for name, row in report["features"].items():
        cells = [name]
        for column in columns:
            cells += [ratio(row["ratios"][column]), amount(row["costs"][column], row["unit"])]
        rows.append(
            cells if earlier is None else [*cells, _format_earlier_ratios(earlier["features"].get(name), columns)]
        )
    return table(rows)


def _imports(report: dict[str, Any]) -> str:
    rows = [["import", "CPU, ms", "compared to httpx", "wall, ms", "target, CPU"]]
    for name, clocks in report["imports"].items():
        limit = clocks["target"]
        kept = "" if limit is None else verdict(clocks["cpu"]["median"], limit, 0)
        times, beside = (spread(clocks[clock], 0) for clock in ("cpu", "wall")), spread(clocks["ratio"], 2)
        rows.append([name, next(times), beside, next(times), kept])
    return table(rows)


def _packages(report: dict[str, Any]) -> str:
    rows = [["installed", "packages", "names"]]
    for name, packages in report["packages"].items():
        shown = ", ".join(packages) if len(packages) < 25 else ", ".join([*packages[:12], "..."])
        rows.append([name, str(len(packages)), shown])
    return table(rows)


def title(column: str, report: dict[str, Any]) -> str:
    """Return the heading of a column."""
    version = report["versions"].get(column)
    return TITLES.get(column) or (f"{column} {version}" if version else column)


def verdicts(row: dict[str, Any]) -> str:
    """Describe the targets of columns and whether they are met."""
    targets: dict[str, float] = row["targets"]
    found = [
        verdict(row["ratios"][column]["median"], limit, 2)
        for column, limit in targets.items()
        if column in row["ratios"]
    ]
    return " / ".join(found)


def verdict(value: float, limit: float, digits: int) -> str:
    """Describe whether the displayed value meets the target."""
    return f"<= {limit:g} {'met' if round(value, digits) <= limit else 'MISSED'}"


def ratio(values: Spread | None) -> str:
    """Format a ratio and its range."""
    return "-" if values is None else spread(values, 2)


def amount(values: Spread, unit: str) -> str:
    """Format the cost of a unit."""
    middle = values["median"]
    return f"{middle:.{2 if middle < 10 else 1 if middle < 100 else 0}f} {unit}".strip()


def spread(values: Spread, digits: int) -> str:
    """Format a median and its range."""
    middle, low, high = (values[name] for name in ("median", "low", "high"))
    return f"{middle:.{digits}f} ({low:.{digits}f} - {high:.{digits}f})"


def _format_earlier_ratios(row: dict[str, Any] | None, columns: list[str]) -> str:
    if row is None:
        return ""
    return " / ".join(f"{row['ratios'][column]['median']:.2f}" for column in columns if column in row["ratios"])


def table(rows: list[list[str]]) -> str:
    """Format a Markdown table. All columns except the first are right-aligned."""
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    rule = ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])]
    lines = [rows[0], rule, *rows[1:]]

    def line(cells: list[str]) -> str:
        first, *rest = zip(cells, widths, strict=True)
        return "| " + " | ".join([first[0].ljust(first[1]), *(cell.rjust(width) for cell, width in rest)]) + " |"

    return "\n".join(map(line, lines))
