"""A Django project with locks in its own database; its settings are what a test says."""

import os

if "SHOP_WITHOUT_CELERY" not in os.environ:
    from shop.celery import app as celery_app

    __all__ = ["celery_app"]
