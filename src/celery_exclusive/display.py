"""Makes strings from other sources safe to show: none controls the terminal or forges a log line."""

from __future__ import annotations

import logging
import re

_ESCAPE = re.compile(r"\\(\\|x[0-9a-f]{2}|u[0-9a-f]{4}|U00(?:0[0-9a-f]|10)[0-9a-f]{4})")

_UNITS = ((86_400, "d", 3_600, "h"), (3_600, "h", 60, "m"), (60, "m", 1, "s"))


def printable(text: str) -> str:
    """Escape unprintable characters, but not backslashes: for strings that are not read back."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else _escape(ord(char)) for char in text)


def escaped(text: str) -> str:
    """Escape unprintable characters and the backslash, as Python does; `unescaped` reverses it."""
    return printable(text.replace("\\", r"\\"))


def unescaped(text: str) -> str:
    r"""Reverse `escaped`; a backslash that begins no escape sequence stays."""
    return _ESCAPE.sub(lambda found: "\\" if found[1] == "\\" else chr(int(found[1][1:], 16)), text)


def safe_url(url: str) -> str:
    """Return the URL without user, password and query, even if the password is not percent-encoded."""
    scheme, is_url, rest = url.partition("://")
    login, at, place = rest.rpartition("@")
    if not is_url or "?" in login:  # the last @ may be in the query
        return f"{printable(scheme)}://**" if is_url else "**"
    return printable(f"{scheme}://{'**@' if at else ''}{re.split('[?#]', place)[0]}")


def duration(seconds: float) -> str:
    """Return a duration as text, rounded down: 12s, 3m04s, 2h05m, 3d04h."""
    whole = int(seconds)
    for unit, name, part, smaller_name in _UNITS:
        if whole >= unit:
            return f"{whole // unit}{name}{whole % unit // part:02}{smaller_name}"
    return f"{whole}s"


def deaths(number: int) -> str:
    return f"workers that ran it have died: {number}"


class OneLine(logging.Filter):
    """Escapes unprintable characters in all records, and indents tracebacks: no line looks like a record."""

    def filter(self, record: logging.LogRecord) -> bool:
        record.msg = printable(str(record.msg))
        if isinstance(record.args, tuple):
            record.args = tuple(_shown(word) for word in record.args)
        if record.exc_info:
            lines = logging.Formatter().formatException(record.exc_info).splitlines()
            record.exc_text = "\n".join(f"  {printable(line)}" for line in lines)
        return True


def _shown(word: object) -> object:
    return word if isinstance(word, (int, float)) else printable(str(word))


def _escape(code: int) -> str:
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
