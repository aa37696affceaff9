"""Masks the secrets in our settings in Celery's own reports: `celery report`, `inspect conf`."""

from __future__ import annotations

from typing import Any

from celery.app.utils import Settings

from celery_exclusive.display import safe_url
from celery_exclusive.seams.celery_app import settings_before_use


class MaskedSettings(Settings):
    """The configuration of one app, in which our URLs are masked. Celery masks only its own settings."""

    def table(self, with_defaults: bool = False, censored: bool = True) -> dict[str, Any]:
        found: dict[str, Any] = super().table(with_defaults, censored)
        return {name: _masked(name, value) for name, value in found.items()} if censored else found


def mask(app: Any) -> None:
    """Mask URLs in our settings of this app, also in misspelt ones, whenever they are loaded."""
    _mask(settings_before_use(app))
    if app.on_after_configure:  # the copy of an app in a spawned child has none yet, and needs none
        app.on_after_configure.connect(_mask, weak=False)


def _mask(source: Any, **_: object) -> None:
    if isinstance(source, Settings):  # its own __setattr__ would make a setting of it
        object.__setattr__(source, "__class__", MaskedSettings)


def _masked(name: str, value: Any) -> Any:
    may_hide = "exclusive" in name.lower() and isinstance(value, str) and ("://" in value or "@" in value)
    return safe_url(value) if may_hide else value
