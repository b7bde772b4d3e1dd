"""The envelope of the event protocol, and how events become JSON and are read again.

Snake case in Python, camelCase in JSON. A timestamp is integer milliseconds in Python and ISO 8601 UTC in JSON.
"""

# The models are frozen, which the type checker does not see: a `kind` may be narrower than the `str` of the base.
# pyright: reportIncompatibleVariableOverride=false

import re
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Annotated, Any, ClassVar, Literal

import orjson
from pydantic import Field, PlainSerializer, ValidationError, ValidatorFunctionWrapHandler, WrapValidator

from rxloop.errors import ConfigurationError, InvalidEvent
from rxloop.messages import Wire

PROTOCOL_VERSION = 1

Visibility = Literal["public", "internal"]


_FIRST, _LAST = -62_135_596_800_000, 253_402_300_799_999
"""The milliseconds that a time may be: from the year 1 to 9999."""


def check_time(value: int) -> int:
    """A time in milliseconds, if it can be written.

    Raises:
        InvalidEvent: It is before the year 1, or after 9999.
    """
    if value.__class__ is not int or not _FIRST <= value <= _LAST:
        raise InvalidEvent(f"{value!r} is no time in milliseconds from the year 1 to 9999")
    return value


def _read_time(value: Any, handler: ValidatorFunctionWrapHandler) -> int:
    if isinstance(value, str):
        try:
            return check_time(round(datetime.fromisoformat(value).timestamp() * 1000))
        except OverflowError as error:
            raise ValueError(f"{value!r} is out of range") from error
    return check_time(handler(value))


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def _write_time(value: int) -> str:
    seconds, millis = divmod(value, 1000)
    return f"{_second(seconds)}.{millis:03}Z"


# Events come many a second, and writing a date costs as much as the rest of an event.
@lru_cache(maxsize=64)
def _second(seconds: int) -> str:
    # `%Y` does not write a year before 1000 with four digits.
    return (_EPOCH + timedelta(seconds=seconds)).isoformat()[:19]


Timestamp = Annotated[
    int,
    WrapValidator(_read_time, json_schema_input_type=str),
    PlainSerializer(_write_time, return_type=str, when_used="json"),
]


_NOT_FOR_CLIENTS: Any = {"provider_state": True, "messages": {"__all__": {"provider_state"}}}


ROOT = "root_task_id"
"""In the metadata of an event of a run that is nested more than once: the outermost run, which numbers the event."""


def absent(value: Any) -> bool:
    """Whether an optional field is left out of the JSON."""
    return not value


