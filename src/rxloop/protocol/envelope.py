"""Base class of events, with JSON encoding and decoding.

Names are snake case in Python and camelCase in JSON. Timestamps are integer
milliseconds in Python and ISO 8601 UTC in JSON.
"""

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
from rxloop.protocol.model import FrozenDict, FrozenList, is_empty, share_field_names
from rxloop.protocol.visibility import HIDDEN, IMPORTED_RUN, ROOT, Part, public_metadata

PROTOCOL_VERSION = 1

COMMAND_ID = "command_id"
"""Metadata key for the number of the command that caused an event."""

EARLIER_COMMAND_ID = "mail_id"
"""`COMMAND_ID` in events of earlier versions."""

STARTED_CALLS = "started_calls"
"""Metadata key in the first event of a fork, for open calls that the original run started.

The value contains idempotency keys of the original run, by those of the fork. The fork executes the calls again only if
their tool is idempotent, and never if the value is None.
"""

RESERVED_METADATA = frozenset((COMMAND_ID, EARLIER_COMMAND_ID, STARTED_CALLS, IMPORTED_RUN))
"""Metadata keys that applications cannot use."""

Visibility = Literal["public", "internal"]

_MIN_TIME, _MAX_TIME = -62_135_596_800_000, 253_402_300_799_999
"""Range of timestamps in milliseconds, from year 1 to year 9999."""


def check_time(value: int) -> int:
    """Validate a timestamp in milliseconds.

    Raises:
        InvalidEvent: The value is not an integer, or its year is before 1 or after 9999.
    """
    if value.__class__ is not int or not _MIN_TIME <= value <= _MAX_TIME:
        raise InvalidEvent(f"timestamp must be in milliseconds between the years 1 and 9999, got {value!r}")
    return value


def _read_time(value: Any, handler: ValidatorFunctionWrapHandler) -> int:
    if isinstance(value, str):
        try:
            return check_time(round(datetime.fromisoformat(value).timestamp() * 1000))
        except OverflowError as error:
            raise ValueError(f"timestamp must be between the years 1 and 9999, got {value!r}") from error
    return check_time(handler(value))


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def _write_time(value: int) -> str:
    seconds, millis = divmod(value, 1000)
    return f"{_format_seconds(seconds)}.{millis:03}Z"


# Many events share a second, and formatting a date would double the time for writing an event.
@lru_cache(maxsize=64)
def _format_seconds(seconds: int) -> str:
    # `%Y` does not pad years before 1000 to four digits.
    return (_EPOCH + timedelta(seconds=seconds)).isoformat()[:19]


Timestamp = Annotated[
    int,
    WrapValidator(_read_time, json_schema_input_type=str),
    PlainSerializer(_write_time, return_type=str, when_used="json"),
]

_LINE_ENDS = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")

_PUBLIC_TYPES: "set[type[Event]]" = set()
"""Event classes without private fields. Only the metadata of their events may need redaction."""


def check_printable(value: str, name: str) -> str:
    """Validate that an id or kind fits on a single line. It should not be able to forge frames or log lines.

    Raises:
        ConfigurationError: The value contains a line end, another control character or a lone surrogate.
    """
    if value.isprintable() or _LINE_ENDS.search(value) is None:
        return value
    raise ConfigurationError(f"{name} must not contain line ends or other control characters, got {value!r}")


