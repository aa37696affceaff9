"""What the databases of all kinds of servers have in common."""

from __future__ import annotations


class Database:
    """A database of a server, where the user `tests` may do everything."""

    scheme: str

    def __init__(self, port: int, name: str) -> None:
        self.port, self.name = port, name

    @property
    def url(self) -> str:
        return self.url_of("tests", self.port)

    def url_of(self, user: str, port: int, name: str | None = None) -> str:
        """The URL for another user, or through a proxy, or of another database of this name."""
        return f"{self.scheme}://{user}@127.0.0.1:{port}/{self.name if name is None else name}"
