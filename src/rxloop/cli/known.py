"""What is known of models, for `rxloop models`: window, limit, abilities, prices."""

from __future__ import annotations

from collections.abc import Mapping

from rich.text import Text

from rxloop.cli.table import table
from rxloop.providers import CATALOG, KnownModel, Price
from rxloop.providers.vendors._model_names import host_of, makers_at

_HEAD = ("MODEL", "WINDOW", "OUTPUT", "$ IN", "CACHED", "OUT", "CAN")


def known_at(preset: str) -> dict[str, KnownModel]:
    """The models that are known of those at a preset, under the names of the table."""
    hosts = {preset, *makers_at(preset)}
    return {name: known for name, known in CATALOG.items() if host_of(name) in hosts}


def known_models(models: Mapping[str, KnownModel]) -> Text:
    """Write the models as a table; the prices are dollars for a million tokens."""
    rows = [
        (
            name,
            _short(known.window),
            _short(known.output),
            *(_prices(known.price)),
            ", ".join(known.abilities),
        )
        for name, known in models.items()
    ]
    return table(_HEAD, rows, lambda place, _: "" if place == 0 else "dim")


def in_full(known: KnownModel) -> str:
    """Write all that is known of one model."""
    lines = [f"window {known.window or 0:,} tokens" if known.window else "window not known"]
    lines.append(f"answers up to {known.output:,} tokens" if known.output else "longest answer not known")
    lines.append(f"can: {', '.join(known.abilities) or 'text alone'}")
    if known.price is None:
        lines.append("price not known")
    else:
        lines.append(f"for a million tokens: {_sum(known.price)}")
        if known.price.above is not None:
            tokens, price = known.price.above
            lines.append(f"of a request above {tokens:,} tokens: {_sum(price)}")
    return "".join(f"  {line}\n" for line in lines)


def facts(known: KnownModel) -> dict[str, object]:
    """Write what is known of a model for programs."""
    can = list(known.abilities)
    price = None if known.price is None else _fields(known.price)
    return {"window": known.window, "output": known.output, "can": can, "price": price}


def _fields(price: Price) -> dict[str, object]:
    above = None
    if price.above is not None:
        above = {"tokens": price.above[0], "price": _fields(price.above[1])}
    return {
        "input": price.input,
        "output": price.output,
        "cached": price.cached,
        "cacheWrite": price.cache_write,
        "cacheWriteLong": price.cache_write_long,
        "above": above,
    }


def _prices(price: Price | None) -> tuple[str, str, str]:
    if price is None:
        return "", "", ""
    more = "" if price.above is None else "+"
    return f"{price.input:g}{more}", "" if price.cached is None else f"{price.cached:g}", f"{price.output:g}"


def _sum(price: Price) -> str:
    parts = (
        (price.input, "input"),
        (price.cached, "from the cache"),
        (price.cache_write, "written to the cache"),
        (price.cache_write_long, "written to be kept for long"),
        (price.output, "output"),
    )
    return ", ".join(f"${dollars:g} {what}" for dollars, what in parts if dollars is not None)


def _short(tokens: int | None) -> str:
    if tokens is None:
        return ""
    return f"{tokens / 1_000_000:.3g}M" if tokens >= 1_000_000 else f"{tokens // 1000}k"
