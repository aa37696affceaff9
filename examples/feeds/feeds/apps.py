"""Django's view of this app."""

from django.apps import AppConfig


class FeedsConfig(AppConfig):
    """The feed importer."""

    name = "feeds"
