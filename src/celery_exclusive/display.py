"""How texts that others have written are shown: keys, ids, arguments, URLs.

A terminal obeys none of them, and none makes a line of a log that looks like another one.
"""

from __future__ import annotations

import re

_ESCAPE = re.compile(r"\\(\\|x[0-9a-f]{2}|u[0-9a-f]{4}|U[0-9a-f]{8})")


def printable(text: str) -> str:
    """Escape what is not printed, and leave backslashes alone: for texts that nobody reads back."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else _escape(ord(char)) for char in text)


def escaped(text: str) -> str:
    r"""Escape what is not printed, and the backslash, as in Python: `\x1b`, `\\`.

    Everything else stays, so that an ordinary key looks as it is.
    """
    return printable(text.replace("\\", r"\\"))


def unescaped(text: str) -> str:
    r"""Undo `escaped`; a backslash that begins none of its sequences stays."""
    return _ESCAPE.sub(lambda found: "\\" if found[1] == "\\" else chr(int(found[1][1:], 16)), text)


def safe_url(url: str) -> str:
    """The URL without user, password and query; they are left out also where a password is not encoded."""
    scheme, is_url, rest = url.partition("://")
    login, at, place = rest.rpartition("@")
    if not is_url or "?" in login:  # the last @ may be in the query
        return f"{printable(scheme)}://**" if is_url else "**"
    return printable(f"{scheme}://{'**@' if at else ''}{re.split('[?#]', place)[0]}")


def _escape(code: int) -> str:
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
