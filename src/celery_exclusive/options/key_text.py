"""The text of a key: "x", "u" or "d", the kind of its option, and one task or a string that tasks share.

After ":" follows the key of one task, its name with a hash of the chosen arguments; after "=" a string that
tasks share. So no shared string has the text of a task's key.
"""

from __future__ import annotations

import re
from contextlib import suppress
from functools import lru_cache
from hashlib import blake2b
from typing import Final

from celery_exclusive.errors import OptionError
from celery_exclusive.options.canonical import MOST_CHARACTERS, utf8

_KINDS: Final = "xud"
_LONGEST: Final = 200
"""The most bytes after the kind of a key: with a prefix they fit into the 250 of memcached."""
_HASHED_TEXT: Final = re.compile("~[0-9a-f]{32}")
_HASHED_NAME: Final = re.compile("[~:][0-9a-f]{32}")
"""The end of a name that was cut, or that has a hash of arguments."""
_HASH_OF_ARGUMENTS: Final = re.compile(r":[0-9a-f]{32}\Z")
TOO_LONG: Final = f"a string of more than {MOST_CHARACTERS:,} characters"


@lru_cache(maxsize=1024)
def own_key(task_name: str, kind: str = "x") -> str:
    """Return the key of a whole task, for instance "x:" and its name; keys with arguments begin with it."""
    return f"{kind}:{_fitted(task_name, _LONGEST - 33, _HASHED_NAME)}"


def without_hash(key: str) -> str:
    return _HASH_OF_ARGUMENTS.sub("", key)


def absolute_key(text: str, kind: str = "x") -> str:
    """Return the key of a string that tasks share: for instance "x=", and up to 200 bytes.

    A longer string, one that is no valid Unicode, or that looks like a cut one, is cut and gets a hash.
    """
    if not 0 < len(text) <= MOST_CHARACTERS:
        what = TOO_LONG if text else "an empty string"
        raise OptionError(f"the key of a lock cannot be {what}: name what is locked, like 'repo:17'.")
    return f"{kind}={fitted(text)}"


def possible_keys(text: str) -> tuple[str, ...]:
    """Return the keys that a word may mean: a whole key, a key without its kind, a task, a shared string."""
    named = (key(text, kind) for key in (own_key, absolute_key) for kind in _KINDS) if text else ()
    return (text, *(kind + mark + text for kind in _KINDS for mark in ":="), *named)


def fitted(text: str) -> str:
    """Cut a string to the length of a key; different strings stay different."""
    return _fitted(text, _LONGEST, _HASHED_TEXT)


def _fitted(text: str, longest: int, hashed: re.Pattern[str]) -> str:
    data = utf8(text)
    if len(data) <= longest and not hashed.fullmatch(text[-33:]):
        with suppress(UnicodeDecodeError):  # half a surrogate pair, which no store could keep
            return data.decode()
    return f"{data[: longest - 33].decode(errors='ignore')}~{blake2b(data, digest_size=16).hexdigest()}"
