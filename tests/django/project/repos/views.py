"""What the web process can be asked."""

import redis
from courier.tasks import deliver
from django.conf import settings
from django.db import transaction
from django.http import JsonResponse
from django.urls import path

from repos.models import Repo
from repos.record import where
from repos.tasks import announce, describe, sync

TASKS = {"sync": sync, "describe": describe, "deliver": deliver}


def create(request, tag, how):
    """Make a repo and have it synchronised, once the transaction is over."""
    with transaction.atomic():
        repo = Repo.objects.create(name=tag)
        sync.delay_on_commit(repo.pk, tag)
        queued = redis.from_url(settings.CELERY_BROKER_URL).llen(settings.CELERY_TASK_DEFAULT_QUEUE)
        transaction.set_rollback(how == "rollback")
    return JsonResponse({"repo": repo.pk, "queued": queued})


def twice(request, tag, how):
    """Announce one repo twice, once the transaction is over, and once more after it."""
    with transaction.atomic():
        for _ in range(2):
            announce.delay_on_commit(17, tag)
        taken = announce.lock_state(17, tag).unique_holder
        transaction.set_rollback(how == "rollback")
    return JsonResponse({"taken": bool(taken), "outcome": announce.delay(17, tag).outcome})


def call(request, task, what, tag):
    return JsonResponse({"id": TASKS[task].delay(_argument(task, what), tag).id})


def state(request, task, what):
    now = TASKS[task].lock_state(_argument(task, what), "any")
    return JsonResponse(
        {
            "key": now.key,
            **where(TASKS[task]),
            "holders": [holder.task_id for holder in now.holders],
            "waiting": now.waiting,
        }
    )


def syncs(request, repo_id):
    return JsonResponse({"syncs": Repo.objects.get(pk=repo_id).syncs})


def _argument(task, what):
    return Repo.objects.only("pk").get(pk=what) if task == "describe" else what


urlpatterns = [
    path("create/<tag>/<how>", create),
    path("twice/<tag>/<how>", twice),
    path("call/<task>/<what>/<tag>", call),
    path("state/<task>/<what>", state),
    path("syncs/<int:repo_id>", syncs),
]
