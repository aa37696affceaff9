"""Django's settings; those of Celery are what the test says, and come through the environment."""

import json
import os

import django

from celery_exclusive import Exclusive

SECRET_KEY = "not-a-secret"
USE_TZ = True
ALLOWED_HOSTS = ["127.0.0.1"]
ROOT_URLCONF = "repos.views"
INSTALLED_APPS = ["repos", "courier"]
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
IMMEDIATE = {"transaction_mode": "IMMEDIATE"} if django.VERSION >= (5, 1) else {}
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": os.environ["PROJECT_DATABASE"],
        "OPTIONS": {**IMMEDIATE, "timeout": 20},
    }
}

CELERY_ACCEPT_CONTENT = ["json", "pickle"]
CELERY_EXCLUSIVE_PREFIX = "repos"
CELERY_TASK_ANNOTATIONS = {
    "courier.tasks.deliver": {"exclusive": Exclusive("address")},
    "courier.tasks.delivre": {"exclusive": Exclusive("address")},  # a slip, which the worker has to tell
}
globals().update(
    {f"CELERY_{name.upper()}": value for name, value in json.loads(os.environ["LAB_CONF"]).items()}
)
