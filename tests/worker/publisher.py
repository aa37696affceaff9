"""Publish from a process of its own: `python -m tests.worker.publisher TASK KEY COUNT PREFIX`."""

from __future__ import annotations

import sys

from tests.worker import shop


def main(task: str, key: str, count: str, prefix: str) -> None:
    for number in range(int(count)):
        shop.app.tasks[f"tests.worker.shop.{task}"].delay(key, tag=f"{prefix}{number:03}")


if __name__ == "__main__":
    main(*sys.argv[1:])
