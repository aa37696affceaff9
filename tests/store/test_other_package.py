"""A store that another package brings: found by its entry point, or named."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import EntryPoint

import pytest

from celery_exclusive.errors import OptionError
from celery_exclusive.stores import base
from celery_exclusive.stores.base import open_store
from celery_exclusive.stores.memory import MemoryStore

pytestmark = pytest.mark.promise(
    "Another package can bring a store, found by its entry point. One that cannot be imported is named",
    broke="no entry points; AttributeError as it comes",
)


class TheirStore(MemoryStore):
    pass


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Give the environment a package whose entry point `theirs` has this value."""

    def install(value: str) -> None:
        point = EntryPoint("theirs", value, "celery_exclusive.stores")
        monkeypatch.setattr(base, "entry_points", lambda group: [point] if group == point.group else [])
        monkeypatch.setattr(base, "_installed", base._installed.__wrapped__)

    return install


def test_a_store_of_another_package_is_found_by_its_entry_point(install: Callable[[str], None]) -> None:
    install(f"{__name__}:TheirStore")
    assert isinstance(open_store("theirs://somewhere"), TheirStore)


@pytest.mark.parametrize("value", ["no_such_package:Store", "json:Store"])
def test_a_store_that_cannot_be_imported_is_named(value: str, install: Callable[[str], None]) -> None:
    install(value)
    with pytest.raises(OptionError, match="exclusive_store: the store of theirs:// cannot be imported: "):
        open_store("theirs://somewhere")
    with pytest.raises(OptionError, match="did you mean 'theirs'"):
        open_store("their://somewhere")
