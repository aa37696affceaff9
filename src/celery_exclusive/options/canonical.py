"""The canonical form of values: type-tagged, injective, free of the order of dicts.

A value has the form of its JSON round trip through kombu, which a retry, a call by name and a worker see. One
without a stable form is refused: a memory address is never part of a key. So is one that is too large: a
worker also makes keys in its main process, which does nothing else meanwhile.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from datetime import date, datetime, time
from decimal import Decimal
from hashlib import blake2b
from typing import Any, Final, TypeGuard, cast
from uuid import UUID

from kombu.utils.json import object_hook

MOST_CHARACTERS: Final = 500_000
_MOST: Final = {"values": 5_000, "characters": MOST_CHARACTERS}
"""The most that the arguments of a key may have together: items of lists and dicts, and characters."""
HEADER_PATH: Final = "header "
"""The beginning of the path of a refused header."""
_FEW: Final = 20
_SHORT: Final = 10_000
"""Bytes: the few strings of a common call, each below this length, need no count."""
_LONGEST_DECIMAL: Final = 2048
"""Bits. Longer integers are written in hexadecimal: the time for decimals grows with the square of their
length, and Python can be configured to write at most 640 digits, in one process and not in another."""


ABSENT: Final = object()
"""The value of a header that a message does not have. No other value has its key."""


class Refused(Exception):
    """The reason for which there is no key. Callers add the path to the value, and then the task."""

    def __init__(self, problem: str, path: str = "") -> None:
        self.problem, self.path = problem, path


@contextmanager
def at(path: str) -> Generator[None, None, None]:
    try:
        yield
    except Refused as refused:
        refused.path = path + refused.path
        raise
    except RecursionError:
        raise Refused("contains itself, or is nested too deeply: choose other arguments.", path) from None


class _TooLarge(Exception):
    """The arguments of a key have too many values, or characters, together."""


def digest(arguments: Mapping[str, object], headers: Mapping[str, object] | None = None) -> str:
    """Return 32 hex digits that these arguments and headers share with no others."""
    parts = _short_parts(arguments) or _parts(arguments)
    if headers:
        parts = [*parts, *_parts_of_headers(headers)]
    return blake2b(b"".join(parts), digest_size=16).hexdigest()


def _short_parts(arguments: Mapping[str, object]) -> list[bytes] | None:
    """Return the canonical text of a few short strings and numbers, as most calls have; None for others."""
    parts: list[bytes] = []
    if len(arguments) > _FEW:
        return None
    for name in sorted(arguments):
        value = arguments[name]
        known = _SCALARS.get(type(value))
        if known is None:
            return None
        tag, text_of = known
        try:
            by, data = name.encode(), text_of(value).encode()
        except UnicodeEncodeError:
            return None
        if len(data) > _SHORT:
            return None
        parts.append(b"a%d:%b%b%d:%b" % (len(by), by, tag, len(data), data))
    return parts


def _parts(arguments: Mapping[str, object]) -> list[bytes]:
    text = _Text()
    try:
        for name in sorted(arguments):
            with at(name):
                text.add_argument(name, arguments[name])
    except _TooLarge as too_large:
        (unit,) = too_large.args
        largest = max(text.sizes, key=lambda name: text.sizes[name][unit])
        fix = "choose other arguments with by=, or name what is locked with key="
        problem = f"is too large: a key is made of at most {_MOST[unit]:,} {unit}; {fix}."
        raise Refused(problem, largest) from None
    return text.parts


def _parts_of_headers(headers: Mapping[str, object]) -> list[bytes]:
    text = _Text()
    for name in sorted(headers):
        with at(f"{HEADER_PATH}{name!r}"):
            try:
                text.add_header(name, headers[name])
            except _TooLarge:
                raise Refused("is too large for a key: send a short string.") from None
    return text.parts


def _decimal(value: int) -> str:
    return int.__repr__(value) if value.bit_length() <= _LONGEST_DECIMAL else hex(value)


#: Type: tag, text. The first that fits; a subclass, such as an enum, is its value, as in JSON.
_SCALARS: Final[dict[type, tuple[bytes, Callable[[Any], str]]]] = {
    str: (b"s", str.__str__),
    type(None): (b"o", str),
    bool: (b"o", str),
    int: (b"i", _decimal),
    float: (b"d", float.__repr__),
    datetime: (b"T", datetime.isoformat),
    date: (b"D", date.isoformat),
    time: (b"H", time.isoformat),
    Decimal: (b"c", str),
    UUID: (b"u", str),
}
_JSON: Final = (str, int, float, dict, list, tuple)
AS_THEY_ARE: Final = frozenset({*_JSON, bool, type(None)})


class _Text:
    """The canonical text of a key's arguments, while it is written. One too large is refused before."""

    def __init__(self) -> None:
        self.parts: list[bytes] = []
        self.values = self.characters = 0
        self.sizes: dict[str, dict[str, int]] = {}

    def add_argument(self, name: str, value: object) -> None:
        values, characters = self.values, self.characters
        try:
            self._add(b"a", name.encode())
            self._add_value(value)
        finally:
            self.sizes[name] = {"values": self.values - values, "characters": self.characters - characters}

    def add_header(self, name: str, value: object) -> None:
        self._add(b"h", utf8(name))
        if value is ABSENT:
            self._add(b"n", b"")
        else:
            self._add_value(value)

    def _add_value(self, value: object) -> None:
        known = _SCALARS.get(type(value))
        if known:
            return self._add_text(known[0], known[1](value))
        value = unwrap(value)
        tagged = None if _is_list(value) or _is_dict(value) else scalar(value)
        if tagged is not None:
            return self._add_text(*tagged)
        if isinstance(value, bytes):
            self._make_room(characters=len(value))
            return self._add(b"b", value)
        if _is_list(value):
            self._make_room(values=len(value))
            self.parts.append(b"l%d:" % len(value))
            for index, item in enumerate(value):
                self._add_item(str(index), item)
            return None
        if _is_dict(value):
            self._make_room(values=len(value))
        kind, members = _members(value)
        if kind:
            self._make_room(values=len(members))
        self._add(b"m%d:" % len(members), kind.encode())
        for name in sorted(members):
            self._add_text(b"k", name)
            shown = repr(name) if kind else "..."  # the keys of a dict are data of the caller
            self._add_item(shown, members[name])
        return None

    def _add_item(self, shown: str, value: object) -> None:
        try:
            self._add_value(value)
        except Refused as refused:
            refused.path = f"[{shown}]{refused.path}"
            raise

    def _add_text(self, tag: bytes, text: str) -> None:
        self._make_room(characters=len(text))
        self._add(tag, utf8(text))

    def _make_room(self, values: int = 0, characters: int = 0) -> None:
        self.values += values
        self.characters += characters
        if self.values > _MOST["values"] or self.characters > _MOST["characters"]:
            raise _TooLarge("values" if values else "characters")

    def _add(self, tag: bytes, data: bytes) -> None:
        self.parts.append(b"%b%d:%b" % (tag, len(data), data))


