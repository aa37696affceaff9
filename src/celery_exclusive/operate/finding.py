"""Finds the key that an operator means: by its spelling, by its task, or by the id of a task."""

from __future__ import annotations

from collections.abc import Iterator
from shlex import quote
from typing import TYPE_CHECKING

from celery_exclusive.core.claim import task_id
from celery_exclusive.display import escaped, printable, unescaped
from celery_exclusive.errors import OptionError, did_you_mean
from celery_exclusive.operate.look import look
from celery_exclusive.operate.parts import has_parts, parts_of
from celery_exclusive.options.key_text import own_key, possible_keys, without_hash
from celery_exclusive.stores.base import states

if TYPE_CHECKING:
    from celery_exclusive.core.operations import Owner
    from celery_exclusive.stores.base import Snapshot, Store


def keys_that_begin(store: Store, prefix: str) -> list[str]:
    shown, written = possible_keys(prefix), possible_keys(unescaped(prefix))
    if store.capabilities.listing or not prefix:
        return [key for key in store.scan() if escaped(key).startswith(shown) or key.startswith(written)]
    return [key for key, snapshot in states(store, written) if snapshot.is_busy]


def find_key(store: Store, text: str) -> str:
    """Return the busy key that `locks ls` shows as this word, or else the key of a task or string.

    OptionError: none is meant, or more than one.
    """
    if key := busy_key(store, text) or key_of_name(store, text):
        return key
    keys = map(escaped, store.scan() if store.capabilities.listing else ())
    names = (name for key in keys for name in (key, key[2:], without_hash(key)[2:]))
    hint = did_you_mean(text, (other for other in names if other not in ("", text)))
    raise OptionError(
        f"no task holds or waits for {text!r} in {printable(store.url)}{hint}"
        + " `locks ls` lists all keys" * store.capabilities.listing
    )


def busy_key(store: Store, text: str) -> str | None:
    """Return the busy key that is spelled so. Raises OptionError if there are several."""
    shown_so = unescaped(text)
    meant = list(dict.fromkeys((*possible_keys(shown_so), *possible_keys(text))))
    seen = zip(meant, store.inspect_all(meant), strict=True)
    busy = [key for key, snapshot in seen if snapshot.is_busy or _has_set_parts(store, key, snapshot)]
    if len(busy) > 1 and shown_so not in busy:
        raise OptionError(f"{text!r} may mean {' or '.join(map(escaped, busy))}: name one of them")
    return busy[0] if busy else None


def _has_set_parts(store: Store, key: str, seen: Snapshot) -> bool:
    return has_parts(seen) and any(part.is_set for part in parts_of(store, key, seen.now))


def key_of_name(store: Store, name: str) -> str | None:
    """Return the busy key of a task whose keys have arguments. Raises OptionError if there are several."""
    if not store.capabilities.listing:
        return None
    written = {name, unescaped(name)}
    names = written | {own_key(it)[2:] for it in written}  # a long name is cut
    of_tasks = ((key, without_hash(key)) for key in store.scan() if key[1:2] == ":")
    keys = [key for key, own in of_tasks if own != key and own[2:] in names]
    if len(keys) > 1:
        raise OptionError(
            f"{name!r} has {len(keys)} keys; name one, as `locks ls {quote(escaped(name))}` lists them"
        )
    return keys[0] if keys else None


def keys_of_id(store: Store, wanted: str) -> list[str]:
    return list(dict.fromkeys(store.keys_of(wanted)))


def holder_of_id(store: Store, key: str, wanted: str) -> Owner | None:
    return next((owner for owner in store.holders(key) if task_id(owner.id) == wanted), None)


def damaged_keys(store: Store) -> list[str]:
    """Return keys whose data are damaged, of those that a look reads."""
    return sorted(key for key, snapshot in look(store).states if snapshot.problem)


def keys_with_place(store: Store, wanted: str) -> Iterator[str]:
    return (key for key, id in store.places() if task_id(id) == wanted)
