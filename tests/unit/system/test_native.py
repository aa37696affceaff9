"""Native threads beside greenlets run while these compute, leave nothing, and take no lock of theirs."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest

from celery_exclusive.seams.python import original
from celery_exclusive.system.threads import NativeThread, is_green, run_in_hub

HEAD = """
from gevent import monkey; monkey.patch_all()
import logging, os, socket, sys, time, gevent
from celery_exclusive.seams.python import original
from celery_exclusive.system.threads import NativeThread, run_in_hub, is_green
assert is_green()
sleep = original("time", "sleep")
"""
COMPUTING = """
beats = []
def beat():
    for _ in range(5):
        sleep(0.05)
        beats.append(1)
thread = NativeThread(beat)
thread.start()
deadline = time.monotonic() + 30
while len(beats) < 5 and time.monotonic() < deadline:
    pass
assert len(beats) == 5
"""
LEAVING = """
def speak():
    with socket.create_connection(server.getsockname()) as connection:
        connection.sendall(b"x")
server = socket.create_server(("127.0.0.1", 0))
def serve():
    while True:
        server.accept()[0].recv(1)
gevent.spawn(serve)
counts = []
for _ in range(20):
    thread = NativeThread(speak)
    thread.start()
    thread.join(30)
    gevent.sleep(0.01)
    counts.append(len(os.listdir("/proc/self/fd")))
assert max(counts) < min(counts) + 5, counts
"""
LOGGING = """
logging.basicConfig(filename=sys.argv[1], level=logging.INFO)
logger = logging.getLogger("x")
until = time.monotonic() + 3
def thread_says():
    while time.monotonic() < until:
        run_in_hub(logger.warning, "from a thread")
        sleep(0.002)
def greenlet_says():
    while time.monotonic() < until:
        logger.info("from a greenlet")
        gevent.sleep(0)
thread = NativeThread(thread_says)
thread.start()
greenlets = [gevent.spawn(greenlet_says) for _ in range(20)]
gevent.joinall(greenlets, timeout=30)
assert all(greenlet.ready() for greenlet in greenlets)
gevent.sleep(0.1)
assert "from a thread" in open(sys.argv[1]).read()
"""
SHARING_A_STORE = """
from celery_exclusive.core.operations import Acquire, Release, Renew
from celery_exclusive.stores.base import open_store
store = open_store("memory://")
until = time.monotonic() + 2
def renew():
    while time.monotonic() < until:
        store.renew([(str(n), Renew(f"a/{n}", "token", 1_000_000)) for n in range(20)])
def take_and_give(n):
    while time.monotonic() < until:
        store.apply(str(n), Acquire(f"a/{n}", "token", 1_000_000))
        store.apply(str(n), Release(f"a/{n}", "token", True))
        gevent.sleep(0)
thread = NativeThread(renew)
thread.start()
greenlets = [gevent.spawn(take_and_give, n) for n in range(20)]
gevent.joinall(greenlets, timeout=30)
assert all(greenlet.successful() for greenlet in greenlets)
"""


@pytest.mark.proves("body that computes")
@pytest.mark.parametrize(
    "script",
    [COMPUTING, LEAVING, LOGGING, SHARING_A_STORE],
    ids=["computing", "leaving", "logging", "sharing a store"],
)
def test_beside_greenlets(script: str, tmp_path) -> None:
    pytest.importorskip("gevent")
    subprocess.run([sys.executable, "-c", HEAD + script, str(tmp_path / "log")], check=True, timeout=60)


def test_without_greenlets_it_is_an_ordinary_thread() -> None:
    assert not is_green()
    assert original("threading", "Lock") is threading.Lock
    done = threading.Event()
    thread = NativeThread(lambda: run_in_hub(done.set))
    thread.start()
    thread.join(30)
    assert done.is_set()
