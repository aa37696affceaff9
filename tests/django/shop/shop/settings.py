"""Django's settings; a test gives some through the environment."""

import json
import os

given = json.loads(os.environ.get("SHOP", "{}"))
if given.pop("MYSQLDB", "") == "pymysql":  # stands in for mysqlclient, which has to be compiled
    import pymysql

    pymysql.version_info = (2, 2, 1, "final", 0)
    pymysql.install_as_MySQLdb()
SECRET_KEY = "not-a-secret"
DEBUG = True
USE_TZ = True
STATIC_URL = "static/"
ALLOWED_HOSTS = ["127.0.0.1", "testserver"]
ROOT_URLCONF = "shop.urls"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.messages",
    "django.contrib.sessions",
    "django.contrib.staticfiles",
    "orders",
    *given.pop("APPS", ["celery_exclusive.contrib.django"]),
]
MIDDLEWARE = [
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
]
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]
CELERY_BROKER_URL = "memory://"
CELERY_EXCLUSIVE_STORE = "django://default"
globals().update(given)
