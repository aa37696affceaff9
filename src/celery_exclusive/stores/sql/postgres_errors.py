"""The meaning of the errors of PostgreSQL, and the next step after each.

The server writes messages in the language of its lc_messages; the codes (SQLSTATE) are the same in all.
"""

from __future__ import annotations

import psycopg

from celery_exclusive.stores import hints
from celery_exclusive.stores.sql.server import ErrorKind

_OF_POOLER = "08P01"
"""The code of every error of PgBouncer itself."""
_NO_SCHEMA = (
    "its search_path names no schema: put one into it, as by ALTER ROLE user SET search_path = public"
)
_UNKNOWN: tuple[ErrorKind, str] = ("other", hints.ALIVE)
_OF_CODE: dict[str, tuple[ErrorKind, str]] = {
    "42P01": ("no tables", hints.ALIVE),
    **dict.fromkeys(("40001", "40P01", "55P03", "57014"), ("busy", hints.IN_THE_WAY)),
    "25006": ("lost", hints.REPLICA),
    "25P03": ("lost", hints.ALIVE),
    **dict.fromkeys(("57P01", "57P02", "57P03"), ("lost", hints.STARTING)),
    "42501": ("misuse", hints.RIGHTS),
    "3F000": ("misuse", _NO_SCHEMA),
    "54000": ("refused", hints.TOO_LONG),
    "53100": ("full", hints.DISK),
    "53300": ("full", hints.CLIENTS),
}
_OF_WORDS: dict[str, tuple[ErrorKind, str]] = {
    "password authentication failed": ("misuse", hints.LOGIN),
    "no password supplied": ("misuse", hints.LOGIN),
    "no pg_hba.conf entry": ("misuse", "let this user and machine in, in the server's pg_hba.conf"),
    "invalid connection option": ("misuse", "after '?' its URL may have the options of libpq"),
    "does not exist": ("misuse", hints.NO_DATABASE),
    "permission denied": ("misuse", hints.RIGHTS),
    "statement pooling mode": (
        "misuse",
        "set pool_mode = transaction in the pooler before it: a step is a transaction",
    ),
    "too many clients": ("other", hints.CLIENTS),
    "remaining connection slots": ("other", hints.CLIENTS),
    "database system is": ("other", hints.STARTING),
    "session is read-only": ("other", hints.NO_PRIMARY),
    "hot standby mode": ("other", hints.NO_PRIMARY),
}
"""Errors of poolers, and errors while connecting, have no code of their own: their words decide."""


def meaning(error: Exception) -> tuple[ErrorKind, str]:
    # The server refuses all writes until a VACUUM. Its code is also the code of a long value.
    if getattr(getattr(error, "diag", None), "source_file", None) in ("varsup.c", "multixact.c"):
        return "other", "vacuum it: it accepts no writes until then"
    code = getattr(error, "sqlstate", None)
    if code and code != _OF_POOLER:
        return _OF_CODE.get(code, _UNKNOWN)
    said = str(error)
    trouble, hint = next((known for words, known in _OF_WORDS.items() if words in said), _UNKNOWN)
    return "silent" if isinstance(error, psycopg.errors.ConnectionTimeout) else trouble, hint
