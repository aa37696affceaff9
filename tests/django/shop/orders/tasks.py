"""Tasks with options."""

from celery import shared_task

from celery_exclusive import Exclusive, Unique


@shared_task(bind=True, exclusive=Exclusive("number"), unique=Unique("number"))
def bill(self, number):
    return self.lease.fence
