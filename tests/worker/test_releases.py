"""This release beside the last one on one queue: messages, lines, leases and unique keys of either."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.worker.lab import REPOSITORY, eventually
from tests.worker.message import stop_consuming
from tests.worker.releases import Release, last_tag, unpack

TAG = last_tag()
OLD = TAG or "no-tag-so-this-tree-itself"
both_ways = pytest.mark.parametrize(
    ("first", "second"),
    [
        pytest.param(OLD, "this", id=f"{OLD}-then-this"),
        # Without a tag the one is the other.
        pytest.param("this", OLD, id=f"this-then-{OLD}", marks=[pytest.mark.large] * (not TAG)),
    ],
)


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The folders of the two packages, by the names of the releases."""
    return {OLD: unpack(TAG, tmp_path_factory.mktemp("release")), "this": REPOSITORY / "src"}


@pytest.fixture
def ttl() -> int:
    """The ttl of all leases: longer than a machine may stand still."""
    return 60


@pytest.fixture
def releases(
    first: str, second: str, ttl: int, packages: dict[str, Path], redis_url: str, tmp_path: Path
) -> Iterator[tuple[Release, Release]]:
    """The two releases in the order of the test, on one Redis and one journal."""
    conf = {"task_acks_late": True, "task_reject_on_worker_lost": True, "exclusive_ttl": ttl}
    with ExitStack() as labs:
        yield tuple(
            labs.enter_context(Release(redis_url, tmp_path, conf, packages[name])) for name in (first, second)
        )


def published(release: Release, name: str, *args: Any) -> str:
    """Publish a call that is no duplicate, and return its id."""
    answer = release.publish(name, *args)
    assert (answer["package"], answer["outcome"]) == (str(release.package), "published")
    return str(answer["id"])


def line_up(release: Release, name: str, *calls: tuple[Any, ...]) -> list[str]:
    """Let these calls wait, one behind the other, and return their ids."""
    ids = []
    for call in calls:
        ids.append(published(release, name, *call))
        eventually(lambda: ids[-1] in release.state(name, call[0])["line"], f"{call} in line")  # noqa: B023
    return ids


def ran_under(release: Release, *tags: str) -> bool:
    """Whether the last run of each of these tags was a body of this release."""
    packages = {event["tag"]: event["package"] for event in release.journal.events("package")}
    return {packages[tag] for tag in tags} == {str(release.package)}


@pytest.mark.promise(
    "A release and the last one before it share a queue, in both directions: each runs the calls, debounced "
    "calls and retries of the other, respects its leases and unique keys, hands on its lines in order, and "
    "recovers the runs of its killed workers",
    name="beside the last release",
    broke="no header, or no stored message, of the other release understood",
)
@both_ways
def test_calls_that_one_release_publishes_run_once_under_the_other(releases: tuple[Release, Release]) -> None:
    publisher, runner = releases
    published(publisher, "line", "k", "a")
    published(publisher, "line", "k", "b")
    published(publisher, "retried", "k", "c")
    for number in range(3):
        published(publisher, "two", "k", f"two {number}")
    queued = published(publisher, "once", "k", "once", True)
    for release in releases:
        duplicate = release.publish("once", "k", "duplicate")
        assert (duplicate["outcome"], duplicate["existing_id"]) == ("skipped", queued)
    published(publisher, "burst", "k", "first")
    assert [release.publish("burst", "k", "newest")["outcome"] for release in releases] == ["updated"] * 2
    runner.start("runner")
    (start,) = runner.journal.wait_for("start", tag="once")
    for release in releases:
        assert release.publish("once", "k", "duplicate")["existing_id"] == start["id"] == queued
    runner.open("once")
    tags = {"a", "b", "c", "c, again", "two 0", "two 1", "two 2", "newest", "once"}
    runner.journal.wait_for("end", len(tags))
    for release in releases:
        eventually(lambda release=release: not release.state("once", "k")["unique_holder"], "a free key")
    assert sorted(runner.journal.tags()) == sorted(tags)
    assert ran_under(runner, *tags)
    assert runner.journal.most_open(task="release.two") <= 2


@pytest.mark.proves("beside the last release")
@both_ways
def test_a_lease_of_one_release_is_respected_and_its_line_is_handed_on_by_the_other(
    releases: tuple[Release, Release],
) -> None:
    before, after = releases
    worker = before.start("before")
    held = published(before, "line", "k", "holder", True)
    before.journal.wait_for("start", tag="holder")
    line = line_up(before, "line", ("k", "a"), ("k", "b"))
    after.start("after")
    stop_consuming(after, worker, "lab")
    line += line_up(after, "line", ("k", "c"))
    for release in releases:
        assert release.state("line", "k") == {
            "package": str(release.package), "holders": [held], "line": line, "unique_holder": None,
        }  # fmt: skip
    assert before.journal.tags() == ["holder"]
    before.open("holder")
    before.journal.wait_for("end", tag="c")
    assert before.journal.tags() == ["holder", "a", "b", "c"]
    assert before.journal.most_open() == 1
    assert ran_under(before, "holder")
    assert ran_under(after, "a", "b", "c")
    for release in releases:
        eventually(lambda release=release: not release.state("line", "k")["holders"], "a free key")


@pytest.mark.proves("beside the last release")
@pytest.mark.parametrize("ttl", [3])
@both_ways
def test_runs_of_a_killed_worker_are_recovered_by_the_other_release(
    releases: tuple[Release, Release],
) -> None:
    before, after = releases
    worker = before.start("before")
    ids = [published(before, "line", "k", "a", True), published(before, "once", "k", "once", True)]
    before.journal.wait_for("start", tag="a")
    before.journal.wait_for("start", tag="once")
    line_up(before, "line", ("k", "b"))
    worker.kill()
    after.start("after")
    again = [after.journal.wait_for("start", 2, tag=tag)[1] for tag in ("a", "once")]
    assert [start["id"] for start in again] == ids
    assert after.publish("once", "k", "duplicate")["existing_id"] == ids[1]
    after.open("a", "once")
    after.journal.wait_for("end", tag="b")
    assert after.journal.tags(task="release.line") == ["a", "a", "b"]
    assert ran_under(after, "a", "once", "b")


@pytest.fixture
def repository(tmp_path: Path) -> Callable[..., None]:
    """Runs git in a repository of the test's own: `repository("tag", "v1.0.0")`."""
    identity = ("-c", "user.name=Test", "-c", "user.email=test@example.invalid")

    def git(*words: str) -> None:
        subprocess.run(["git", *identity, *words], cwd=tmp_path, check=True, capture_output=True)

    git("init")
    return git


def test_the_last_release_is_the_newest_tag_before_the_present_commit(
    tmp_path: Path, repository: Callable[..., None]
) -> None:
    def last_after_commit(*tags: str) -> str | None:
        repository("commit", "--allow-empty", "-m", "Change something")
        for tag in tags:
            repository("tag", tag)
        return last_tag(tmp_path)

    assert last_tag(tmp_path) is None
    assert last_after_commit("nightly") is None
    assert last_after_commit("v1.0.0rc1") is None
    assert last_after_commit("v1.0.0") == "v1.0.0rc1"
    assert last_after_commit() == "v1.0.0"
    assert last_after_commit("draft") == "v1.0.0"


def test_the_last_release_is_known() -> None:
    if TAG is None:
        pytest.skip(
            "no tag v* before this commit: this tree ran beside itself (`git fetch --tags --unshallow`)"
        )
