"""Run all measurements on a server of their own."""

from __future__ import annotations

import platform

from bench import cache, database, file, group, keys, line, pair
from tests.servers import RedisServer


def main() -> None:
    with RedisServer() as server:
        with server.client() as client:
            version = client.info("server")["redis_version"]
        print(f"{platform.machine()}, Python {platform.python_version()}, server {version}, loopback\n")
        for measure in (pair, line, group):
            with server.client() as client:
                client.flushall()
            measure.run(server)
            print()
    file.run()
    print()
    database.run()
    print()
    cache.run()
    print()
    keys.run()


if __name__ == "__main__":
    main()
