"""The text of keys and ids in a model, which the tables keep as bytes."""

from __future__ import annotations

from typing import Any

from django.db import models

from celery_exclusive.display import escaped, unescaped
from celery_exclusive.stores.text import to_bytes, to_text


class Name(models.BinaryField):
    """Text of any characters; those that cannot be printed are escaped, as `locks ls` shows them."""

    def from_db_value(self, value: Any, *_: object) -> str | None:
        is_ours = isinstance(value, (bytes, memoryview))  # SQLite keeps a text where bytes belong
        return None if value is None else escaped(to_text(bytes(value)) if is_ours else str(value))

    def to_python(self, value: Any) -> Any:
        return value

    def get_prep_value(self, value: Any) -> Any:
        return to_bytes(unescaped(value)) if isinstance(value, str) else value

    def value_to_string(self, obj: Any) -> str:
        return str(self.value_from_object(obj))