class Event(Wire):
    """Base class of all events.

    The run sets ids, numbers and timestamps on publication. It keeps ids that are already set.
    """

    # Caches: the public form and the encoded frame, shared by all readers. `_normalised` marks checked events, and
    # `_size` is the size of decoded events. Copies of an event have none of them.
    __slots__ = ("_normalised", "_public", "_size", "_wire")

    visibility: ClassVar[Visibility] = "public"
    """Audience of the events: clients (`public`) or this process (`internal`)."""
    public_fields: ClassVar[tuple[str, ...]] = (
        *("version", "kind", "context_id", "task_id", "seq", "sub", "attempt", "timestamp"),
        *("parent_task_id", "agent_path", "step", "branch"),
    )
    """Additional public fields. Unlisted fields are private."""
    public_parts: ClassVar[Mapping[str, Part]] = {"metadata": public_metadata}
    """Functions that extract the public part, by field name."""
    incidental_fields: ClassVar[tuple[str, ...]] = ()
    """Fields to ignore when comparing runs, such as ids and times."""
    marble: ClassVar[str] = "?"
    """Letter for events of this kind in marble diagrams."""
    durable: ClassVar[bool] = True
    """True if events of this kind are logged and numbered by `seq`."""

    version: int = PROTOCOL_VERSION
    kind: str
    context_id: str = ""
    """Id of the conversation."""
    task_id: str = ""
    """Id of the run."""
    seq: int = 0
    """One-based sequence number. Transient events use the last durable event's number."""
    sub: int = 0
    """One-based number of a transient event after `seq`, or 0 for durable events."""
    attempt: int = 0
    """One-based attempt number, incremented when the run is resumed."""
    timestamp: Timestamp = 0
    """Publication time in milliseconds since 1970 (ISO 8601 UTC in JSON)."""
    parent_task_id: str | None = Field(default=None, exclude_if=is_empty)
    """Id of the parent run, if the event belongs to a nested run."""
    agent_path: tuple[str, ...] = Field(default=(), exclude_if=is_empty)
    """Nested agent names, starting with the outermost agent."""
    step: str | None = Field(default=None, exclude_if=is_empty)
    """Model call id."""
    branch: str | None = Field(default=None, exclude_if=is_empty)
    """Branch name. If None, the event belongs to the main branch."""
    metadata: dict[str, Any] = Field(default_factory=dict[str, Any], exclude_if=is_empty)
    """Private data. Clients only receive the value under the key `public`."""

    @property
    def public(self) -> bool:
        """True if clients receive this event. Events of hidden runs stay private; see `to_public`."""
        return self.visibility == "public"

    def to_public(self) -> "Event | None":
        """Return the event without private data, or None if clients must not receive it."""
        cls = type(self)
        if cls in _PUBLIC_TYPES and not self.metadata:
            return self
        if not self.public or HIDDEN in self.metadata:
            return None
        if public_form(cls).plain and cls.public is Event.public:
            _PUBLIC_TYPES.add(cls)
        try:
            return _cached_public_event(self)
        except AttributeError:
            pass
        event = _make_public_event(self)
        # The run has not stamped the event yet if `attempt` is 0, so do not cache the copy.
        if event is not self and self.attempt:
            object.__setattr__(self, "_public", event)
        return event

    def describe(self) -> str:
        """Return a short description for people, or an empty string if the kind already says everything."""
        return ""

    @property
    def root_task_id(self) -> str:
        """Id of the run whose stream contains the event. Nested events return the id of the outermost run."""
        if self.parent_task_id is None:
            return self.task_id
        return self.metadata.get(ROOT, self.parent_task_id)

    @property
    def cursor(self) -> str:
        """Cursor for resuming a stream after this event, `task_id/attempt.seq.sub`. The id is `root_task_id`."""
        return f"{self.root_task_id}/{self.attempt}.{self.seq}.{self.sub}"

    def to_json(self, *, public: bool = False) -> bytes:
        """Encode the event as JSON with camelCase keys.

        Args:
            public: Omit private data. Only the envelope is written if clients must not receive the event.
        """
        if not public:
            return self.__pydantic_serializer__.to_json(self)
        event, excluded = self.to_public(), public_form(type(self)).excluded
        if event is None:
            event, excluded = self, frozenset(type(self).model_fields) - Event.model_fields.keys() | {"metadata"}
        return self.__pydantic_serializer__.to_json(event, exclude=excluded)  # pyright: ignore[reportArgumentType]

    @staticmethod
    def from_json(data: bytes | str, *, strict: bool = False) -> "Event":
        """Decode one event.

        Args:
            data: JSON object, as written by `to_json`.
            strict: Reject unknown kinds and fields. By default, unknown kinds are decoded as `UnknownEvent`, and
                unknown fields are ignored.

        Raises:
            ConfigurationError: The JSON is not a valid event. The message names the kind and field.
        """
        # `to_json` writes the kind first. If we find it there, the JSON is only parsed once.
        prefix = _KIND.match(data) if isinstance(data, bytes) else None
        try:
            kind: Any = prefix[1].decode() if prefix is not None else orjson.loads(data)["kind"]
        except (orjson.JSONDecodeError, KeyError, TypeError) as error:
            raise ConfigurationError(f"an event must be a JSON object with a kind ({error})") from error
        cls = EVENT_TYPES.get(kind) if isinstance(kind, str) else None
        if cls is None and strict:
            raise ConfigurationError(f"kind must be one of {', '.join(EVENT_TYPES)}, got {kind!r}")
        try:
            if cls is None:
                event = UnknownEvent.model_validate_json(data)
            else:
                event = cls.model_validate_json(data, extra="forbid" if strict else "ignore")
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"])
            # If the JSON is malformed, pydantic reports no field.
            fault = f"{where}: {first['msg']}" if where else first["msg"]
            raise ConfigurationError(f"invalid event of kind {kind!r}: {fault}") from error
        event.check_ids()
        if EARLIER_COMMAND_ID in event.metadata:
            names = {EARLIER_COMMAND_ID: COMMAND_ID}
            metadata = {names.get(key, key): value for key, value in event.metadata.items()}
            event = event.model_copy(update={"metadata": metadata})
        object.__setattr__(event, "_size", len(data))
        share_field_names(event)
        return event

    @property
    def decoded_size(self) -> int:
        """Size of the JSON from which this event was decoded, or 0 if it was not decoded."""
        return getattr(self, "_size", 0)

    def check_ids(self) -> None:
        """Validate that all ids fit on a single line.

        Raises:
            ConfigurationError: An id contains a line end or another control character.
        """
        # Check all ids at once, because this method runs for every decoded event.
        own = self.__dict__
        root = own["metadata"].get(ROOT)
        ids = f"{own['context_id']}{own['task_id']}{own['parent_task_id']}{own['step']}{own['branch']}{root}"
        if ids.isprintable():
            return
        for name in ("context_id", "task_id", "parent_task_id", "step", "branch"):
            check_printable(getattr(self, name) or "", f"the {name} of an event of kind {self.kind!r}")
        if isinstance(root, str):
            check_printable(root, f"metadata[{ROOT!r}] of an event of kind {self.kind!r}")

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        """Register the class under its kind. Subclasses may share the kind of a registered class.

        Raises:
            ConfigurationError: The kind belongs to an unrelated class.
        """
        super().__pydantic_init_subclass__(**kwargs)
        kind = cls.model_fields["kind"].default
        if isinstance(kind, str):
            other = EVENT_TYPES.get(check_printable(kind, f"the kind of {cls.__qualname__}"))
            # Classes may be redefined when running a notebook cell again or reloading a module.
            if other is None or (other.__module__, other.__qualname__) == (cls.__module__, cls.__qualname__):
                EVENT_TYPES[kind] = cls
            elif not issubclass(cls, other):
                raise ConfigurationError(
                    f"the kind of {cls.__module__}.{cls.__qualname__} must be unique, got {kind!r} of "
                    f"{other.__module__}.{other.__qualname__}. Use another kind."
                )

    def __repr__(self) -> str:
        # Logs, traces and test reports have many readers, so omit private data.
        own = ", ".join(f"{name}={_shorten(value)}" for name, value in self.__repr_args__())
        step = f" step={self.step}" if self.step else ""
        branch = f" branch={self.branch}" if self.branch else ""
        return f"<{self.kind} {self.attempt}.{self.seq}.{self.sub}{step}{branch}{' ' if own else ''}{own}>"

    __str__ = __repr__

    def __repr_args__(self) -> Iterable[tuple[str | None, Any]]:
        event = self.to_public()
        return [
            (name, getattr(event, name))
            for name, field in type(self).model_fields.items()
            if name not in Event.model_fields
            and event is not None
            and getattr(event, name) != field.get_default(call_default_factory=True)
        ]


