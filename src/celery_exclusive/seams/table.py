"""The private names of other packages that this library touches, and the public ones that it replaces.

Things are slower without a name that has a part. A promise depends on each of the others. Names that older
versions lack are read with a default: they stand in the file of their package alone.
"""

from __future__ import annotations

from typing import Final

from celery_exclusive.seams.seam import Seam

SEAMS: Final = (
    Seam("_signal", "signal", "2.7", "ignore a soft time limit during a release", parts=("signals",)),
    Seam("_thread", "_local", "2.4", "keep the connections of threads and of greenlets apart"),
    Seam("_thread", "RLock", "3.2", "guard data against a signal handler of the same thread"),
    Seam(
        "celery.app.base", "Celery._task_from_fun", "3.0", "check the options of a task when it is declared"
    ),
    Seam(
        "celery.app.base",
        "Celery._tasks",
        "3.0",
        "find the tasks of an app without making those that are still pending",
    ),
    Seam(
        "celery.app.base", "Celery._conf", "4.0", "mask URLs in the settings of an app before they are loaded"
    ),
    Seam("celery.app.utils", "Settings.prefix", "4.0", "find misspelt settings"),
    Seam(
        "celery.app.utils",
        "Settings.table",
        "3.1",
        "mask URLs in the settings that Celery reports",
        parameters="with_defaults censored",
    ),
    Seam(
        "celery.app.task", "extract_exec_options", "3.0", "know the options of a call as Celery will send it"
    ),
    Seam(
        "celery.worker.request",
        "Request._announce_revoked",
        "3.0.6",
        "release the leases of a revoked or expired task",
        parameters="reason terminated signum expired",
    ),
    Seam(
        "celery.worker.request",
        "Request._already_revoked",
        "1.1",
        "end the obsolete copy of a revoked task quietly",
    ),
    Seam(
        "celery.worker.request",
        "Request._context",
        "4.3",
        "keep its own data out of the context that errbacks get",
    ),
    Seam(
        "celery.worker.request",
        "Request.worker_pid",
        "2.2",
        "wait for the end of a child before its leases are released",
    ),
    Seam(
        "celery.worker.request",
        "Request.request_dict",
        "4.4",
        "give a delivery to the child that executes it",
    ),
    Seam(
        "celery.worker.request",
        "create_request_cls",
        "3.1.24",
        "renew the leases of a task while it is in the pool",
    ),
    Seam("celery.app.task", "Task.__trace__", "3.0", "put its gate around the body of a task"),
    Seam("celery.app.trace", "trace_ok_t", "4.0", "end a task without its body"),
    Seam("celery.app.trace", "TraceInfo", "3.1", "end a task without its body"),
    Seam(
        "celery.worker.consumer.consumer",
        "Consumer.strategies",
        "2.5",
        "deliver a message to a task of this worker",
    ),
    Seam("celery.apps.worker", "Worker.startup_info", "2.1", "show the store in the banner of a worker"),
    Seam(
        "celery.concurrency.base",
        "BasePool._pool",
        "2.2",
        "receive the next message from a child",
        parts=("relay",),
    ),
    Seam(
        "billiard.pool",
        "Pool._result_handler",
        "2.7.3",
        "receive the next message from a child",
        parts=("relay",),
    ),
    Seam(
        "billiard.pool",
        "ResultHandler.state_handlers",
        "2.7.3",
        "receive the next message from a child",
        parts=("relay",),
    ),
    Seam("billiard.pool", "Pool.index", "3.3", "know which slot of the roster a child has"),
    Seam("billiard.pool", "Worker.outq", "0.2", "send the next message from a child", parts=("relay",)),
    Seam(
        "billiard.queues",
        "_SimpleQueue.send_payload",
        "3.5",
        "send the next message from a child",
        parts=("relay",),
    ),
    Seam(
        "kombu.asynchronous.semaphore",
        "LaxBoundedSemaphore._waiting",
        "2.5.16",
        "choose the next request",
        parts=("slots",),
    ),
    Seam(
        "kombu.asynchronous.semaphore",
        "LaxBoundedSemaphore._add_waiter",
        "2.5.16",
        "choose the next request",
        parts=("slots",),
    ),
    Seam(
        "kombu.asynchronous.semaphore",
        "LaxBoundedSemaphore._pop_waiter",
        "2.5.16",
        "choose the next request",
        parts=("slots",),
    ),
    Seam(
        "kombu.messaging",
        "Consumer._basic_consume",
        "0.9.1",
        "note the queue of a message, and tell the copies of a broadcast apart",
    ),
    Seam(
        "kombu.messaging",
        "Consumer._receive_callback",
        "0.1",
        "note the queue of a message, and tell the copies of a broadcast apart",
        parameters="message",
    ),
    Seam(
        "kombu.messaging",
        "Producer._publish",
        "2.2.1",
        "give a message its place in line before it is sent",
        parameters="body priority content_type content_encoding headers properties routing_key exchange "
        "declare",
    ),
    Seam(
        "kombu.messaging",
        "Producer._prepare",
        "0.2",
        "compress a message for the head of its queue",
        parts=("head of the queue",),
        parameters="body serializer content_type content_encoding compression headers",
    ),
    Seam(
        "kombu.resource",
        "Resource._dirty",
        "0.2",
        "know whether a producer is of the pool",
        parts=("one call",),
    ),
    Seam(
        "kombu.transport.redis",
        "Channel._create_client",
        "2.0",
        "keep the client of a channel",
        parts=("kept client", "one call"),
        parameters="asynchronous",
    ),
    Seam(
        "kombu.transport.redis",
        "Channel._put",
        "2.0",
        "know how kombu pushes a message",
        parts=("one call",),
        parameters="queue message",
        uses="dumps lpush",
    ),
    Seam(
        "kombu.transport.redis",
        "Channel._q_for_pri",
        "4.6.6",
        "find the list of a priority",
        parts=("head of the queue", "one call"),
        parameters="queue pri",
    ),
    Seam(
        "kombu.transport.redis",
        "Channel._get_message_priority",
        "4.0",
        "find the list of a priority",
        parts=("head of the queue", "one call", "relay"),
        parameters="message",
    ),
    Seam(
        "kombu.transport.redis",
        "Channel._inplace_augment_message",
        "4.0",
        "complete a message as kombu does",
        parts=("head of the queue", "one call"),
        parameters="message exchange routing_key",
    ),
    Seam(
        "kombu.transport.redis",
        "Channel._lookup",
        "0.9.1",
        "find the queues of an exchange",
        parts=("head of the queue", "one call"),
        parameters="exchange routing_key",
    ),
    Seam(
        "kombu.transport.redis",
        "Channel.priority_steps",
        "2.2",
        "know whether the broker may have a message of a higher priority",
        parts=("relay",),
    ),
    Seam(
        "kombu.transport.redis",
        "Channel.active_fanout_queues",
        "2.0",
        "know which messages cannot be published again",
    ),
    Seam(
        "redis.connection", "Connection._sock", "2.4.6", "speak the protocol itself", parts=("own protocol",)
    ),
    Seam("redis.connection", "Connection._parser", "2.4.6", "raise its errors", parts=("own protocol",)),
    Seam("pymysql.connections", "Connection._read_timeout", "0.7.3", "limit the time of a store call"),
    Seam("pymysql.connections", "Connection._write_timeout", "0.7.3", "limit the time of a store call"),
    Seam("pymysql.connections", "Connection._sock", "0.6.7", "let the system probe an idle connection"),
    Seam(
        "pymysql.connections",
        "Connection._create_ssl_ctx",
        "0.7",
        "make the TLS context of a connection",
        parts=("TLS",),
        parameters="sslp",
    ),
    Seam("psycopg.errors", "_WaitTimeout", "3.2", "limit the time of a store call"),
    Seam("psycopg.generators", "execute", "3.0", "read the result of a statement"),
    Seam(
        "django.db.backends.base.base",
        "BaseDatabaseWrapper.atomic_blocks",
        "4.1",
        "tell the transaction of a test from one of its code",
    ),
    Seam(
        "django.db.backends.base.base",
        "BaseDatabaseWrapper.closed_in_transaction",
        "1.8",
        "release a lock when the transaction around it ends",
    ),
    Seam(
        "django.db.transaction",
        "Atomic._from_testcase",
        "4.1",
        "tell the transaction of a test from one of its code",
    ),
)
OF_PUBLISHERS: Final = tuple(
    seam for seam in SEAMS if seam.name.startswith(("Celery.", "Producer.", "extract_exec_options"))
)
"""The names that processes need which only publish."""
