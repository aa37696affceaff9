"""A worker, or the reaper, of a stress run: a process that expects to be killed at any instruction."""

from __future__ import annotations

import os
import random
import time
from itertools import count
from secrets import token_hex

from celery_exclusive.core.operations import Acquire, Applied, Granted, Held, Parked, Release, Renew
from celery_exclusive.stores.base import Reply
from tests.stress.broker import Consumer, Message
from tests.stress.journal import Journal, read
from tests.stress.plan import Plan, limit_of
from tests.stress.section import Section, write


class Worker:
    def __init__(self, plan: Plan, seed: str) -> None:
        self.plan = plan
        self.ttl = 1 if plan.fault == "short leases" else int(plan.ttl * 1e6)
        self.random = random.Random(seed)
        self.store = plan.open_store()
        self.journal = Journal(plan.path("journal"))
        self.broker = Consumer(str(plan.path("broker")))
        self.numbers = count()

    def work(self) -> None:
        while delivery := self.broker.get():
            self.handle(*delivery)

    def reap(self) -> None:
        while True:
            self.broker.publish(self.store.reap(every=50_000).wake)
            time.sleep(0.05)

    def handle(self, tag: int, message: Message) -> None:
        name, token = f"{os.getpid()}.{next(self.numbers)}", token_hex(8)
        self.journal.write("attempt", name, [message.id, message.key, message.kind])
        sent = time.monotonic()
        reply = self.acquire(message, token)
        self.journal.write(type(reply.answer).__name__, name)
        self.broker.publish(reply.wake)
        barges = self.plan.fault == "barge" and isinstance(reply.answer, Parked)
        if isinstance(reply.answer, Granted) or barges:
            fence = reply.answer.fence if isinstance(reply.answer, Granted) else 0
            if not self.run(message, token, name, sent, fence):
                self.broker.requeue(tag)
                return
        elif isinstance(reply.answer, Held) and not self.store.capabilities.line:
            self.broker.postpone(tag)
            return
        elif isinstance(reply.answer, Held):
            while self.store.inspect(message.key).holders:
                time.sleep(0.001)  # the gap between two steps, in which the holder releases
            self.broker.shelve(message)
        self.broker.ack(tag)

    def acquire(self, message: Message, token: str) -> Reply:
        parked = None if self.plan.fault == "park in two steps" else f"message of {message.id}".encode()
        return self.store.apply(
            message.key,
            Acquire(
                message.id,
                token,
                self.ttl,
                limit_of(message.key),
                message.redelivered,
                message.promoted,
                acks_late=True,
                message=parked,
            ),
        )

    def run(self, message: Message, token: str, name: str, sent: float, fence: int) -> bool:
        """The task: its part in the section, its write, its end. False: it wants to run again."""
        limit = limit_of(message.key)
        section = Section(self.plan.path("."), message.key, limit)
        self.journal.write("lease", name, [fence, sent + self.plan.ttl])
        if not section.enter():
            self.journal.write("overlap", name)
        while self.plan.meets and not self.has_met():
            time.sleep(0.001)
        time.sleep(self.random.uniform(self.plan.body / 2, self.plan.body))
        if self.random.random() < 0.2:
            self.renew(message, token, name)
        if limit == 1:
            self.journal.write("written", name, write(self.plan.path("."), message.key, fence))
        finished = self.random.random() >= self.plan.unfinished
        section.leave()
        self.journal.write("left", name)
        if finished:
            self.journal.write("effect", name)
        done = finished or self.plan.fault == "unfinished is done"
        reply = self.store.apply(message.key, Release(message.id, token, "done" if done else "open"))
        if self.plan.fault != "silent release":
            self.broker.publish(reply.wake)
        if self.plan.fault == "park in two steps":
            self.broker.unshelve(message.key)
        self.journal.write("released", name, [reply.answer == Applied(True), finished])
        return finished

    def has_met(self) -> bool:
        events, _ = read(self.plan.path("journal"))
        return self.plan.meets in {event.what for event in events}

    def renew(self, message: Message, token: str, name: str) -> None:
        sent = time.monotonic()
        if self.store.renew([(message.key, Renew(message.id, token, self.ttl))]) == [True]:
            self.journal.write("renewed", name, sent + self.plan.ttl)


def work(plan: Plan, role: str, seed: str) -> None:
    """Be a process of the run until it is over."""
    try:
        worker = Worker(plan, seed)
        worker.reap() if role == "reaper" else worker.work()
    except (EOFError, ConnectionError, FileNotFoundError):
        pass  # the broker has gone: the run is over
