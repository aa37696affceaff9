"""Waking whom a reply names, from a process that is no worker."""

from __future__ import annotations

from typing import TYPE_CHECKING

from celery_exclusive import notices
from celery_exclusive.errors import ExclusiveError
from celery_exclusive.namespace import keep_namespace, own_broker
from celery_exclusive.parking import Post
from celery_exclusive.stores.base import Reply

if TYPE_CHECKING:
    from celery_exclusive.install import Installation


def follow_up(installation: Installation, reply: Reply) -> None:
    """Publish what a reply wakes, if the namespace is that of this app's broker.

    If it is not, or cannot be asked, the workers' reaper publishes it when the offer has run out.
    """
    if not reply.wake and not reply.aside:
        return
    try:
        keep_namespace(installation, own_broker(installation))
    except ExclusiveError as error:
        notices.trouble("a task that waits is woken a little later, and not from here", error)
        return
    post = Post(installation.app, own_connection=True)  # the pool's may be those of a parent process
    try:
        post.follow_up(reply)
    finally:
        post.close()
