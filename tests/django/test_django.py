"""A Django project with web process, worker and tests of its own: they agree, and nothing is in the way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.django.conftest import DjangoLab
from tests.worker.journal import eventually


@pytest.mark.promise(
    "Django: web process and worker agree on key and store; `delay_on_commit` publishes at the commit, "
    "nothing after a rollback",
    broke="settings not read from the namespace; another prefix in web; published before the commit",
)
def test_web_process_and_worker_agree_on_a_lock_and_publish_at_the_commit(lab: DjangoLab):
    lab.start_web()
    undone, made = lab.ask("create/undone/rollback"), lab.ask("create/made/commit")
    assert (undone["queued"], made["queued"], lab.messages_at_the_broker()) == (0, 0, 1)
    lab.start_worker()
    (start,) = lab.journal.wait_for("start")
    state = lab.ask("state/sync", made["repo"])
    assert (start["tag"], start["prefix"]) == ("made", "repos")
    assert state == {**where(start), "key": f"x=repo:{made['repo']}", "holders": [start["id"]], "waiting": 0}

    lab.ask("call/sync", made["repo"], "second")
    eventually(lambda: lab.ask("state/sync", made["repo"])["waiting"] == 1, "one in line")
    assert lab.journal.tags() == ["made"]
    lab.open("made", "second")
    lab.journal.wait_for("end", 2)
    eventually(lambda: not lab.ask("state/sync", made["repo"])["holders"], "a free lock")
    assert lab.ask("syncs", made["repo"]) == {"syncs": 2}
    assert lab.journal.most_open() == 1


@pytest.mark.promise(
    "`delay_on_commit` in Django publishes a unique call once at the commit; a rollback acquires no key",
    broke="a conflict is sent",
)
def test_a_unique_task_is_published_once_at_the_commit_and_not_at_a_rollback(lab: DjangoLab):
    lab.start_web()
    assert lab.ask("twice/undone/rollback") == {"taken": False, "outcome": "published"}
    assert lab.messages_at_the_broker() == 1
    lab.start_worker()
    lab.journal.wait_for("start", tag="undone")
    assert lab.doors.keys("*:l:u:*announce*")
    lab.open("undone")
    eventually(lambda: not lab.doors.keys("*:l:u:*announce*"), "a free key")
    assert lab.ask("twice/made/commit") == {"taken": False, "outcome": "skipped"}
    lab.open("made")
    lab.journal.wait_for("end", tag="made")
    assert lab.journal.tags() == ["undone", "made"]


@pytest.mark.promise(
    "Model instances are keys; `task_annotations` lock a third-party task, and one for a task that is not "
    "there is reported",
    broke="no model keys; a key of other arguments; no warning",
)
def test_a_model_instance_is_a_key_and_a_task_of_others_is_locked_by_an_annotation(lab: DjangoLab):
    lab.start_web()
    worker = lab.start_worker(concurrency=3)
    slip = "exclusive= of task 'courier.tasks.delivre' does nothing"
    assert "did you mean 'courier.tasks.deliver'?" in worker.wait_for_log(slip)
    repo = lab.ask("create/repo/commit")["repo"]
    lab.open("repo")
    holder = lab.ask("call/describe", repo, "described")["id"]
    (described,) = lab.journal.wait_for("start", tag="described")
    assert lab.ask("state/describe", repo) == {**where(described), "holders": [holder], "waiting": 0}
    skipped = lab.ask("call/describe", repo, "skipped")["id"]
    assert holder in worker.wait_for_log(f"[{skipped}] skipped: lock {described['key']} ")

    lab.ask("call/deliver/Elm%20Street/first")
    (delivered,) = lab.journal.wait_for("start", tag="first")
    lab.ask("call/deliver/Elm%20Street/second")
    lab.ask("call/deliver/Oak%20Street/other")
    lab.journal.wait_for("start", tag="other")
    expected = {**where(delivered), "holders": [delivered["id"]], "waiting": 1}
    eventually(lambda: lab.ask("state/deliver/Elm%20Street") == expected, "one in line for Elm Street")
    lab.open("described", "first", "second", "other")
    lab.journal.wait_for("end", 5)
    assert set(lab.journal.tags()) == {"repo", "described", "first", "second", "other"}


@pytest.mark.promise(
    "Misspelt settings stop worker and caller",
    name="misspelt settings",
    broke="only `exclusive_` looked for; a cutoff of 0.6",
)
@pytest.mark.parametrize("name", ["exclusiv_ttl", "exclusive_tll"])
def test_a_misspelt_setting_stops_worker_and_caller_with_the_one_that_was_meant(
    make_lab: Callable[..., DjangoLab], name: str
):
    lab = make_lab(**{name: 5})
    said = f"setting CELERY_{name.upper()} is unknown"
    call = lab.run("-c", "import django; django.setup(); from repos.tasks import sync; sync.delay(1, 'tag')")
    worker = lab.start_worker(ready=False)
    assert (call.returncode, worker.process.wait(60)) == (1, 1)
    for output in (call.stdout, worker.log):
        assert said in output
        assert "did you mean 'CELERY_EXCLUSIVE_TTL'?" in output
    assert lab.messages_at_the_broker() == 0


@pytest.mark.promise(
    "The tests of a Django project pass with `TestCase`, `captureOnCommitCallbacks` and eager tasks, "
    "without broker and store",
    broke="eager tasks that ask the store",
)
def test_the_projects_own_tests_pass_without_broker_and_store(make_lab: Callable[..., DjangoLab]):
    nowhere = "redis://127.0.0.1:1"
    lab = make_lab(task_always_eager=True, broker_url=nowhere, result_backend=nowhere)
    done = lab.run("-m", "django", "test", "repos")
    assert done.returncode == 0, done.stdout
    assert "Ran 7 tests" in done.stdout


def where(event: dict[str, Any]) -> dict[str, Any]:
    return {name: event[name] for name in ("key", "store", "prefix")}
