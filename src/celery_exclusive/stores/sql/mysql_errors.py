"""The meaning of the errors of MariaDB and MySQL, and the next step after each."""

from __future__ import annotations

from celery_exclusive.stores import hints
from celery_exclusive.stores.sql.database import Trouble

_NO_CODE = 0
"""Of what the server has not said: it is silent."""
_NO_TABLE = 1146
_BUSY = {
    1020: hints.IN_THE_WAY,  # a row has changed since this transaction read it
    1062: hints.IN_THE_WAY,  # another process stores the version of the tables
    1205: f"{hints.IN_THE_WAY}, or for a full disk",
    1213: hints.IN_THE_WAY,
    1317: "an operator stopped the statement",
    1969: hints.IN_THE_WAY,
    3024: hints.IN_THE_WAY,
}
_LOST = {
    1053: hints.STARTING,
    1290: hints.REPLICA,
    1792: hints.REPLICA,
    1836: hints.REPLICA,
    **dict.fromkeys((1152, 1158, 1159, 1160, 1161, 1927, 2006, 2013, 4031), hints.ALIVE),
}
"""Errors after which another connection may work, also after a failover."""
_MISUSE = {
    **dict.fromkeys((1044, 1142, 1143), hints.RIGHTS),
    1045: hints.LOGIN,
    1046: "name a database in its URL",
    1049: hints.NO_DATABASE,
    1071: "its innodb_page_size must be 16k or more",
    1130: "let this machine in: CREATE USER for its address",
    1251: "PyMySQL does not know how this user logs in: give the user a password of another plugin",
    1665: "its binlog_format must be ROW or MIXED",
    1698: hints.LOGIN,
}
"""Errors that end when a person changes a setting."""
_REFUSED = {1153: "raise its max_allowed_packet", 1406: hints.TOO_LONG}
"""Errors that no retry changes."""
_OTHER = {
    _NO_CODE: f"{hints.ALIVE}, and that its disk is not full: it waits for room without a word",
    **dict.fromkeys((1040, 1203, 1226), hints.CLIENTS),
    1021: hints.DISK,
    1030: "look into its log",
    1114: hints.DISK,
    1129: "this machine is blocked after too many errors: let its administrator run FLUSH HOSTS",
    1461: "raise its max_prepared_stmt_count: each connection needs two",
}
_HINTS = _BUSY | _LOST | _MISUSE | _REFUSED | _OTHER


def trouble(error: Exception) -> Trouble:
    code = _code(error)
    if code == _NO_CODE:
        return "silent"
    if code == _NO_TABLE:
        return "no tables"
    if code in _BUSY:
        return "busy"
    if code in _LOST:
        return "lost"
    if code in _REFUSED:
        return "refused"
    return "misuse" if code in _MISUSE else "other"


def hint(error: Exception) -> str:
    return _HINTS.get(_code(error), hints.ALIVE)


def _code(error: Exception) -> int:
    """Return the server's number of an error."""
    number = error.args[0] if error.args else _NO_CODE
    return number if isinstance(number, int) else _NO_CODE
