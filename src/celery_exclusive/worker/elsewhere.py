"""Notices publishers that look for locks in another store than this worker keeps them in."""

from __future__ import annotations

from typing import TYPE_CHECKING

from celery_exclusive import notices
from celery_exclusive.header import HEADER
from celery_exclusive.worker.delivery import Delivery

if TYPE_CHECKING:
    from celery_exclusive.install import Installation


class Elsewhere:
    """Compares the marks that messages bring with this worker's own, and warns once of each other one.

    A mark that was the own one stays known: its store may have lost its data since, and got a new one.
    """

    def __init__(self, installation: Installation, epoch: str) -> None:
        self.installation = installation
        self._known = {epoch}
        self._new: dict[str, Delivery] = {}

    def note(self, delivery: Delivery) -> None:
        """Look at the mark of a delivery, without asking the store."""
        mark = delivery.letter.headers[HEADER].get("store")
        if mark and mark not in self._known:
            self._new[mark] = delivery

    def tell(self, epoch: str) -> None:
        """Compare the new ones with the mark that the store has now, and warn if they differ."""
        self._known.add(epoch)
        while self._new:
            mark, delivery = self._new.popitem()
            if mark not in self._known:
                self._known.add(mark)
                sender = delivery.letter.headers.get("origin") or "a publisher"
                prefix = self.installation.settings.exclusive_prefix
                notices.elsewhere(str(sender), delivery.key, self.installation.store.url, prefix)
