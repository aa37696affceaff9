"""The next steps after errors of servers, as far as several kinds of servers share them."""

from __future__ import annotations

from urllib.parse import quote

ALIVE = "check that it runs and that its URL is right"
LOGIN = "correct user and password in its URL"
NO_DATABASE = "create it, or correct the URL"
RIGHTS = (
    "let an owner of the database run `celery -A proj locks create-tables`, or what it prints with --print, "
    "and grant this user SELECT, INSERT, UPDATE and DELETE on the tables exclusive2_*"
)
CLIENTS = "raise its max_connections, or put a pooler before it"
REPLICA = "it is a replica: point exclusive_store to the primary"
NO_PRIMARY = "no host of its URL is a primary that answers: promote one, or correct the URL"
READ_ONLY = "default_transaction_read_only is on for this user or database: set it to off"
DISK = "make room on its disk"
IN_THE_WAY = "others kept it locked: look for a client that is stopped in a transaction"
STARTING = "it is starting or stopping: try again in a moment"
TOO_LONG = "shorten the task's id, or exclusive_prefix: an index cannot hold them"


def too_old(url: str, server: str, oldest: str) -> str:
    return f"exclusive_store: {url} is {server}, too old: it must be {oldest} or newer"


def foreign(url: str, owners: list[str]) -> str:
    return (
        f"exclusive_store: {url} has tables exclusive2_* that belong to {', '.join(owners)}, whose triggers "
        "would run with the rights of this user: if you trust that, write "
        f"?tables_of={quote(','.join(owners))} into the URL; else let the owner of the database own them "
        "(ALTER TABLE ... OWNER TO ...), or drop them"
    )
