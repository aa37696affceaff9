"""The operation of the migration that makes the same tables for locks as a store would make."""

from __future__ import annotations

from typing import Any

from django.db import router
from django.db.migrations.operations.base import Operation

from celery_exclusive.contrib.django.project import alias
from celery_exclusive.stores.django import definitions
from celery_exclusive.stores.sql.tables import NAMES


class MakeTables(Operation):
    """Make the tables in the database where the project keeps its locks, and in no other."""

    reduces_to_sql = True
    reversible = True

    def state_forwards(self, app_label: str, state: Any) -> None:
        """Change nothing: the models of these tables are not managed."""

    def database_forwards(self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any) -> None:
        database = schema_editor.connection.alias
        if database == alias() and router.allow_migrate(database, app_label):
            for statement in definitions(database):
                schema_editor.execute(statement, params=None)

    def database_backwards(self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any) -> None:
        if router.allow_migrate(schema_editor.connection.alias, app_label):
            for name in NAMES:
                schema_editor.execute(f"DROP TABLE IF EXISTS {name}", params=None)

    def describe(self) -> str:
        return "Make the tables for locks"
