"""Its only task, which gets an option from the settings of the project."""

from celery import shared_task
from repos.record import act


@shared_task(bind=True)
def deliver(self, address, tag):
    act(self, tag)
