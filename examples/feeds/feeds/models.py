"""Feeds and their entries, and the import that must not run twice at once."""

from __future__ import annotations

import calendar
from datetime import datetime, timezone
from typing import Any

from django.db import models, transaction

from .download import BadFeed, download


class FeedManager(models.Manager["Feed"]):
    """`Feed.objects`."""

    def import_feed(self, url: str) -> Feed:
        """Fetch the feed at `url` and store the entries that are new; return the feed.

        Reads the stored entries, asks the site, and writes the difference. This is correct as long as
        no other process does the same for the same feed in between: the lock in `tasks.py` ensures it.
        A feed that cannot be fetched or read is no error of ours: its `problem` has the reason.
        """
        feed, _ = self.get_or_create(url=url)
        known = set(feed.entries.values_list("guid", flat=True))
        fresh: list[Entry] = []
        try:
            document = download(url, etag=feed.etag, modified=feed.modified)
            if document is not None:
                parsed = document.parse()
                feed.title = _text(parsed.feed, "title")[:300]
                feed.problem = _reason(parsed.bozo_exception) if parsed.bozo else ""
                feed.etag, feed.modified = document.etag, document.modified
                fresh = [entry for entry in _entries(feed, parsed.entries) if entry.guid not in known]
        except BadFeed as error:
            feed.problem = _reason(error)
            feed.etag = feed.modified = ""  # a 304 would not tell that all is well again
        feed.imports += 1
        with transaction.atomic():
            Entry.objects.bulk_create(fresh)
            feed.save()
        return feed


class Feed(models.Model):
    """One feed that a user subscribed to."""

    url = models.URLField(unique=True, max_length=500)
    title = models.CharField(max_length=300, blank=True)
    etag = models.CharField(max_length=200, blank=True)
    modified = models.CharField(max_length=100, blank=True)
    problem = models.CharField(max_length=300, blank=True)
    imports = models.PositiveIntegerField(default=0)

    entries: models.Manager[Entry]
    objects = FeedManager()

    def __str__(self) -> str:
        return self.title or self.url


class Entry(models.Model):
    """One entry of a feed.

    Without a unique constraint on purpose: so an import that overlaps another one leaves
    duplicates, which the demo counts, instead of an error.
    """

    feed = models.ForeignKey(Feed, on_delete=models.CASCADE, related_name="entries")
    guid = models.CharField(max_length=500)
    title = models.CharField(max_length=500, blank=True)
    link = models.CharField(max_length=500, blank=True)
    author = models.CharField(max_length=200, blank=True)
    summary = models.TextField(blank=True)
    published = models.DateTimeField(null=True)

    objects = models.Manager["Entry"]()

    class Meta:
        indexes = [models.Index(fields=["feed", "guid"])]

    def __str__(self) -> str:
        return self.title or self.guid


def _entries(feed: Feed, parsed: list[Any]) -> list[Entry]:
    """Turn feedparser's entries into ours, one per guid."""
    entries: dict[str, Entry] = {}
    for item in parsed:
        guid = _text(item, "id", "link", "title", "summary")[:500]
        entries.setdefault(
            guid,
            Entry(
                feed=feed,
                guid=guid,
                title=_text(item, "title")[:500],
                link=_text(item, "link")[:500],
                author=_text(item, "author")[:200],
                summary=_text(item, "summary"),
                published=_moment(item.get("published_parsed") or item.get("updated_parsed")),
            ),
        )
    return list(entries.values())


def _text(parsed: Any, *names: str) -> str:
    """Return the first of these that feedparser found; some it finds without a value."""
    return next((parsed[name] for name in names if parsed.get(name)), "")


def _reason(error: Exception) -> str:
    return (str(error) or repr(error))[:300]


def _moment(parsed: Any) -> datetime | None:
    try:
        return datetime.fromtimestamp(calendar.timegm(parsed), timezone.utc) if parsed else None
    except (ValueError, OverflowError):  # the year 10000
        return None
