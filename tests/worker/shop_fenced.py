"""A task of the shop that writes to something which compares fences."""

from __future__ import annotations

from celery import Task

from celery_exclusive import Exclusive
from celery_exclusive.errors import LeaseLost
from tests.worker.shop import app, doors, journal, noted, task

__all__ = ["app"]
WRITE = """
if tonumber(ARGV[1]) < tonumber(redis.call('HGET', KEYS[1], 'fence') or '0') then return 0 end
redis.call('HSET', KEYS[1], 'fence', ARGV[1], 'tag', ARGV[2])
return 1
"""


@task(exclusive=Exclusive("key"))
def save(self: Task, key: str, tag: str = "", hold: bool = False, check: bool = False) -> str:
    fence = self.lease.fence
    journal.write("start", task=self.name, id=self.request.id, key=key, tag=tag, fence=fence)
    if hold:
        doors.blpop([f"door:{tag}"], timeout=100)
    try:
        if check:
            self.lease.check()
        is_written = doors.eval(WRITE, 1, f"resource:{key}", fence, tag)
        noted("written" if is_written else "refused", self, tag)
    except LeaseLost as error:
        noted("lost", self, tag, error=str(error))
        raise
    finally:
        journal.write("end", task=self.name, id=self.request.id, key=key, tag=tag, fence=fence)
    return tag
