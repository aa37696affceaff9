"""Databases that speak SQL: one schema and one class for all of them, a small file for each."""

from celery_exclusive.errors import OptionError

try:
    import sqlalchemy as sqlalchemy
except ImportError:
    raise OptionError(
        "exclusive_store: sqlite:// needs SQLAlchemy: pip install 'celery-exclusive[sqlite]'"
    ) from None