def scalar(value: object) -> tuple[bytes, str] | None:
    """Return the tag and the text of a value that is neither a container nor bytes."""
    for base, (tag, text) in _SCALARS.items():
        if issubclass(type(value), base):
            return tag, text(cast("Any", value))
    django = sys.modules.get("django.utils.functional")
    return (b"s", str(value)) if django and isinstance(value, django.Promise) else None  # lazy translation


def _members(value: object) -> tuple[str, dict[str, object]]:
    """Return the class ("" for a dict) and the named parts of a value."""
    if _is_dict(value):
        return "", {_json_key(key): item for key, item in value.items()}
    record = model(value)
    if record:
        return f"model {record[0]}", {"pk": record[1]}
    if is_dataclass(value) and not isinstance(value, type):
        names = [field.name for field in fields(value) if field.compare]
        return f"dataclass {type_name(value)}", {name: getattr(value, name) for name in names}
    fix = "choose other arguments with by=, or use key="
    if type(value).__module__ != "builtins":
        fix = f"give its class an __exclusive_key__() method, {fix}"
    elif isinstance(value, (set, frozenset)):
        fix = f"pass a sorted list, {fix}"
    raise Refused(f"is of type {type_name(value)}, which has no stable string form for a key: {fix}.")


def model(value: object) -> tuple[str, object] | None:
    """Return label and primary key of an instance of a Django model; None for other values."""
    label = getattr(getattr(value, "_meta", None), "label_lower", None)
    if not isinstance(label, str) or isinstance(value, type):
        return None
    pk = getattr(value, "pk", None)
    if pk is None:
        raise Refused(f"is an unsaved {label} (its pk is None), which has no key yet: save it first.")
    return label, pk


def unwrap(value: object) -> object:
    """Return the substitute that the value itself, or kombu, defines for it, or else the value."""
    if _is_dict(value) and len(value) == 2 and value.keys() == {"__type__", "__value__"}:
        return _from_kombu(value)
    if type(value) in AS_THEY_ARE or isinstance(value, type):
        return value
    hook = getattr(value, "__exclusive_key__", None)
    if hook is None and not issubclass(type(value), _JSON):
        hook = getattr(value, "__json__", None)  # kombu asks for it, except from what JSON knows
    if hook is None:
        return value
    try:
        inner = hook()
    except Exception as error:
        text = f"is a {type_name(value)} whose key could not be computed ({type(error).__name__})"
        raise Refused(f"{text}: correct its __exclusive_key__().") from error
    return unwrap(inner)


def _from_kombu(value: dict[object, object]) -> Any:
    try:
        return object_hook(value)  # such a dict is what kombu makes of a UUID or a date
    except Exception:  # noqa: BLE001 - it only looked like one
        return value


def _is_dict(value: object) -> TypeGuard[dict[object, object]]:
    return isinstance(value, dict)


def _is_list(value: object) -> TypeGuard[Sequence[object]]:
    return isinstance(value, (list, tuple))


def _json_key(key: object) -> str:
    if isinstance(key, str):
        return normal(str.__str__(key))
    if isinstance(key, int) and key.bit_length() > _LONGEST_DECIMAL:
        raise Refused("has an int of more than 600 digits among the keys of a dict: make it a string.")
    if key is None or isinstance(key, (int, float)):
        return json.dumps(key)
    raise Refused(
        f"has a {type_name(key)} among the keys of a dict, which JSON cannot express: make it a string."
    )


def normal(text: str) -> str:
    """Join the halves of a surrogate pair to their character, as JSON does."""
    return text if text.isascii() else utf8(text).decode("utf-8", "surrogatepass")


def utf8(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        joined: str = json.loads(json.dumps(text))
        return joined.encode("utf-8", "surrogatepass")


def type_name(value: object) -> str:
    kind = type(value)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
