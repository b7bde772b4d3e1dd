"""What an event holds, as it is when it is published: what can be written and read again, and is frozen."""

from __future__ import annotations

from functools import lru_cache
from operator import itemgetter
from typing import Any

from rxloop.errors import ConfigurationError, InvalidEvent
from rxloop.protocol.envelope import Event
from rxloop.protocol.frozen import EMPTY_DICT
from rxloop.protocol.storable import LARGEST, LEAST, plan_of, readable, settled, storable, takes_any
from rxloop.protocol.unchecked import stamp

# The slot itself: where it is empty, pydantic would look for the name in other places first.
_is_settled, _set_settled = vars(Event)["_settled"].__get__, vars(Event)["_settled"].__set__


def settle(event: Event) -> dict[str, Any]:
    """Make of what an event holds what can be written and read again, and freeze it, in place.

    What is such already stays as it is, and costs a look at each field, once for each event; the ids, which many events
    share and which may be given later, cost one.

    Returns:
        The fields, as `stamp` gives them.

    Raises:
        InvalidEvent: A field cannot be written, or does not have its type; it is named, and the event is not an event.
    """
    fields = stamp(event)
    try:
        if _is_settled(event) and fields["metadata"] is EMPTY_DICT and _printable(*_ids(fields)):
            return fields
    except (AttributeError, KeyError, TypeError):  # It is not, or has no proper ids.
        pass
    try:
        _settle_fields(event, fields, plain=fields["metadata"] is EMPTY_DICT and _plain(fields))
    except KeyError as error:
        raise InvalidEvent(f"{type(event).__name__} has no {error}: make events by their constructor") from error
    _set_settled(event, True)
    return fields


def _settle_fields(event: Event, fields: dict[str, Any], plain: bool) -> None:
    plan = plan_of(type(event))
    for name, default, classes, type_ in plan.beside if plain else plan.fields:
        value = fields[name]
        if value is default:
            continue
        cls = value.__class__
        if cls not in classes:
            fields[name] = settled(fields, name, classes, type_)
        elif cls is str:
            if not value.isascii():
                fields[name] = readable(value)
        elif (cls is int or cls is float) and not LEAST <= value <= LARGEST:
            raise InvalidEvent(f"{fields['kind']}: {name}={value}: give a finite number of 64 bits")
    for name, choices in plan.choices:
        if fields[name] not in choices:
            known = ", ".join(map(str, choices))
            raise InvalidEvent(f"{fields['kind']}: {name}={fields[name]!r} is not one of {known}")
    if plan.own:
        if event.__pydantic_extra__:
            extra = storable(event.__pydantic_extra__, fields["kind"])
            object.__setattr__(event, "__pydantic_extra__", extra)
        _check_own(event)
    if not plain:
        try:
            event.check_ids()
        except ConfigurationError as error:
            raise InvalidEvent(str(error)) from error


_ids = itemgetter("context_id", "task_id", "parent_task_id", "agent_path", "step", "branch")


def _plain(fields: dict[str, Any]) -> bool:
    """Tell whether the ids of an event are known to be printable."""
    try:
        return _printable(*_ids(fields))
    except TypeError:  # what is not an id, and has no hash
        return False


# Typed, since what equals a text need not be one.
@lru_cache(maxsize=256, typed=True)
def _printable(*ids: Any) -> bool:
    return all(name is None or name == () or (name.__class__ is str and name.isprintable()) for name in ids)


def _check_own(event: Event) -> None:
    """See that an event of a kind that is not ours, whose fields may be of any type, can be written and read."""
    kind = vars(event).get("kind")
    try:
        read = event.from_json(event.to_json())
    except Exception as error:
        raise InvalidEvent(
            f"an event of kind {kind!r} cannot be written as JSON and read again: {error}; "
            f"give the fields of {type(event).__name__} types that can"
        ) from error
    known = type(read)
    if known.__module__.startswith("rxloop.") and not (isinstance(event, known) or takes_any(known)):
        raise InvalidEvent(
            f"{kind!r} is the kind of {known.__name__}, as which this {type(event).__name__} would be read: "
            "give the class a kind of its own"
        )
