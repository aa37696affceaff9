"""The protocol of a kind of database server with its driver."""

from __future__ import annotations

from typing import Any, Literal, Protocol

from celery_exclusive.stores.sql.transaction import Cursor

Trouble = Literal["lost", "silent", "busy", "no tables", "misuse", "refused", "full", "other"]
"""The meaning of an error. lost: the connection is. silent: the server does not answer. busy: other
transactions are in the way. misuse: a person must change a setting. refused: a retry does not help. full: no
room, or no connection, is left.
"""


class Database(Protocol):
    """A kind of server. Its only state is the address, so any number of threads may use it."""

    @property
    def url(self) -> str:
        """The server's URL without password, for messages."""
        ...

    @property
    def error(self) -> type[Exception]:
        """The base class of the driver's errors."""
        ...

    def connect(self) -> tuple[Any, Cursor]:
        """Open a connection that commits each statement, and a cursor that takes `?` for a parameter."""
        ...

    def is_closed(self, connection: Any) -> bool:
        """Whether the driver has found the other end closed."""
        ...

    def begin(self, cursor: Cursor, *, writes: bool) -> int:
        """Begin a transaction of limited time, since others wait for it; return the server's time."""
        ...

    def definitions(self) -> list[str]:
        """Return the statements that make the tables, unless they are there."""
        ...

    def create_tables(self, cursor: Cursor) -> None:
        """Make the tables, unless they are there; other processes may do the same at once."""
        ...

    def grant(self, cursor: Cursor, claim: dict[str, Any]) -> int | None:
        """Grant a free key in one statement, as `step` would; return the fence, or None if it is not free.

        Parameters:
            claim: `namespace`, `key` and `id`; `now` in a test, else None and the server's clock decides;
                `ttl`; `version` of a new row; the text of the document `before` its expiry and `after` its
                fence.
        """
        ...

    def release(self, cursor: Cursor, claim: dict[str, Any]) -> bool:
        """Release the only lease of a key without line in one statement; return whether it had that state.

        Parameters:
            claim: `namespace`, `key`, `now`; the document's text between its limit and the expiry `before`,
                and `after` the fence.
        """
        ...

    def lossy_settings(self, cursor: Cursor) -> list[tuple[str, str, str]]:
        """Return the settings with which a crash may lose what was committed: name, value and safe value."""
        ...

    def trouble(self, error: Exception) -> Trouble:
        """Return the meaning of an error of the driver."""
        ...

    def hint(self, error: Exception) -> str:
        """Return the next step after an error of the driver."""
        ...
