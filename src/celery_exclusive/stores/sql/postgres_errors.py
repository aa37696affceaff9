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
_HINTS = {
    "25006": "it is read-only: point exclusive_store to the primary",
    "53100": "make room on its disk",
    "53300": "raise its max_connections, or put a pooler before it",
    **dict.fromkeys(_BUSY, "others kept it locked: look for a client that is stopped in a transaction"),
}


def trouble(error: Exception) -> Trouble:
    state = getattr(error, "sqlstate", None)
    if state == _NO_TABLE:
        return "no tables"
    if state in _BUSY:
        return "busy"
    if _of_misuse(error):
        return "misuse"
    is_silent = isinstance(error, psycopg.errors.ConnectionTimeout)
    is_lost = isinstance(error, psycopg.OperationalError) and not state and not is_silent
    return "lost" if is_lost or state in _LOST else "other"


def hint(error: Exception) -> str:
    known = _HINTS.get(getattr(error, "sqlstate", None) or "") or _of_misuse(error)
    return known or "check that it runs and that its URL is right"


def _of_misuse(error: Exception) -> str:
    return next((hint for words, hint in _MISUSE.items() if words in str(error)), "")
