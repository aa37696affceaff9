"""The settings: flat keys in the configuration of the Celery app, checked in one place.

They are read with `conf.get`: `app.add_defaults` would override the user's values.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Final, cast, get_args

from celery_exclusive.brokers import kinds
from celery_exclusive.core.key_state import LONGEST_OFFER
from celery_exclusive.errors import OptionError, closest, did_you_mean, shown
from celery_exclusive.options.amounts import (
    A_COUNT,
    LONGEST,
    MIN_TTL,
    is_count,
    is_duration,
    is_number,
    seconds,
    seconds_from,
)
from celery_exclusive.options.key_headers import RESERVED
from celery_exclusive.options.option import OnStoreError
from celery_exclusive.seams.celery_app import namespace_of

_ABSENT: Final = object()
_SHORTEST: Final = 0.001
"""Seconds: a store would round less than a microsecond to nothing."""
_SECRET: Final = ("exclusive_store", "exclusive_secret")
"""Settings that may hold a secret: their values are shown nowhere."""
_SHORTEST_SECRET: Final = 16
_LONG_QUEUE: Final = 7_800
"""Seconds for which messages may wait in a queue, as long as the tombstones on Redis last."""
_SWITCHES: Final = ("exclusive_preview", "exclusive_recover", "exclusive_unproven_broker", "exclusive_fast")
_LIKENESS: Final = 0.85
_LENGTHS: Final = range(7, 13)
"""The lengths of words that can be so similar to "exclusive". Most settings of Celery need no comparison."""


@dataclass(frozen=True, slots=True, repr=False)
class Settings:
    """All settings of one app, under the names they have in its configuration.

        app.conf.update(exclusive_store="redis://locks/1", exclusive_ttl=20)
        CELERY_EXCLUSIVE_TTL = 20                # Django, with config_from_object(..., namespace="CELERY")

    docs/reference/settings.md says what each of them means. Times are seconds, or a timedelta.

    Raises OptionError for a value of the wrong type or range, and for any other `exclusive_*` key.
    """

    exclusive_store: str | None = None
    exclusive_prefix: str = "cx"
    exclusive_ttl: float = 30
    exclusive_queued_ttl: float = 86400
    exclusive_offer: float = 5
    exclusive_reap_period: float = 1
    exclusive_tombstone_ttl: float | None = None
    exclusive_store_wait: float = 60
    exclusive_on_store_error: OnStoreError = "raise"
    exclusive_max_waiting: int | None = None
    exclusive_recover: bool | None = None
    exclusive_max_deaths: int | None = 3
    exclusive_key_headers: Sequence[str] = ()
    exclusive_preview: bool = True
    exclusive_broker_id: str | None = None
    exclusive_unproven_broker: bool = False
    exclusive_fast: bool = True
    exclusive_secret: str | Sequence[str | None] | None = None

    def __post_init__(self) -> None:
        for each in fields(self):
            name, value = each.name, seconds(getattr(self, each.name))
            object.__setattr__(self, name, value)
            if not (value is None and (each.default is None or name == "exclusive_max_deaths")):
                _check(name, value)

    def __repr__(self) -> str:
        shown = (f"{each.name}={_shown(each.name, getattr(self, each.name))}" for each in fields(self))
        return f"Settings({', '.join(shown)})"

    @classmethod
    def from_conf(cls, conf: Mapping[str, object]) -> Settings:
        """Read the settings from `app.conf`, which this loads, and refuse unknown `exclusive_*` keys."""
        names = [each.name for each in fields(cls)]
        given: dict[str, Any] = {name: _read(conf, name) for name in names}
        _refuse_unknown_keys(conf, names)
        return cls(**{name: value for name, value in given.items() if value is not _ABSENT})

    @property
    def secrets(self) -> tuple[str | None, ...]:
        """All secrets of `exclusive_secret`. The first one signs, if it is not None. Empty: it is not set."""
        given = self.exclusive_secret
        return () if given is None else (given,) if isinstance(given, str) else tuple(given)


def tombstone_ttl(conf: Mapping[str, object]) -> float:
    """Return the seconds for which the store remembers a finished id: the setting, or as the broker needs.

    Redis and SQS redeliver after their visibility timeout, so the default is twice that and 600 s more. Other
    brokers notice a lost worker at once. But the copies of an offer that has waited in a long queue come one
    after the other for as long again, since only Redis delivers them at once.
    """
    setting = Settings.from_conf(conf).exclusive_tombstone_ttl
    if setting is not None:
        return setting
    timeout = visibility_timeout(conf)
    return _LONG_QUEUE if timeout is None else min(2 * timeout + 600, LONGEST)


def visibility_timeout(conf: Mapping[str, object]) -> float | None:
    """Return the seconds after which Redis or SQS, as examples, redeliver a message; None for others."""
    defaults = [kind.visibility_timeout for kind in kinds(conf).values() if kind.visibility_timeout]
    if not defaults:
        return None
    transport_options = cast("Mapping[str, object]", conf.get("broker_transport_options") or {})
    timeout = transport_options.get("visibility_timeout", defaults[0])
    if not is_number(timeout, at_least=0):
        raise OptionError(
            f"setting broker_transport_options has visibility_timeout {shown(timeout)}, expected a number "
            "of seconds: correct it."
        )
    return timeout


def named_store(conf: Mapping[str, object]) -> str | None:
    """Return the URL that the setting exclusive_store names, if it is one, before all settings are read."""
    value = _read(conf, "exclusive_store")
    return value if isinstance(value, str) else None


def _check(name: str, value: object) -> None:
    if name == "exclusive_secret":
        _check_secret(value)
        return
    if name == "exclusive_store":
        good = isinstance(value, str) and "://" in value
        expected = "a URL with its scheme, such as 'redis://localhost/1', or None"
    elif name == "exclusive_prefix":
        good = isinstance(value, str) and value.isprintable() and bool(value) and not set(value) & set(" {}")
        expected = "a short string without spaces and braces"
    elif name == "exclusive_broker_id":
        good, expected = isinstance(value, str) and bool(value), "a string"
    elif name == "exclusive_key_headers":
        good, expected = _are_headers(value), "a tuple of names of headers, such as ('_schema_name',)"
    elif name in ("exclusive_max_waiting", "exclusive_max_deaths"):
        good, expected = is_count(value), f"{A_COUNT}, or None"
    elif name == "exclusive_on_store_error":
        good, expected = value in get_args(OnStoreError), "'raise' or 'allow'"
    elif name in _SWITCHES:
        good, expected = isinstance(value, bool), "True or False"
    else:
        least = MIN_TTL if name in ("exclusive_ttl", "exclusive_queued_ttl") else _SHORTEST
        most = LONGEST // LONGEST_OFFER if name == "exclusive_offer" else LONGEST
        good, expected = is_duration(value, least, most), seconds_from(least, most)
    if not good:
        raise OptionError(f"setting {name} is {_shown(name, value)}, expected {expected}.")


def _are_headers(value: object) -> bool:
    """Whether these are names of headers that can be part of a key."""
    names = cast("Sequence[object]", value) if isinstance(value, (tuple, list)) else [None]
    for name in names:
        if not isinstance(name, str) or not name.isprintable() or not name or set(name) & set(" =^"):
            return False
        if name in RESERVED:
            raise OptionError(
                f"setting exclusive_key_headers names {name!r}, which Celery or this library puts on every "
                "message: name headers that your own code adds, such as '_schema_name'."
            )
    return len(set(names)) == len(names)


def _shown(name: str, value: object) -> str:
    is_hidden = name in _SECRET and value is not None
    return f"a {type(value).__name__} that is not shown" if is_hidden else shown(value)


def _check_secret(value: object) -> None:
    """Check the secrets; no error shows them, since errors are logged."""
    given = list(cast("list[object]", value)) if isinstance(value, (list, tuple)) else [value]
    ends = {0, len(given) - 1} if len(given) > 1 else set[int]()
    secrets = [it for at, it in enumerate(given) if it is not None or at not in ends]
    if not secrets or not all(isinstance(it, str) and len(it) >= _SHORTEST_SECRET for it in secrets):
        raise OptionError(
            f"setting exclusive_secret must be a string of {_SHORTEST_SECRET} characters or more, or a list "
            "of such strings, of which the first signs, and whose first or last may be None: correct it. "
            "python -c 'import secrets; print(secrets.token_hex())' prints a good one"
        )


def _read(conf: Mapping[str, object], name: str) -> object:
    value = conf.get(name, _ABSENT)  # with a namespace this finds CELERY_EXCLUSIVE_TTL too
    if value is _ABSENT and not namespace_of(conf):
        return conf.get(name.upper(), _ABSENT)  # Celery itself finds capitals only with a namespace
    return value


def _refuse_unknown_keys(conf: Mapping[str, object], names: list[str]) -> None:
    namespace = namespace_of(conf)
    full = [namespace + name for name in names]
    accepted = [*names, *(full if namespace and namespace.islower() else map(str.upper, full))]
    for key in map(str, conf):
        if key not in accepted and _is_meant_for_us(key, namespace):
            known = ", ".join(accepted[len(names) :] if namespace else names)
            hint = did_you_mean(key, accepted)
            raise OptionError(f"setting {key} is unknown to celery-exclusive (it knows {known}){hint}")


def _is_meant_for_us(key: str, namespace: str) -> bool:
    """Whether this key means one of our settings, rightly or wrongly spelled.

    With a namespace the configuration is often all of Django's settings: capitals that do not begin with it
    belong to others. Without one, CELERY_EXCLUSIVE_TTL would silently do nothing.
    """
    lower, prefix = key.lower(), (namespace or "celery_").lower()
    rest = lower.removeprefix(prefix)
    word, underscore, _ = rest.partition("_")  # a single word is an imported module
    is_near = underscore and len(word) in _LENGTHS and closest(word, ["exclusive"], _LIKENESS)
    return bool(is_near) and (rest != lower or key == lower or not namespace)
