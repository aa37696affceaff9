"""Two tasks that share one lock per feed.

`journal.body` is the demo's witness, not part of the recipe: it notes when a body begins and ends.
"""

from __future__ import annotations

from django.conf import settings

from celery_exclusive import Exclusive, shared_task
from stage import journal

from .models import Feed


def _protected(option: Exclusive) -> Exclusive | None:
    """`UNPROTECTED=1` runs the very same tasks without the option, for comparison."""
    return None if settings.UNPROTECTED else option


@shared_task(exclusive=_protected(Exclusive(key="feed:{feed_url}", on_conflict="skip")))
def import_feed(feed_url: str) -> str:
    """The scheduler's poll: if the feed is being imported right now, this one may be dropped."""
    with journal.body(feed_url):
        return Feed.objects.import_feed(feed_url).url


@shared_task(exclusive=_protected(Exclusive(key="feed:{feed_url}", on_conflict=settings.CLICKS)))
def reimport_feed(feed_url: str) -> str:
    """A user's click: it has to run, so it waits until the feed is free."""
    with journal.body(feed_url):
        return Feed.objects.import_feed(feed_url).url
