"""The meaning of the errors of PostgreSQL, and the next step after each.

The server writes messages in the language of its lc_messages; the codes (SQLSTATE) are the same in all.
"""

from __future__ import annotations

import psycopg

from celery_exclusive.stores import hints
from celery_exclusive.stores.sql.database import Trouble

_NO_TABLE = "42P01"
_OF_POOLER = "08P01"
"""The code of every error of PgBouncer itself."""
_NO_SCHEMA = (
    "its search_path names no schema: put one into it, as by ALTER ROLE user SET search_path = public"
)
_BUSY = dict.fromkeys(("40001", "40P01", "55P03", "57014"), hints.IN_THE_WAY)
_LOST = {
    "25006": hints.REPLICA,
    "25P03": hints.ALIVE,
    **dict.fromkeys(("57P01", "57P02", "57P03"), hints.STARTING),
}
"""Errors after which another connection may work, also after a failover."""
_MISUSE = {"42501": hints.RIGHTS, "3F000": _NO_SCHEMA}
"""Errors that end when a person changes a setting."""
_REFUSED = {"54000": hints.TOO_LONG}
"""Errors that no retry changes."""
_FULL = {"53100": hints.DISK, "53300": hints.CLIENTS}
_CODES = _BUSY | _LOST | _MISUSE | _REFUSED | _FULL
_TROUBLES: dict[str, Trouble] = {
    _NO_TABLE: "no tables",
    **dict.fromkeys(_BUSY, "busy"),
    **dict.fromkeys(_LOST, "lost"),
    **dict.fromkeys(_MISUSE, "misuse"),
    **dict.fromkeys(_REFUSED, "refused"),
    **dict.fromkeys(_FULL, "full"),
}

_MISUSE_WORDS = {
    "password authentication failed": hints.LOGIN,
    "no password supplied": hints.LOGIN,
    "no pg_hba.conf entry": "let this user and machine in, in the server's pg_hba.conf",
    "invalid connection option": "after '?' its URL may have the options of libpq",
    "does not exist": hints.NO_DATABASE,
    "permission denied": hints.RIGHTS,
    "statement pooling mode": "set pool_mode = transaction in the pooler before it: a step is a transaction",
}
_WORDS = _MISUSE_WORDS | {
    "too many clients": hints.CLIENTS,
    "remaining connection slots": hints.CLIENTS,
    "database system is": hints.STARTING,
    "session is read-only": hints.NO_PRIMARY,
    "hot standby mode": hints.NO_PRIMARY,
}
"""Errors of poolers, and errors while connecting, have no code of their own: their words decide."""


def trouble(error: Exception) -> Trouble:
    if isinstance(error, psycopg.errors.ConnectionTimeout):
        return "silent"
    if code := _code(error):
        return "other" if _is_out_of_ids(error) else _TROUBLES.get(code, "other")
    return "misuse" if _known(error, _MISUSE_WORDS) else "other"


def _is_out_of_ids(error: Exception) -> bool:
    """Whether the server refuses all writes until a VACUUM. Its code is also the code of a long value."""
    return getattr(getattr(error, "diag", None), "source_file", None) in ("varsup.c", "multixact.c")


def hint(error: Exception) -> str:
    code = _code(error)
    if _is_out_of_ids(error):
        return "vacuum it: it accepts no writes until then"
    return (_CODES.get(code) if code else _known(error, _WORDS)) or hints.ALIVE


def _code(error: Exception) -> str | None:
    code: str | None = getattr(error, "sqlstate", None)
    return None if code == _OF_POOLER else code


def _known(error: Exception, words: dict[str, str]) -> str | None:
    said = str(error)
    return next((text for word, text in words.items() if word in said), None)
