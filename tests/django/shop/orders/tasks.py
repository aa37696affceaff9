"""Tasks with options."""

import redis
from celery import shared_task
from django.conf import settings

from celery_exclusive import Exclusive, Unique


@shared_task(bind=True, exclusive=Exclusive("number"), unique=Unique("number"))
def bill(self, number):
    return self.lease.fence


@shared_task(exclusive=Exclusive(key="stock:{item}"))
def count_stock(item):
    with redis.Redis.from_url(settings.CELERY_BROKER_URL, socket_timeout=None) as doors:
        doors.blpop(["door"], timeout=100)
