"""The store of another package keeps every promise of the library that its capabilities name."""

from pathlib import Path

import pytest

from celery_exclusive.stores.base import Store, open_store
from celery_exclusive.testing.conformance import StoreConformance


class TestFolder(StoreConformance):
    @pytest.fixture(autouse=True)
    def folder(self, tmp_path: Path) -> None:
        self.path = tmp_path

    def make_store(self, *, prefix: str, offer: float, tombstone_ttl: float) -> Store:
        return open_store(f"folder://{self.path}", prefix=prefix, offer=offer, tombstone_ttl=tombstone_ttl)

    def lose_data(self) -> None:
        for file in self.path.glob("*/*.*"):
            file.unlink()

    def unreachable_store(self) -> Store:
        return open_store(f"folder://{__file__}/is no folder")
