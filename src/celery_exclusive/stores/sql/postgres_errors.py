"""What the errors of PostgreSQL mean, and what to do about them."""

from __future__ import annotations

import psycopg

from celery_exclusive.stores.sql.database import Trouble

_BUSY = ("40001", "40P01", "55P03", "57014")
_LOST = ("25006", "25P03", "57P01", "57P02", "57P03")
_NO_TABLE = "42P01"
_MISUSE = {
    "password authentication failed": "correct user and password in its URL",
    "no password supplied": "correct user and password in its URL",
    "no pg_hba.conf entry": "let this user and machine in, in the server's pg_hba.conf",
    "invalid connection option": "after '?' its URL may have the options of libpq",
    "does not exist": "create it, or correct the URL",
    "permission denied": "let an owner of the database run `celery -A proj locks create-tables`, or what it "
    "prints with --print, and grant this user SELECT, INSERT, UPDATE and DELETE on the tables exclusive2_*",
}
"""What a human must change. Errors of connecting have no code, so their words must do."""
_IN_THE_WAY = "others kept it locked: look for a client that is stopped in a transaction"
_HINTS = {
    "too many clients": "raise its max_connections, or put a pooler before it",
    "remaining connection slots": "raise its max_connections, or put a pooler before it",
    "system is s": "it is starting or stopping: try again in a moment",
    "read-only": "it is a replica: point exclusive_store to the primary",
    "during recovery": "it is a replica: point exclusive_store to the primary",
    "No space left": "make room on its disk",
    "lock timeout": _IN_THE_WAY,
    "statement timeout": _IN_THE_WAY,
    "deadlock": _IN_THE_WAY,
}
"""By their words, too. The server says them in the language of its lc_messages."""


def trouble(error: Exception) -> Trouble:
    state = getattr(error, "sqlstate", None)
    if state == _NO_TABLE:
        return "no tables"
    if state in _BUSY:
        return "busy"
    if any(words in str(error) for words in _MISUSE):
        return "misuse"
    is_silent = isinstance(error, psycopg.errors.ConnectionTimeout)
    is_lost = isinstance(error, psycopg.OperationalError) and not state and not is_silent
    return "lost" if is_lost or state in _LOST else "other"


def hint(error: Exception) -> str:
    said = str(error)
    known = (text for words, text in (_MISUSE | _HINTS).items() if words in said)
    return next(known, "check that it runs and that its URL is right")
