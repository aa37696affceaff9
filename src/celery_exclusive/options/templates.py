"""Templates of absolute keys: "repo:{project.pk}".

A template shows values as unchanged strings. Only a value before another one is escaped, and only if it
contains the characters between them: "{owner}:{repo}" gives "a^:b:c" for ("a:b", "c"), and "a:b:c" for ("a",
"b:c"). So one template gives two calls the same string only if each of their values has the same string.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from string import Formatter
from typing import Final

from celery_exclusive.options.canonical import Refused

ESCAPE: Final = "^"
_ITEM: Final = re.compile(r"(\w+)[^\[]*\[['\"]?(\w+)")
"""An item of an argument, as in "data[id]"."""


@dataclass(frozen=True, slots=True)
class Field:
    """A place for a value: the text before it, its dotted name, and the text between it and the next value.

    `until` "": the last value, which ends where the rest of the template begins and needs no escape.
    """

    before: str
    path: tuple[str, ...]
    until: str

    def show(self, value: str) -> str:
        """Return the text of a value, escaped if it contains what ends it."""
        until = self.until
        if not until or (ESCAPE not in value and (value + until).index(until) == len(value)):
            return value
        for char in (ESCAPE, until[0]):
            value = value.replace(char, ESCAPE + char)
        return value


def as_function(name: str, item: object, word: str = "key") -> str:
    """Return the hint to write a function for an item of an argument, which a template cannot name."""
    return f'use a function as {word}=, such as lambda {name}, **_: f"...{{{name}[{item!r}]}}"'


def strings_of(template: str) -> re.Pattern[str]:
    """Return the pattern of the strings that a template can make."""
    fields, rest = parse_template(template)
    return re.compile(".*".join(map(re.escape, [*(field.before for field in fields), rest])), re.DOTALL)


@lru_cache(maxsize=1024)
def parse_template(template: str, word: str = "key") -> tuple[tuple[Field, ...], str]:
    """Split "repo:{project.pk}" into its fields and the text behind, or raise Refused about this `word`."""
    fix = "put names of parameters into braces, as in 'repo:{project_id}' or 'repo:{project.pk}'"
    found: list[tuple[str, tuple[str, ...]]] = []
    before = ""
    try:
        template.encode()
        for text, name, spec, conversion in Formatter().parse(template):
            before += text
            if name is None:
                continue
            path = tuple(name.split("."))
            if spec or conversion or not all(step.isidentifier() for step in path):
                path = ()
                if item := _ITEM.match(name):
                    fix = as_function(item[1], int(item[2]) if item[2].isdecimal() else item[2], word)
            found.append((before, path))
            before = ""
    except ValueError as error:
        raise Refused(f"{word}={template!r} is no template ({error}): {fix}.") from error
    if not all(path for _, path in found):
        raise Refused(f"{word}={template!r} has braces without a name, or with more than a name: {fix}.")
    ends = [text for text, _ in found[1:]]
    if not all(ends):
        raise Refused(
            f"{word}={template!r} has nothing between two values, so that ('ab', 'c') and ('a', 'bc') would "
            "be the same: put other characters between them, as in '{owner}:{repo}'."
        )
    if any(ESCAPE in end for end in ends):
        raise Refused(
            f"{word}={template!r} has {ESCAPE!r} between two values, the escape character of the values: put "
            "another text there, as in '{owner}:{repo}'."
        )
    return tuple(Field(*field, until) for field, until in zip(found, [*ends, ""], strict=False)), before
