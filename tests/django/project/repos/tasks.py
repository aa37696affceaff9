"""Shared tasks with options."""

from celery import shared_task

from celery_exclusive import Exclusive, Unique
from repos.models import Repo
from repos.record import act


@shared_task(bind=True, exclusive=Exclusive(key="repo:{repo_id}"))
def sync(self, repo_id, tag):
    repo = Repo.objects.get(pk=repo_id)
    act(self, tag)
    repo.syncs += 1  # two at once would count one
    repo.save()


@shared_task(bind=True, unique=Unique("repo_id"), exclusive=Exclusive("repo_id"))
def announce(self, repo_id, tag):
    act(self, tag)


@shared_task(bind=True, serializer="pickle", exclusive=Exclusive("repo", on_conflict="skip"))
def describe(self, repo, tag):
    act(self, tag)


@shared_task(bind=True, exclusive=Exclusive(key="repo:{repo_id}"))
def count(self, repo_id, again=False):
    repo = Repo.objects.get(pk=repo_id)
    repo.syncs += 1
    repo.save()
    if again:
        count.delay(repo_id)
    return self.lease.fence


@shared_task(serializer="pickle", exclusive=Exclusive("repo"))
def name(repo):
    return repo.name
