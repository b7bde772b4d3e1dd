"""Dicts and lists that nobody can change: what stands on the stream belongs to all who see it."""

from __future__ import annotations

from typing import Any, NoReturn, cast


def _refuse(self: object, *args: Any, **kwargs: Any) -> NoReturn:
    raise TypeError(
        "this is a part of an event, and events do not change: make a copy of it with copy.deepcopy(), and change that"
    )


class FrozenDict(dict[str, Any]):
    """A dict that cannot be changed; a copy of it is an ordinary dict."""

    __slots__ = ()
    __setitem__ = __delitem__ = __ior__ = _refuse  # pyright: ignore[reportAssignmentType, reportIncompatibleMethodOverride]
    clear = pop = popitem = setdefault = update = _refuse  # pyright: ignore[reportAssignmentType, reportIncompatibleMethodOverride]

    def __copy__(self) -> dict[str, Any]:
        return dict(self)

    def __deepcopy__(self, memo: Any) -> dict[str, Any]:
        return thawed(self)

    def __reduce__(self) -> tuple[Any, ...]:
        return FrozenDict, (dict(self),)


class FrozenList(list[Any]):
    """A list that cannot be changed; a copy of it is an ordinary list."""

    __slots__ = ()
    __setitem__ = __delitem__ = __iadd__ = __imul__ = _refuse  # pyright: ignore[reportAssignmentType, reportIncompatibleMethodOverride]
    append = clear = extend = insert = pop = remove = reverse = sort = _refuse  # pyright: ignore[reportAssignmentType, reportIncompatibleMethodOverride]

    def __copy__(self) -> list[Any]:
        return list(self)

    def __deepcopy__(self, memo: Any) -> list[Any]:
        return thawed(self)

    def __reduce__(self) -> tuple[Any, ...]:
        return FrozenList, (list(self),)


EMPTY_DICT, EMPTY_LIST = FrozenDict(), FrozenList()


def thawed(value: Any) -> Any:
    """Copy the value as ordinary dicts and lists, all of them new."""
    if isinstance(value, dict):
        return {key: thawed(item) for key, item in cast("dict[str, Any]", value).items()}
    if isinstance(value, list):
        return [thawed(item) for item in cast("list[Any]", value)]
    return value
