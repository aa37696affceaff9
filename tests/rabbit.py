"""A real RabbitMQ for tests: a process of its own, on free ports, in a directory of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from itertools import count
from pathlib import Path

from tests.redis_tls import Certificates
from tests.servers import NoServer, Server, free_port

NODE = "test@localhost"
MADE = Path(__file__).parents[1] / ".venv/rabbitmq"
CONFIGURATION = """
log.console.level = info
disk_free_limit.absolute = 10MB
vm_memory_high_watermark.absolute = 500MB
raft.wal_max_size_bytes = 4000000
"""
TLS = """
listeners.ssl.1 = 127.0.0.1:{}
ssl_options.cacertfile = {}
ssl_options.certfile = {}
ssl_options.keyfile = {}
ssl_options.verify = verify_peer
ssl_options.fail_if_no_peer_cert = true
"""
# Erlang's name server beside it, in its process group; else one would stay behind for ever.
START = 'epmd -address 127.0.0.1 & exec "$1"'
# A names file instead of a helper process that looks names up; one scheduler, which waits idly: others
# work here too.
ERLANG_OPTIONS = (
    "+S 1:1 +sbwt none +sbwtdcpu none +sbwtdio none "
    '-kernel inet_dist_use_interface {{127,0,0,1}} -kernel inetrc "{names}"'
)


def rabbitmq_folder() -> Path:
    """Where Debian's packages are: unpacked beside our Python, or by `make`, or installed."""
    for folder in (Path(sys.prefix, "rabbitmq"), MADE, Path("/")):
        if Path(folder, "usr/lib/rabbitmq/bin/rabbitmq-server").exists():
            return folder
    raise NoServer("no RabbitMQ server here: install rabbitmq-server")


