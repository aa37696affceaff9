"""Imported by a process of a test: one private name is another one there, as after an upgrade of Celery."""

import json
import os
from contextlib import suppress
from importlib import import_module

from celery_exclusive.seams.table import SEAMS
from tests.renaming import rename_everywhere

for seam in SEAMS:
    with suppress(ImportError):
        import_module(seam.module)
rename_everywhere("celery", "kombu", "billiard", "redis", name=json.loads(os.environ["LAB_CONF"])["renamed"])
