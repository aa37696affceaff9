"""The meaning of the errors of MariaDB and MySQL, and the next step after each."""

from __future__ import annotations

from celery_exclusive.stores import hints
from celery_exclusive.stores.sql.server import ErrorKind

_NO_CODE = 0  # of what the server has not said: it is silent
_OF_CODE: dict[int, tuple[ErrorKind, str]] = {
    _NO_CODE: ("silent", f"{hints.ALIVE}, and that its disk is not full: it waits for room without a word"),
    1146: ("no tables", hints.ALIVE),
    1020: ("busy", hints.IN_THE_WAY),  # a row has changed since this transaction read it
    1062: ("busy", hints.IN_THE_WAY),  # another process stores the version of the tables
    1205: ("busy", f"{hints.IN_THE_WAY}, or for a full disk"),
    **dict.fromkeys((1213, 1969, 3024), ("busy", hints.IN_THE_WAY)),
    1317: ("busy", "an operator stopped the statement"),
    1053: ("lost", hints.STARTING),
    **dict.fromkeys((1290, 1792, 1836), ("lost", hints.REPLICA)),
    **dict.fromkeys((1152, 1158, 1159, 1160, 1161, 1927, 2006, 2013, 4031), ("lost", hints.ALIVE)),
    **dict.fromkeys((1044, 1142, 1143), ("misuse", hints.RIGHTS)),
    **dict.fromkeys((1045, 1698), ("misuse", hints.LOGIN)),
    1046: ("misuse", "name a database in its URL"),
    1049: ("misuse", hints.NO_DATABASE),
    1071: ("misuse", "its innodb_page_size must be 16k or more"),
    1130: ("misuse", "let this machine in: CREATE USER for its address"),
    1251: (
        "misuse",
        "PyMySQL does not know how this user logs in: give the user a password of another plugin",
    ),
    1665: ("misuse", "its binlog_format must be ROW or MIXED"),
    1153: ("refused", "raise its max_allowed_packet"),
    1406: ("refused", hints.TOO_LONG),
    **dict.fromkeys((1040, 1203, 1226), ("other", hints.CLIENTS)),
    **dict.fromkeys((1021, 1114), ("other", hints.DISK)),
    1030: ("other", "look into its log"),
    1129: ("other", "this machine is blocked after too many errors: let its administrator run FLUSH HOSTS"),
    1461: ("other", "raise its max_prepared_stmt_count: each connection needs two"),
}


def meaning(error: Exception) -> tuple[ErrorKind, str]:
    code = error.args[0] if error.args else _NO_CODE
    return _OF_CODE.get(code if isinstance(code, int) else _NO_CODE, ("other", hints.ALIVE))
