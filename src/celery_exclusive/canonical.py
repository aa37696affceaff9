"""The canonical text of values: type-tagged, injective, free of the order of dicts.

The text of a value is the text of its JSON round trip through kombu, since that is what a retry, a call by
name and a worker see. What has no stable text is refused; a memory address is never part of one.
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


class Refused(Exception):
    """Why there is no key. On its way up it learns the path to the value, and at the top the task."""

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


def digest(arguments: Mapping[str, object]) -> str:
    out: list[bytes] = []
    for name in sorted(arguments):
        _emit(b"a", name.encode(), out)
        with at(name):
            _encode(arguments[name], out)
    return blake2b(b"".join(out), digest_size=16).hexdigest()


def _decimal(value: int) -> str:
    try:
        return int.__repr__(value)
    except ValueError:
        return hex(value)  # Python refuses to write more than 4300 decimals


#: Type, tag, text. The first that fits; a subclass, such as an enum, is its value, as in JSON.
_SCALARS: Final[tuple[tuple[type, bytes, Callable[[Any], str]], ...]] = (
    (str, b"s", str.__str__),
    (type(None), b"o", str),
    (bool, b"o", str),
    (int, b"i", _decimal),
    (float, b"d", float.__repr__),
    (datetime, b"T", datetime.isoformat),
    (date, b"D", date.isoformat),
    (time, b"H", time.isoformat),
    (Decimal, b"c", str),
    (UUID, b"u", str),
)
_JSON: Final = (str, int, float, dict, list, tuple)
AS_THEY_ARE: Final = frozenset({*_JSON, bool, type(None)})


def _encode(value: object, out: list[bytes]) -> None:
    value = unwrap(value)
    tagged = scalar(value)
    if tagged is not None:
        return _emit(tagged[0], utf8(tagged[1]), out)
    if isinstance(value, bytes):
        return _emit(b"b", value, out)
    where: object = None
    try:
        if _is_list(value):
            out.append(b"l%d:" % len(value))
            for index, item in enumerate(value):
                where = index
                _encode(item, out)
        else:
            kind, members = _members(value)
            _emit(b"m%d:" % len(members), kind.encode(), out)
            for name in sorted(members):
                where = name
                _emit(b"k", utf8(name), out)
                _encode(members[name], out)
    except Refused as refused:
        refused.path = ("" if where is None else f"[{where!r}]") + refused.path
        raise


def _emit(tag: bytes, data: bytes, out: list[bytes]) -> None:
    out.append(b"%b%d:%b" % (tag, len(data), data))


def scalar(value: object) -> tuple[bytes, str] | None:
    kind, raw = type(value), cast("Any", value)
    for base, tag, text in _SCALARS:
        if issubclass(kind, base):
            return tag, text(raw)
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
    fix = "give its class an __exclusive_key__() method, choose other arguments with by=, or use key="
    raise Refused(f"is a {type_name(value)}, which has no stable text for a key: {fix}.")


def model(value: object) -> tuple[str, object] | None:
    """Return label and primary key of an instance of a Django model, which is known by its looks."""
    label = getattr(getattr(value, "_meta", None), "label_lower", None)
    if not isinstance(label, str) or isinstance(value, type):
        return None
    pk = getattr(value, "pk", None)
    if pk is None:
        raise Refused(f"is an unsaved {label} (its pk is None), which has no key yet: save it first.")
    return label, pk


def unwrap(value: object) -> object:
    """Return what stands for the value, where the value itself or kombu says so."""
    if _is_dict(value) and value.keys() == {"__type__", "__value__"}:
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
        text = f"is a {type_name(value)} that could not tell its key ({type(error).__name__}: {error})"
        raise Refused(f"{text}: correct its __exclusive_key__().") from error
    return unwrap(inner)


def _from_kombu(value: object) -> Any:
    from kombu.utils.json import dumps, loads

    try:
        return loads(dumps(value))  # such a dict is what kombu makes of a UUID or a date
    except Exception:  # noqa: BLE001 - it only looked like one
        return value


def _is_dict(value: object) -> TypeGuard[dict[object, object]]:
    return isinstance(value, dict)


def _is_list(value: object) -> TypeGuard[Sequence[object]]:
    return isinstance(value, (list, tuple))


def _json_key(key: object) -> str:
    if isinstance(key, str):
        return _normal(str.__str__(key))
    if key is None or isinstance(key, (int, float)):
        return json.dumps(key)
    raise Refused(f"has a {type_name(key)} among the keys of a dict, which JSON cannot: make it a text.")


def _normal(text: str) -> str:
    """Join the halves of a surrogate pair to their character, as JSON does."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")
    return text


def utf8(text: str) -> bytes:
    return _normal(text).encode("utf-8", "surrogatepass")


def type_name(value: object) -> str:
    kind = type(value)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
