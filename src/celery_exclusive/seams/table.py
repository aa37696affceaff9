"""The private names of other packages that this library touches, and the public ones that it replaces.

Without one that is `faster`, all that only makes things faster is off. A promise depends on each of the
others. Names that older versions lack are read with a default: they stand in the file of their package alone.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from celery_exclusive.seams.seam import Seam

_app = partial(Seam, "celery.app.base")
_settings = partial(Seam, "celery.app.utils")
_trace = partial(Seam, "celery.app.trace")
_request = partial(Seam, "celery.worker.request")
_pool = partial(Seam, "billiard.pool")
_semaphore = partial(Seam, "kombu.asynchronous.semaphore")
_messaging = partial(Seam, "kombu.messaging")
_channel = partial(Seam, "kombu.transport.redis")
_redis = partial(Seam, "redis.connection")
_pymysql = partial(Seam, "pymysql.connections")
_django = partial(Seam, "django.db.backends.base.base")

_COPIES: Final = "note the queue of a message, and tell the copies of a broadcast apart"
_TIME: Final = "limit the time of a store call"
_OF_TESTS: Final = "tell the transaction of a test from one of its code"
_RELAY: Final = "hand the next message on within a worker"
_SLOTS: Final = "choose which waiting request gets a free process"
_PUSH: Final = "acquire a unique key in the call that pushes the message"
_CLIENT: Final = "keep one client of redis-py for each channel"
_TLS: Final = "share a TLS context between connections"
_ROUTE: Final = "push a message past kombu's own code, or to the head of a queue"
_ENCODED: Final = (
    "body priority content_type content_encoding headers properties routing_key mandatory immediate exchange "
    "declare"
)

SEAMS: Final = (
    Seam("_signal", "signal", "2.7", faster="set a signal handler without conversions"),
    Seam("_thread", "_local", "2.4", "keep the connections of threads and of greenlets apart"),
    Seam("_thread", "RLock", "3.2", "guard data against a signal handler of the same thread"),
    _app("Celery._task_from_fun", "3.0", "check the options of a task when it is declared"),
    _app("Celery._tasks", "3.0", "find the tasks of an app without making those that are still pending"),
    _app("Celery._conf", "4.0", "mask URLs in the settings of an app before they are loaded"),
    _settings("Settings.prefix", "4.0", "find misspelt settings"),
    _settings("Settings.table", "3.1", "mask URLs in reported settings", parameters="with_defaults censored"),
    Seam("celery.app.task", "extract_exec_options", "3.0", "know the options of a call as they will be sent"),
    Seam("celery.app.task", "Task.__trace__", "3.0", "put its gate around the body of a task"),
    _trace("trace_ok_t", "4.0", "end a task without its body"),
    _trace("TraceInfo", "3.1", "end a task without its body"),
    _request(
        "Request._announce_revoked",
        "3.0.6",
        "release the leases of a revoked or expired task",
        parameters="reason terminated signum expired",
    ),
    _request("Request._already_revoked", "1.1", "end the obsolete copy of a revoked task quietly"),
    _request("Request._context", "4.3", "keep its own data out of the context that errbacks get"),
    _request("Request.worker_pid", "2.2", "wait for the end of a child before its leases are released"),
    _request("Request.request_dict", "4.4", "give a delivery to the child that executes it"),
    _request("create_request_cls", "3.1.24", "renew the leases of a task while it is in the pool"),
    Seam("celery.worker.consumer.consumer", "Consumer.strategies", "2.5", "deliver a message to its task"),
    Seam("celery.apps.worker", "Worker.startup_info", "2.1", "show the store in the banner of a worker"),
    Seam("celery.concurrency.base", "BasePool._pool", "2.2", faster=_RELAY),
    _pool("Pool._result_handler", "2.7.3", faster=_RELAY),
    _pool("ResultHandler.state_handlers", "2.7.3", faster=_RELAY),
    _pool("Pool.index", "3.3", "know which slot of the roster a child has"),
    _pool("Worker.outq", "0.2", faster=_RELAY),
    Seam("billiard.queues", "_SimpleQueue.send_payload", "3.5", faster=_RELAY),
    _semaphore("LaxBoundedSemaphore._waiting", "2.5.16", faster=_SLOTS),
    _semaphore("LaxBoundedSemaphore._add_waiter", "2.5.16", faster=_SLOTS),
    _semaphore("LaxBoundedSemaphore._pop_waiter", "2.5.16", faster=_SLOTS),
    _messaging("Consumer._basic_consume", "0.9.1", _COPIES),
    _messaging("Consumer._receive_callback", "0.1", _COPIES, parameters="message"),
    _messaging("Producer._publish", "2.2.1", "give a message its place in line", parameters=_ENCODED),
    _messaging("Producer.publish", "2.2.1", faster=_PUSH, uses="_publish"),
    Seam("kombu.resource", "Resource._dirty", "0.2", faster=_PUSH),
    _channel(
        "Channel._create_client",
        "2.0",
        faster=_CLIENT,
        parameters="asynchronous",
    ),
    _channel("Channel._q_for_pri", "4.6.6", faster=_ROUTE, parameters="queue pri"),
    _channel("Channel._get_message_priority", "4.0", faster=_ROUTE, parameters="message"),
    _channel("Channel.priority_steps", "2.2", faster=_RELAY),
    _channel(
        "Channel._put",
        "2.0",
        faster=_PUSH,
        parameters="queue message",
        uses="_get_message_priority _q_for_pri dumps conn_or_acquire lpush",
        # kombu 5.7, for batches and for queues that expire: kombu itself sends these messages.
        may_use="pop add _expires priority_steps pipeline pexpire execute",
    ),
    _channel(
        "Channel._inplace_augment_message", "4.0", faster=_ROUTE, parameters="message exchange routing_key"
    ),
    _channel("Channel._lookup", "0.9.1", faster=_ROUTE, parameters="exchange routing_key"),
    _channel("Channel.active_fanout_queues", "2.0", "know which messages cannot be published again"),
    _redis("Connection._sock", "2.4.6", _TIME),
    _pymysql("Connection._read_timeout", "0.7.3", _TIME),
    _pymysql("Connection._write_timeout", "0.7.3", _TIME),
    _pymysql("Connection._sock", "0.6.7", "let the system probe an idle connection"),
    _pymysql(
        "Connection._create_ssl_ctx",
        "0.7",
        faster=_TLS,
        parameters="sslp",
    ),
    Seam("psycopg.errors", "_WaitTimeout", "3.2", _TIME),
    Seam("psycopg.generators", "execute", "3.0", "read the result of a statement"),
    _django("BaseDatabaseWrapper.atomic_blocks", "4.1", _OF_TESTS),
    _django("BaseDatabaseWrapper.closed_in_transaction", "1.8", "release a lock when its transaction ends"),
    Seam("django.db.transaction", "Atomic._from_testcase", "4.1", _OF_TESTS),
)
OF_PUBLISHERS: Final = tuple(
    seam for seam in SEAMS if seam.name.startswith(("Celery.", "Producer.", "extract_exec_options"))
)
"""The names that processes need which only publish."""
