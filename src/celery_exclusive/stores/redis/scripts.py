"""Loads the Lua scripts, and checks them against the Python side."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import sha1
from importlib.resources import files
from typing import Any

from celery_exclusive.core import key_state, records, room

_INCLUDE = re.compile(r"^-- include (\w+\.lua)$", re.MULTILINE)
_CONSTANT = re.compile(r"^local ([A-Z_]+) = (\d+|'\w+')$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Script:
    """The whole text of a script, and the name under which a server remembers it."""

    text: str
    name: str


def load(file: str, *, arguments: str, reply: str, fields: Iterable[tuple[str, list[str]]] = ()) -> Script:
    """Read a script, and check that its header names the same arguments and reply, and fields of verbs."""
    text = _read(file)
    headers = [f"-- keys: base\n-- arguments: {arguments}\n-- reply: {reply}\n"]
    headers += [f"-- fields of {verb}: {' '.join(names)}\n" for verb, names in fields if names]
    for header in headers:
        if header not in text:
            raise AssertionError(f"{file} and the code that runs it do not agree on\n{header}")
    text = _INCLUDE.sub(lambda include: _read(include[1]), text)
    for name, value in _CONSTANT.findall(text):
        if value != repr(
            next((vars(it)[name] for it in (key_state, records, room) if name in vars(it)), None)
        ):
            raise AssertionError(f"{file}: {name} is not {value} in core")
    return Script(text, sha1(text.encode(), usedforsecurity=False).hexdigest())


def _read(file: str) -> str:
    return (files("celery_exclusive.stores.redis") / file).read_text(encoding="utf-8")


def run_by(client: Any, script: Script, base: str, *arguments: object, **_: object) -> Any:
    """Run a script through a client of redis-py. The arguments must say already that it may repeat them."""
    words = (int(word) if isinstance(word, bool) else word for word in arguments)
    return client.execute_command("EVAL", script.text, 1, base, *words)
