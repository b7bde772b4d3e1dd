"""Completions for slash commands and their arguments."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from prompt_toolkit.completion import CompleteEvent, Completer, Completion, PathCompleter
from prompt_toolkit.document import Document
from typing_extensions import override

from rxloop.cli.chat.commands import COMMANDS
from rxloop.cli.model_access import get_key_state
from rxloop.cli.options import ThoughtLevel
from rxloop.cli.suggestions import suggest_models
from rxloop.providers import PRESETS


class ChatCompleter(Completer):
    """Completer for slash commands, model strings, thought levels and paths."""

    def __init__(self) -> None:
        self._paths = PathCompleter(expanduser=True)

    @override
    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterable[Completion]:
        text = document.text_before_cursor
        if not text.startswith("/") or "\n" in document.text:
            return []
        name, space, argument = text[1:].partition(" ")
        if not space:
            matches = [each for each in COMMANDS if each.startswith(name)]
            return [
                Completion(f"/{each}", -len(text), display_meta=COMMANDS[each].help.removesuffix("."))
                for each in matches
            ]
        match name:
            case "model":
                return _complete(argument, _sort_models(suggest_models(argument)))
            case "thoughts":
                return _complete(argument, ThoughtLevel)
            case "save":
                return self._paths.get_completions(Document(argument), complete_event)
            case _:
                return []


def _complete(text: str, names: Iterable[str]) -> Iterator[Completion]:
    yield from (Completion(name, -len(text)) for name in names if name.startswith(text))


def _sort_models(names: Iterable[str]) -> list[str]:
    """Return model strings sorted by the availability of their keys."""
    usable = {name for name, preset in PRESETS.items() if get_key_state(preset) != "not set"}
    return sorted(names, key=lambda name: name.partition(":")[0] not in usable)
