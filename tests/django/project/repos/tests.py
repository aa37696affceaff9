"""The tests of this project, as its author would write them: they run without a broker and a store."""

from celery.contrib.django.task import DjangoTask
from django.db import transaction
from django.test import TestCase, TransactionTestCase

from celery_exclusive import OptionError
from repos.models import Repo
from repos.tasks import count, describe, name, sync


class InATransaction(TestCase):
    def setUp(self):
        self.repo = Repo.objects.create(name="linux")

    def counted(self):
        self.repo.refresh_from_db()
        return self.repo.syncs

    def test_a_task_runs_where_it_is_called_and_has_a_lease(self):
        assert count.delay(self.repo.pk).get() > 0
        assert self.counted() == 1

    def test_a_task_that_calls_itself_with_its_own_key_does_not_wait_for_itself(self):
        assert count.delay(self.repo.pk, again=True).get() > 0
        assert self.counted() == 2

    def test_on_commit_runs_when_the_test_says_so(self):
        with self.captureOnCommitCallbacks(execute=True) as callbacks:
            count.delay_on_commit(self.repo.pk)
            count.apply_async_on_commit((self.repo.pk,))
            assert self.counted() == 0
        assert (len(callbacks), self.counted()) == (2, 2)

    def test_after_a_rollback_nothing_runs(self):
        with self.captureOnCommitCallbacks(execute=True) as callbacks, transaction.atomic():
            count.delay_on_commit(self.repo.pk)
            transaction.set_rollback(True)
        assert (callbacks, self.counted()) == ([], 0)

    def test_a_saved_instance_is_a_key_and_an_unsaved_one_is_refused(self):
        assert name.delay(self.repo).get() == "linux"
        said = r"argument repo is an unsaved repos\.repo .*save it first"
        with self.assertRaisesRegex(OptionError, said):  # noqa: PT027 - here is no pytest
            name.delay(Repo(name="new"))

    def test_the_tasks_keep_the_base_of_djangos(self):
        for task in (count, describe, name, sync):
            assert isinstance(task, DjangoTask)


class WithRealCommits(TransactionTestCase):
    def test_on_commit_runs_at_the_commit(self):
        repo = Repo.objects.create(name="linux")
        with transaction.atomic():
            count.delay_on_commit(repo.pk)
            repo.refresh_from_db()
            assert repo.syncs == 0
        repo.refresh_from_db()
        assert repo.syncs == 1
