"""Thousands of strange documents go through the example's tasks: none is lost, and none breaks anything."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

import feedparser
import pytest

import server
from stage.processes import Processes
from tests.demo.corpus import NoCorpus, documents
from tests.servers import RedisServer

EXAMPLE = Path(server.__file__).parent
WORKER = ["--concurrency=4", "--pool=prefork", "--loglevel=INFO", "--without-gossip", "--without-mingle"]
STRANGERS = {"nothing.xml": b"<nothing/>", "half-a-stored.rss": b"<rss><channel><title>&#xd800;"}
#: Why the strangers, an address that the server does not know, and one where none listens, are bad.
REASONS = ["it is no feed", "feedparser cannot read it: UnicodeEncodeError", "404", "refused"]
IMPORT_ALL_TWICE = """
import json, sys, django
from collections import Counter
django.setup()
from django.core.management import call_command
from feeds.models import Feed
from feeds.tasks import import_feed
call_command("migrate", verbosity=0)
runs = [import_feed.delay(url) for url in json.load(sys.stdin) for _ in range(2)]
for run in runs:
    run.get(propagate=False)
print(json.dumps({
    "states": Counter(run.state for run in runs),
    "skipped": sum(isinstance(run.result, dict) for run in runs),
    "feeds": {feed.url: {
        "imports": feed.imports, "problem": feed.problem,
        "entries": feed.entries.count(), "guids": feed.entries.values("guid").distinct().count(),
    } for feed in Feed.objects.all()},
}))
"""


@pytest.fixture(scope="module")
def corpus(pytestconfig: pytest.Config) -> list[server.Site]:
    """Documents, each on a site that sends it with the type that the document itself asks for.

    Every twentieth of them; CORPUS=1 takes each.
    """
    assert pytestconfig.cache
    try:
        found = documents(pytestconfig.cache.mkdir("feedparser"))
    except NoCorpus as why:
        pytest.skip(str(why))
    sample = islice(sorted(found.items()), None, None, int(os.environ.get("CORPUS", "20")))
    return [server.Site(path, body, _content_type(body), delay=0.02) for path, body in sample]


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Processes]:
    """Starts processes that end with the test."""
    started = Processes(tmp_path, EXAMPLE)
    yield started
    started.stop()


@pytest.mark.promise(
    "Of real feeds every document is imported or noted as bad with the reason, no task fails, no key is left",
    broke="importer without `BadFeed`; no options; leases not released",
    figure="every twentieth of feedparser's own 2,248 test documents (`CORPUS=1`: each) and 4 strangers",
)
@pytest.mark.large
def test_every_document_is_imported_or_noted_as_bad_with_the_reason_and_leaves_no_lock(
    corpus: list[server.Site],
    start_redis: Callable[[], RedisServer],
    processes: Processes,
    tmp_path: Path,
):
    redis = start_redis()
    env = {
        **os.environ,
        "DJANGO_SETTINGS_MODULE": "planet.settings",
        "FEEDS_DATABASE": str(tmp_path / "feeds.sqlite3"),
        "FEEDS_REDIS": redis.url,
        "FEEDS_STORE": "",
        "UNPROTECTED": "",
    }
    strangers = [server.Site(name, body, "application/xml") for name, body in STRANGERS.items()]
    with server.FeedServer([*corpus, *strangers]) as served:
        worker = processes.start(
            "worker", [sys.executable, "-m", "celery", "-A", "planet", "worker", *WORKER], env
        )
        urls = [*served.urls, served.urls[0] + ".gone", "http://127.0.0.1:1/nobody"]
        done = subprocess.run(
            [sys.executable, "-c", IMPORT_ALL_TWICE],
            cwd=EXAMPLE,
            env=env,
            input=json.dumps(urls),
            stdout=subprocess.PIPE,
            text=True,
            check=False,
        )
        worker.terminate()
        worker.wait(60)  # a lease is given back after its task's result
    log = processes.log("worker").read_text()[-3000:]
    assert done.returncode == 0, log
    report = json.loads(done.stdout)
    feeds = report["feeds"]

    assert report["states"] == {"SUCCESS": 2 * len(urls)}, log
    assert sum(feed["imports"] for feed in feeds.values()) + report["skipped"] == 2 * len(urls)
    assert report["skipped"] > 0
    with redis.client() as client:
        assert [*client.scan_iter("*feed:http*")] == []
    for site, url in zip(corpus, urls, strict=False):
        headers = {"content-type": site.content_type, "content-location": url}
        parsed = feedparser.parse(io.BytesIO(site.body), response_headers=headers)
        feed = feeds[url]
        assert bool(feed["problem"]) == bool(parsed.bozo), url
        assert bool(feed["entries"]) == bool(parsed.entries), url
        assert feed["entries"] == feed["guids"], url  # an overlap leaves duplicates
    for url, reason in zip(urls[len(corpus) :], REASONS, strict=True):
        assert reason in feeds[url]["problem"]


def _content_type(body: bytes) -> str:
    header = re.search(rb"^Header:\s+Content-type:\s*(.+)$", body, re.MULTILINE | re.IGNORECASE)
    return header[1].decode().strip() if header else "application/xml"
