"""The envelope of the event protocol, and how events become JSON and are read again.

Snake case in Python, camelCase in JSON. A timestamp is integer milliseconds in Python and ISO 8601 UTC in JSON.
"""

# The models are frozen, which the type checker does not see: a `kind` may be narrower than the `str` of the base.
# pyright: reportIncompatibleVariableOverride=false

import re
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from functools import cache, lru_cache
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, cast

import orjson
from pydantic import (
    Field,
    PlainSerializer,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    field_validator,
)

from rxloop.errors import ConfigurationError, InvalidEvent
from rxloop.protocol.messages import Wire
from rxloop.protocol.model import FrozenDict, FrozenList, absent
from rxloop.protocol.visibility import HIDDEN, ROOT, Part, public_metadata

PROTOCOL_VERSION = 1

Visibility = Literal["public", "internal"]

_FIRST, _LAST = -62_135_596_800_000, 253_402_300_799_999
"""The milliseconds that a time may be: from the year 1 to 9999."""


def check_time(value: int) -> int:
    """Check that a time in milliseconds can be written.

    Raises:
        InvalidEvent: It is before the year 1, or after 9999.
    """
    if value.__class__ is not int or not _FIRST <= value <= _LAST:
        raise InvalidEvent(f"{value!r} is not a time in milliseconds from the year 1 to 9999")
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

_LINE_ENDS = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")

_PLAIN: "set[type[Event]]" = set()
"""The classes whose events have nothing to hide but metadata: a delta costs one look."""


def check_id(value: str, what: str) -> str:
    """Check that a value can stand on a line: an id or a kind with a line end would forge frames and lines of a log.

    Raises:
        ConfigurationError: It has a line end or another control character in it, or half a character.
    """
    if value.isprintable() or _LINE_ENDS.search(value) is None:
        return value
    raise ConfigurationError(f"{what} is {value!r}: it must have no line ends or other control characters")


class Event(Wire):
    """The envelope of every event.

    Ids, numbers and the time may be left out by whoever makes an event: the run stamps them when it is published,
    and keeps those that are there.
    """

    # Where a reader's encoded frame is kept, so that an event is serialised once however many read it.
    # And the form of it that clients get, so that there is one for all of them. And that it is settled, as no copy is.
    __slots__ = ("_public", "_settled", "_wire")

    visibility: ClassVar[Visibility] = "public"
    """Whether events of this kind are for clients."""
    public_fields: ClassVar[tuple[str, ...]] = (
        *("version", "kind", "context_id", "task_id", "seq", "sub", "attempt", "timestamp"),
        *("parent_task_id", "agent_path", "step", "branch"),
    )
    """The fields that are for clients, beside those of the base class. What is named nowhere does not leave."""
    public_parts: ClassVar[Mapping[str, Part]] = {"metadata": public_metadata}
    """The fields of which clients get a part, each with the function that takes it out of the event."""
    incidental_fields: ClassVar[tuple[str, ...]] = ()
    """The fields that may differ where the same happened, such as ids and times: comparisons leave them out."""
    marble: ClassVar[str] = "?"
    """The letter that stands for events of this kind in a marble line."""
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
    """The number of a transient event after `seq`, from 1; 0 for a durable one."""
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
    """Stays on the server, except for what stands under the key `public`."""

    @property
    def public(self) -> bool:
        """Whether this event is for clients, unless its whole run is hidden; `for_clients` gives what they get."""
        return self.visibility == "public"

    def for_clients(self) -> "Event | None":
        """Show the event as clients may see it: itself if there is nothing to hide, None if it is not for them."""
        cls = type(self)
        if cls in _PLAIN and not self.metadata:
            return self
        if not self.public or HIDDEN in self.metadata:
            return None
        if form_of(cls).plain and cls.public is Event.public:
            _PLAIN.add(cls)
        try:
            return _public_of(self)
        except AttributeError:
            pass
        shown = _public_form(self)
        # One that is not published yet has still to get its numbers.
        if shown is not self and self.attempt:
            object.__setattr__(self, "_public", shown)
        return shown

    def describe(self) -> str:
        """Say in a few words what the event says, for people; nothing where its kind says it all."""
        return ""

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
        """Write the event as JSON in camelCase.

        Args:
            public: As clients may see it; of an event that is not for them the envelope alone.
        """
        if not public:
            return self.__pydantic_serializer__.to_json(self)
        shown, left_out = self.for_clients(), form_of(type(self)).left_out
        if shown is None:
            shown, left_out = self, frozenset(type(self).model_fields) - Event.model_fields.keys() | {"metadata"}
        return self.__pydantic_serializer__.to_json(shown, exclude=left_out)  # pyright: ignore[reportArgumentType]

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
                event = UnknownEvent.model_validate_json(data)
            else:
                event = cls.model_validate_json(data, extra="forbid" if strict else "ignore")
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"])
            # No field is named where the JSON itself is broken.
            said = f"{where}: {first['msg']}" if where else first["msg"]
            raise ConfigurationError(f"not an event of kind {kind!r}: {said}") from error
        event.check_ids()
        return event

    def check_ids(self) -> None:
        """Refuse ids that break a line.

        Raises:
            ConfigurationError: One of them has a line end or another control character in it.
        """
        # One look at all of them, at each event that is read.
        own = self.__dict__
        root = own["metadata"].get(ROOT)
        ids = f"{own['context_id']}{own['task_id']}{own['parent_task_id']}{own['step']}{own['branch']}{root}"
        if ids.isprintable():
            return
        for name in ("context_id", "task_id", "parent_task_id", "step", "branch"):
            check_id(getattr(self, name) or "", f"the {name} of an event of kind {self.kind!r}")
        if isinstance(root, str):
            check_id(root, f"metadata[{ROOT!r}] of an event of kind {self.kind!r}")

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        """Make the class known by its kind, unless it is a variant of one that is known.

        Raises:
            ConfigurationError: Another class has that kind.
        """
        super().__pydantic_init_subclass__(**kwargs)
        kind = cls.model_fields["kind"].default
        if isinstance(kind, str):
            known = EVENT_TYPES.get(check_id(kind, f"the kind of {cls.__qualname__}"))
            # A cell of a notebook that is run again, or a module that is loaded again, makes the class once more.
            if known is None or (known.__module__, known.__qualname__) == (cls.__module__, cls.__qualname__):
                EVENT_TYPES[kind] = cls
            elif not issubclass(cls, known):
                raise ConfigurationError(
                    f"{cls.__module__}.{cls.__qualname__} has the kind {kind!r}, which is that of "
                    f"{known.__module__}.{known.__qualname__}: give the new class a kind of its own"
                )

    def __repr__(self) -> str:
        # As clients may see it: what is shown in logs, traces and test reports is seen by many.
        own = ", ".join(f"{name}={_short(value)}" for name, value in self.__repr_args__())
        where = f" step={self.step}" if self.step else ""
        branch = f" branch={self.branch}" if self.branch else ""
        return f"<{self.kind} {self.attempt}.{self.seq}.{self.sub}{where}{branch}{' ' if own else ''}{own}>"

    __str__ = __repr__

    def __repr_args__(self) -> Iterable[tuple[str | None, Any]]:
        shown = self.for_clients()
        return [
            (name, getattr(shown, name))
            for name, field in type(self).model_fields.items()
            if name not in Event.model_fields
            and shown is not None
            and getattr(shown, name) != field.get_default(call_default_factory=True)
        ]