class Event(Wire):
    """The envelope of every event.

    Ids, numbers and the time may be left out by whoever makes an event: the run stamps them when it is published,
    and keeps those that are there.
    """

    # Where a reader's encoded frame is kept, so that an event is serialised once however many read it.
    __slots__ = ("_wire",)

    visibility: ClassVar[Visibility] = "public"
    """Whether events of this kind are for clients."""
    durable: ClassVar[bool] = True
    """Whether events of this kind are numbered by `seq` and kept in the log."""

    version: int = PROTOCOL_VERSION
    kind: str
    context_id: str = ""
    """The conversation."""
    task_id: str = ""
    """The run."""
    seq: int = 0
    """The number of a durable event in its run, from 1; of a transient one, that of the last durable event."""
    sub: int = 0
    """The number of a transient event behind `seq`, from 1; 0 for a durable one."""
    attempt: int = 0
    """Counts the resumptions of a run, from 1."""
    timestamp: Timestamp = 0
    """When the event was published, in milliseconds since 1970 (ISO 8601 UTC in JSON)."""
    parent_task_id: str | None = Field(default=None, exclude_if=absent)
    """The run that a nested agent's run belongs to."""
    agent_path: tuple[str, ...] = Field(default=(), exclude_if=absent)
    """The names of the nested agents, outermost first."""
    step: str | None = Field(default=None, exclude_if=absent)
    """The model call that the event belongs to."""
    branch: str | None = Field(default=None, exclude_if=absent)
    """A line of a strategy beside the main one; None on the main line."""
    metadata: dict[str, Any] = Field(default_factory=dict[str, Any], exclude_if=absent)

    @property
    def public(self) -> bool:
        """Whether this event is for clients."""
        return type(self).visibility == "public"

    @property
    def root_task_id(self) -> str:
        """The run on whose stream the event is: its own, or the outermost of those that it is nested in."""
        if self.parent_task_id is None:
            return self.task_id
        return self.metadata.get(ROOT, self.parent_task_id)

    @property
    def cursor(self) -> str:
        """The event's place for readers that come back: `task_id/attempt.seq.sub`, with the id of the root run."""
        return f"{self.root_task_id}/{self.attempt}.{self.seq}.{self.sub}"

    def to_json(self, *, public: bool = False) -> bytes:
        """The event as JSON in camelCase.

        Args:
            public: Leave out what is not for clients (`providerState`).
        """
        return self.__pydantic_serializer__.to_json(self, exclude=_NOT_FOR_CLIENTS if public else None)

    @staticmethod
    def from_json(data: bytes | str, *, strict: bool = False) -> "Event":
        """Read one event.

        Args:
            data: The JSON of one event, as `to_json` writes it.
            strict: Refuse a kind or a field that this version of the protocol does not know. Otherwise an unknown
                kind becomes an `UnknownEvent`, and unknown fields are left out.

        Raises:
            ConfigurationError: The JSON is not an event; the message names the kind and the field.
        """
        # The JSON of `to_json` tells its kind at once, and is then parsed only once.
        known = _KIND.match(data) if isinstance(data, bytes) else None
        try:
            kind: Any = known[1].decode() if known is not None else orjson.loads(data)["kind"]
        except (orjson.JSONDecodeError, KeyError, TypeError) as error:
            raise ConfigurationError(f"not an event: it must be a JSON object with a kind ({error})") from error
        cls = EVENT_TYPES.get(kind) if isinstance(kind, str) else None
        if cls is None and strict:
            raise ConfigurationError(f"unknown kind {kind!r}; the kinds are {', '.join(EVENT_TYPES)}")
        try:
            if cls is None:
                return UnknownEvent.model_validate_json(data)
            return cls.model_validate_json(data, extra="forbid" if strict else "ignore")
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"])
            # No field is named where the JSON itself is broken.
            said = f"{where}: {first['msg']}" if where else first["msg"]
            raise ConfigurationError(f"not an event of kind {kind!r}: {said}") from error

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        """Make the class known by its kind, unless it is a variant of one that is known."""
        super().__pydantic_init_subclass__(**kwargs)
        kind = cls.model_fields["kind"].default
        if isinstance(kind, str):
            EVENT_TYPES.setdefault(kind, cls)

    def __repr__(self) -> str:
        envelope = Event.model_fields
        own = ", ".join(
            f"{name}={_short(getattr(self, name))}"
            for name, field in type(self).model_fields.items()
            if name not in envelope and getattr(self, name) != field.get_default(call_default_factory=True)
        )
        where = f" step={self.step}" if self.step else ""
        branch = f" branch={self.branch}" if self.branch else ""
        return f"<{self.kind} {self.attempt}.{self.seq}.{self.sub}{where}{branch}{' ' if own else ''}{own}>"

    __str__ = __repr__


_KIND = re.compile(rb'\{"version":\d+,"kind":"([a-z-]+)",')


def _short(value: Any) -> str:
    text = repr(value).replace("\n", "\\n")
    return text if len(text) <= 60 else text[:57] + "..."


EVENT_TYPES: dict[str, type[Event]] = {}
"""The class of each kind."""


class UnknownEvent(Event):
    """An event of a kind that this version does not know, read leniently; its fields are in `model_extra`."""

    model_config = {"extra": "allow"}
    kind: str