class RabbitServer(Server):
    """A RabbitMQ on a port of its own.

        with RabbitServer() as server:
            app = Celery(broker=server.new_url())
            server.close_connections()
            server.restart()

    What is durable survives a restart. With `certificates` it speaks TLS too, on `tls_port`, with clients
    that have one of the same authority.
    """

    start_seconds = 60.0
    tries = 3

    def __init__(self, certificates: Certificates | None = None) -> None:
        folder = rabbitmq_folder()
        self._certificates = certificates
        self._program = folder / "usr/lib/rabbitmq/bin/rabbitmq-server"
        self._erlang = folder / "usr/lib/erlang/bin"
        self._virtual_hosts = count(1)
        super().__init__("rabbit")

    def new_url(self) -> str:
        """The URL of a new virtual host, which shares no queue with any other; starts what is down."""
        if not self.is_up:
            self.start()
        host = f"v{next(self._virtual_hosts)}"
        self.tell(f'rabbit_vhost:add(<<"{host}">>, <<"tests">>)')
        rights = '<<".*">>, <<".*">>, <<".*">>'
        self.tell(
            f'rabbit_auth_backend_internal:set_permissions(<<"guest">>, <<"{host}">>, {rights}, <<"tests">>)'
        )
        return f"amqp://guest:guest@127.0.0.1:{self.port}/{host}"

    def drop(self, url: str) -> None:
        """Forget the virtual host of this URL, and all that is in it."""
        if self.is_up:
            self.tell(f'rabbit_vhost:delete(<<"{url.rpartition("/")[2]}">>, <<"tests">>)')

    def messages(self, url: str, queue: str) -> int:
        """How many it has of a queue: those that are ready, and those delivered and not acknowledged."""
        found = f"{{ok, Queue}} = {_look_up(url, queue)}"
        count_all = "ra:leader_query(amqqueue:get_pid(Queue), fun rabbit_fifo:query_messages_total/1)"
        quorum = f"rabbit_quorum_queue -> {{ok, {{_, N}}, _}} = {count_all}, N"
        classic = "_ -> [{messages, N}] = rabbit_amqqueue:info(Queue, [messages]), N"
        return int(self.tell(f"{found}, case amqqueue:get_type(Queue) of {quorum}; {classic} end"))

    def bindings(self, url: str, queue: str) -> str:
        """The keys by which a queue is bound to exchanges, as Erlang prints them."""
        found = f"rabbit_binding:list_for_destination({_name(url, queue)})"
        return self.tell(f"[binary_to_atom(Key) || {{binding, _, Key, _, _}} <- {found}]")

    def delete(self, url: str, queue: str) -> None:
        """Delete a queue with its bindings and all that is in it."""
        found = f"{{ok, Queue}} = {_look_up(url, queue)}"
        self.tell(f'{found}, rabbit_amqqueue:delete(Queue, false, false, <<"tests">>)')

    def close_connections(self) -> None:
        """Close all its clients' connections, as an operator would."""
        self.tell('rabbit_networking:close_connections(rabbit_networking:connections(), "by the tests")')

    def tell(self, expression: str) -> str:
        """Let it evaluate an expression of Erlang, and return the value as text.

        Again if it fails: inside of it calls end after five seconds, also while the machine stands still.
        """
        said = ""
        for _ in range(self.tries):
            said = self._call(expression, self.start_seconds)
            if said.startswith("{ok, "):
                return said[len("{ok, ") : -1]
        raise RuntimeError(f"RabbitMQ answers {said!r} to {expression}")

    def _call(self, expression: str, seconds: float) -> str:
        """Return what Erlang's own client prints; it waits for an answer no longer than this."""
        timeout = str(int(seconds))
        done = subprocess.run(
            [self._erlang / "erl_call", "-c", self._cookie, "-n", NODE, "-timeout", timeout, "-e"],
            input=f"{expression}.\n".encode(), env=self._environment, capture_output=True, check=False,
        )  # fmt: skip
        return (done.stdout + done.stderr).decode(errors="replace")

    @property
    def _cookie(self) -> str:
        return (self._directory / ".erlang.cookie").read_text()

    @property
    def _environment(self) -> dict[str, str]:
        folder = str(self._directory)
        return {
            "PATH": os.pathsep.join([str(self._erlang), os.environ.get("PATH", os.defpath)]),
            "HOME": folder,  # for its cookie
            "ERL_CRASH_DUMP": f"{folder}/crash",
            "ERL_EPMD_PORT": str(self._names_port),
            "RABBITMQ_NODENAME": NODE,
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODE_PORT": str(self.port),
            "RABBITMQ_DIST_PORT": str(self._peer_port),
            "RABBITMQ_MNESIA_BASE": f"{folder}/data",
            "RABBITMQ_LOG_BASE": folder,
            "RABBITMQ_LOGS": "-",
            "RABBITMQ_CONFIG_FILE": f"{folder}/rabbitmq.conf",
            "RABBITMQ_ADVANCED_CONFIG_FILE": f"{folder}/none",
            "RABBITMQ_CONF_ENV_FILE": f"{folder}/none",
            "RABBITMQ_ENABLED_PLUGINS_FILE": f"{folder}/plugins",
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": ERLANG_OPTIONS.format(names=f"{folder}/names"),
            "RUNNING_UNDER_SYSTEMD": "true",  # no shell that stays between us and it
        }

    def _choose_ports(self) -> None:
        self.port, self._names_port, self._peer_port, self.tls_port = (free_port() for _ in range(4))

    def _start(self) -> bool:
        tls = ""
        if self._certificates:
            path = self._certificates.path
            tls = TLS.format(self.tls_port, path("authority.crt"), path("server.crt"), path("server.key"))
        (self._directory / "rabbitmq.conf").write_text(CONFIGURATION + tls)
        (self._directory / "plugins").write_text("[].")
        (self._directory / "names").write_text('{lookup, [file]}. {host, {127,0,0,1}, ["localhost"]}.')
        command = ["/bin/sh", "-c", START, "start", str(self._program)]
        return self._run(command, group=True, env=self._environment)

    def _answers(self) -> bool:
        """Whether it is this very broker, and ready: by its cookie only it can be asked.

        A node that has just begun may leave a question unanswered for ever, so each one ends soon.
        """
        ready = "rabbit:is_running() andalso rabbit_networking:active_listeners() =/= []"
        try:
            return self._call(ready, 5) == "{ok, true}"
        except OSError:
            return False

    def _end(self, how: signal.Signals) -> None:
        """With it ends what it has started, which its own end leaves behind."""
        group = self._process and self._process.pid
        super()._end(how)
        if group:
            with suppress(ProcessLookupError):
                os.killpg(group, signal.SIGKILL)


def _look_up(url: str, queue: str) -> str:
    return f"rabbit_amqqueue:lookup({_name(url, queue)})"


def _name(url: str, queue: str) -> str:
    return f'rabbit_misc:r(<<"{url.rpartition("/")[2]}">>, queue, <<"{queue}">>)'