# Read the slot directly, because pydantic searches other places first if the slot is empty.
_cached_public_event: Callable[[Event], Event] = vars(Event)["_public"].__get__

_KIND = re.compile(rb'\{"version":\d+,"kind":"([a-z-]+)",')


def _shorten(value: Any) -> str:
    text = repr(value).replace("\n", "\\n")
    return text if len(text) <= 60 else text[:57] + "..."


EVENT_TYPES: dict[str, type[Event]] = {}
"""Event classes by kind."""


class PublicForm(NamedTuple):
    """Fields to remove from the public events of a class."""

    plain: bool
    """True if no field except `metadata` needs redaction."""
    private: dict[str, Any]
    """Private fields and their replacement values."""
    parts: dict[str, Part]
    """Fields with a public part."""
    excluded: frozenset[str] | None
    """Fields omitted from the public JSON, or None if all fields are public."""


@cache
def public_form(cls: type[Event]) -> PublicForm:
    """Collect the public and private fields of an event class."""
    listed: dict[str, Part | None] = {}
    for base in reversed(cls.__mro__):
        if base.__module__.startswith("rxloop."):
            listed.update(dict.fromkeys(vars(base).get("public_fields", ())))
            listed.update(vars(base).get("public_parts", {}))
    # Subclasses outside of rxloop only publish additional fields that they list themselves.
    if not cls.__module__.startswith("rxloop."):
        listed.update(dict.fromkeys(cls.public_fields))
    private = {
        name: None if field.is_required() else field.get_default(call_default_factory=True)
        for name, field in cls.model_fields.items()
        if name not in listed
    }
    parts = {name: part for name, part in listed.items() if part is not None}
    plain = not private and parts.keys() == {"metadata"} and cls.model_config.get("extra") != "allow"
    return PublicForm(plain, private, parts, frozenset(private) or None)


def _make_public_event(event: Event) -> Event:
    """Return a copy without private data, or the event itself if it has none."""
    form = public_form(type(event))
    fields = vars(event)
    changes = {name: _freeze(value) for name, value in form.private.items() if fields[name] != value}
    for name, part in form.parts.items():
        value = part(event)
        if value is not fields[name] and value != fields[name]:
            changes[name] = _freeze(value)
    extra = event.__pydantic_extra__
    if not changes and not extra:
        return event
    copy = event.model_copy(update=changes)
    if extra:
        object.__setattr__(copy, "__pydantic_extra__", {})
    return copy


def _freeze(value: Any) -> Any:
    """Freeze a shared container. Its items are already frozen."""
    if isinstance(value, list):
        return FrozenList(cast("list[Any]", value))
    return FrozenDict(cast("dict[str, Any]", value)) if isinstance(value, dict) else value


class UnknownEvent(Event):
    """Event with an unknown kind. Its fields are stored in `model_extra`."""

    model_config = {"extra": "allow"}
    kind: str

    @field_validator("kind")
    @classmethod
    def _check_kind(cls, value: str) -> str:
        return check_printable(value, "the kind")
