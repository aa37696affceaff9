"""`python -m stage.producers`: one of several processes that submit the same feeds again and again.

Reads the feeds' URLs, one JSON list, from its standard input when it may begin. Every round visits
every feed: a few polls at once, as impatient schedulers send them, and now and then a user's click.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

PRODUCERS = 4
_POLLS = 2
_CLICKS = 7
_SECONDS = 10.0
_LEAST_VISITS = 27

Kind = Literal["poll", "click"]


_POLL: tuple[Kind, ...] = ("poll",)


@dataclass(frozen=True)
class Visit:
    """The submissions of one producer for one feed, one after the other."""

    feed: str
    kinds: tuple[Kind, ...]


def plan(feeds: list[str]) -> Iterator[Visit]:
    """Yield the visits of one producer; the fewer feeds, the more often each."""
    rounds = -(-_LEAST_VISITS // len(feeds))
    every = max(2, -(-rounds // _CLICKS))
    polls = _POLLS * _POLL
    for number in range(rounds):
        for feed in feeds:
            yield Visit(feed, polls if number % every else ("click", *polls))


def total(feeds: list[str]) -> int:
    """Return how many submissions all producers make together."""
    return PRODUCERS * sum(len(visit.kinds) for visit in plan(feeds))


def main() -> None:
    """Submit the plan at an even pace."""
    import django

    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "planet.settings")
    django.setup()
    from feeds.tasks import import_feed, reimport_feed
    from stage import journal, turns

    tasks = {"poll": import_feed, "click": reimport_feed}
    feeds = json.loads(sys.stdin.readline() or "[]")
    visits = list(plan(feeds)) if feeds else []
    begin = time.monotonic()
    for number, visit in enumerate(visits):
        time.sleep(max(0.0, begin + number * _SECONDS / len(visits) - time.monotonic()))
        with turns.submitting():
            for kind in visit.kinds:
                result = tasks[kind].delay(visit.feed)
                journal.write("submitted", id=result.id, feed=visit.feed, kind=kind)


if __name__ == "__main__":
    main()