# The slot itself: where it is empty, pydantic would look for the name in other places first.
_public_of: Callable[[Event], Event] = vars(Event)["_public"].__get__

_KIND = re.compile(rb'\{"version":\d+,"kind":"([a-z-]+)",')


def _short(value: Any) -> str:
    text = repr(value).replace("\n", "\\n")
    return text if len(text) <= 60 else text[:57] + "..."


EVENT_TYPES: dict[str, type[Event]] = {}
"""The class of each kind."""


class Form(NamedTuple):
    """How the public form of a class of events is made."""

    plain: bool
    """Nothing has to be done but for metadata."""
    private: dict[str, Any]
    """The fields that are not public, with what stands in their place."""
    parts: dict[str, Part]
    """The fields that are public in part."""
    left_out: frozenset[str] | None
    """The fields that the public JSON does not have, if there are any."""


@cache
def form_of(cls: type[Event]) -> Form:
    """Work out how the public form of a class of events is made."""
    listed: dict[str, Part | None] = {}
    for base in reversed(cls.__mro__):
        if base.__module__.startswith("rxloop."):
            listed.update(dict.fromkeys(vars(base).get("public_fields", ())))
            listed.update(vars(base).get("public_parts", {}))
    # A class of the user's adds the fields that it names itself.
    if not cls.__module__.startswith("rxloop."):
        listed.update(dict.fromkeys(cls.public_fields))
    private = {
        name: None if field.is_required() else field.get_default(call_default_factory=True)
        for name, field in cls.model_fields.items()
        if name not in listed
    }
    parts = {name: part for name, part in listed.items() if part is not None}
    plain = not private and parts.keys() == {"metadata"} and cls.model_config.get("extra") != "allow"
    return Form(plain, private, parts, frozenset(private) or None)


def _public_form(event: Event) -> Event:
    """Make the public form of an event of which something is public: itself where there is nothing to hide."""
    form = form_of(type(event))
    fields = vars(event)
    changes = {name: _frozen(value) for name, value in form.private.items() if fields[name] != value}
    for name, part in form.parts.items():
        value = part(event)
        if value is not fields[name] and value != fields[name]:
            changes[name] = _frozen(value)
    extra = event.__pydantic_extra__
    if not changes and not extra:
        return event
    shown = event.model_copy(update=changes)
    if extra:
        object.__setattr__(shown, "__pydantic_extra__", {})
    return shown


def _frozen(value: Any) -> Any:
    """Freeze what all clients share; what stands in it is frozen already."""
    if isinstance(value, list):
        return FrozenList(cast("list[Any]", value))
    return FrozenDict(cast("dict[str, Any]", value)) if isinstance(value, dict) else value


class UnknownEvent(Event):
    """An event of a kind that this version does not know, read leniently; its fields are in `model_extra`."""

    model_config = {"extra": "allow"}
    kind: str

    @field_validator("kind")
    @classmethod
    def _is_one_line(cls, value: str) -> str:
        return check_id(value, "the kind")
