"""A real Redis with TLS, and the certificates for it: good ones, and one of each kind that is refused."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import redis

from tests.sentinel import SentinelServer
from tests.servers import NoServer, RedisServer, environment

MADE = Path(__file__).parents[1] / ".venv/redis-tls"
_CONFIGURATION = """
[req]
distinguished_name = name
prompt = no
[name]
CN = a test
[authority]
basicConstraints = critical, CA:true
[server]
subjectAltName = DNS:localhost, IP:127.0.0.1
[elsewhere]
subjectAltName = DNS:elsewhere.example
"""


def redis_folder() -> Path:
    """Where Debian's package is unpacked: beside our Python, or by `make`."""
    for folder in (Path(sys.prefix, "redis-tls"), MADE):
        if (folder / "usr/bin/redis-server").exists():
            return folder
    raise NoServer("no Redis server with TLS here: scripts/bootstrap unpacks it from Debian's redis-tools")


class DebianRedis(RedisServer):
    """The Redis of Debian, whatever server the other tests have."""

    def __init__(self, *, appendonly: bool = False, **options: str) -> None:
        folder = redis_folder()
        program = str(folder / "usr/bin/redis-server")
        super().__init__(appendonly=appendonly, program=program, env=environment(folder), **options)


class Certificates:
    """Certificates and keys in a folder: `authority.crt`, `server.crt`, `server.key` and so on."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._openssl = _openssl()
        (folder / "configuration").write_text(_CONFIGURATION)
        for name in ("authority", "stranger"):
            self._make(name, "-x509", "-extensions", "authority")
        self._issue("server", "server")
        self._issue("elsewhere", "elsewhere")
        self._issue("expired", "server", days=-1)
        self._issue("client", "server")
        self._issue("unknown", "server", by="stranger")

    def path(self, name: str) -> str:
        return str(self.folder / name)

    def options(self, authority: str = "authority", client: str | None = None) -> str:
        """What a URL says of a client that knows this authority and has this certificate."""
        words = {"ssl_cert_reqs": "required", "ssl_ca_certs": self.path(f"{authority}.crt")}
        if client:
            words |= {"ssl_certfile": self.path(f"{client}.crt"), "ssl_keyfile": self.path(f"{client}.key")}
        return urlencode(words)

    def server_options(self, shows: str = "server") -> dict[str, str]:
        """What the configuration of a server that shows this certificate says."""
        return {
            "tls-cert-file": self.path(f"{shows}.crt"),
            "tls-key-file": self.path(f"{shows}.key"),
            "tls-ca-cert-file": self.path("authority.crt"),
            "tls-replication": "yes",
        }

    def _issue(self, name: str, section: str, *, by: str = "authority", days: int = 2) -> None:
        self._make(name, suffix="csr")
        issuer = ("-CA", self.path(f"{by}.crt"), "-CAkey", self.path(f"{by}.key"), "-CAcreateserial")
        form = ("-extfile", self.path("configuration"), "-extensions", section, "-days", str(days))
        files = ("-in", self.path(f"{name}.csr"), "-out", self.path(f"{name}.crt"))
        self._run("x509", "-req", *files, *issuer, *form)

    def _make(self, name: str, *options: str, suffix: str = "crt") -> None:
        key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-subj", f"/CN={name}")
        files = ("-keyout", self.path(f"{name}.key"), "-out", self.path(f"{name}.{suffix}"))
        self._run("req", "-config", self.path("configuration"), "-new", *key, *files, *options)

    def _run(self, *words: str) -> None:
        subprocess.run([self._openssl, *words], check=True, capture_output=True, timeout=60)


class SentinelWithTls(SentinelServer):
    """A Sentinel of servers that speak TLS alone; it speaks TLS alone, too."""

    def __init__(self, certificates: Certificates, primary: int, **options: str) -> None:
        folder = redis_folder()
        program = str(folder / "usr/bin/redis-server")
        self._tls = {**certificates.server_options(), "tls-auth-clients": "no"}
        super().__init__(primary, 1, program=program, env=environment(folder), **options)

    def client(self) -> redis.Redis:
        options: dict[str, Any] = {"socket_timeout": 1, "retry": None, "ssl": True, "ssl_cert_reqs": "none"}
        return redis.Redis(port=self.port, **options)

    def _settings(self) -> dict[str, str]:
        return {**super()._settings(), **self._tls, "port": "0", "tls-port": str(self.port)}


class RedisWithTls(DebianRedis):
    """A Redis that speaks TLS alone.

        with RedisWithTls(certificates, shows="expired", asks=True) as server:
            store = open_store(server.url)

    `shows` is its certificate; `asks`: it lets no client in that has none of the same authority; `speaks` are
    its versions of TLS; `options` are further lines of its configuration.
    """

    def __init__(
        self,
        certificates: Certificates,
        *,
        shows: str = "server",
        asks: bool = False,
        speaks: str = "TLSv1.2 TLSv1.3",
        appendonly: bool = False,
        **options: str,
    ) -> None:
        self._certificates = certificates
        own = {"tls-auth-clients": "yes" if asks else "no", "tls-protocols": speaks}
        super().__init__(appendonly=appendonly, **certificates.server_options(shows), **own, **options)

    @property
    def url(self) -> str:
        """The URL for a client that is let in by every such server."""
        return self.url_with(self._certificates.options(client="client").replace("required", "none"))

    def url_with(self, options: str, host: str = "localhost") -> str:
        return f"rediss://{host}:{self.port}/0?{options}"

    def _fixed(self) -> dict[str, str]:
        return {**super()._fixed(), "port": "0", "tls-port": str(self.port)}


def _openssl() -> str:
    places = [str(folder / "usr/bin") for folder in (Path(sys.prefix, "redis-tls"), MADE)]
    if program := shutil.which("openssl", path=os.pathsep.join([os.environ.get("PATH", ""), *places])):
        return program
    raise NoServer("no openssl here, which makes the certificates for tests of TLS")
