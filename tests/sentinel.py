"""A real Sentinel for tests."""

from __future__ import annotations

import redis

from tests.servers import Server, redis_program


class SentinelServer(Server):
    """A Sentinel on a port of its own that watches the primary on a port, under the name `main`.

    `options` are those of Sentinel for this primary; `program` is another server than the usual one, `env`
    the environment that it needs.
    """

    name = "main"

    def __init__(
        self,
        primary: int,
        quorum: int = 1,
        *,
        program: str | None = None,
        env: dict[str, str] | None = None,
        **options: str,
    ) -> None:
        self._program, self._env = program or redis_program(), env
        self._primary, self._quorum, self._options = primary, quorum, options
        super().__init__("sentinel")

    @property
    def url(self) -> str:
        return f"sentinel://127.0.0.1:{self.port}/0"

    def client(self) -> redis.Redis:
        return redis.Redis.from_url(f"redis://127.0.0.1:{self.port}", socket_timeout=1, retry=None)

    def _start(self) -> bool:
        file = self._directory / "sentinel.conf"  # it writes there
        if not file.exists():
            lines = [f"{name} {value}" for name, value in self._settings().items()]
            lines.append(f"sentinel monitor {self.name} 127.0.0.1 {self._primary} {self._quorum}")
            lines += [f"sentinel {option} {self.name} {value}" for option, value in self._options.items()]
            file.write_text("\n".join([*lines, ""]))
        return self._run([self._program, str(file), "--sentinel"], env=self._env)

    def _settings(self) -> dict[str, str]:
        return {"bind": "127.0.0.1", "port": str(self.port), "dir": str(self._directory)}

    def _answers(self) -> bool:
        try:
            with self.client() as client:
                return bool(client.info("server")["process_id"] == self.pid)
        except redis.RedisError:
            return False
