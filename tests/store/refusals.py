"""What is said of a database that cannot be a store."""

from __future__ import annotations

import traceback
from contextlib import closing

import pytest

from celery_exclusive.core.operations import Acquire
from celery_exclusive.core.records import SECOND
from celery_exclusive.errors import OptionError, StoreUnavailable
from celery_exclusive.stores.base import open_store


def refusal(url: str) -> str:
    """What check and the verbs say: one line without password."""
    with closing(open_store(url)) as store:
        with pytest.raises(OptionError) as refused:
            store.check()
        with pytest.raises(StoreUnavailable) as unavailable:
            store.apply("secret key", Acquire("a", "token", 30 * SECOND))
    text = str(refused.value)
    assert str(unavailable.value) == text
    assert text.isprintable()
    assert "hunter" not in "".join(traceback.format_exception(unavailable.value))
    assert text.startswith(f"exclusive_store: {store.url}")
    return text
