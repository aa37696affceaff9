"""The command `celery`, of this project."""

import sys

from celery.bin.celery import main

sys.argv[1:1] = ["-A", "shop"]
main()
