"""Call a task from a process of its own: `python -m tests.worker.bursts TASK KEY COUNT PREFIX`."""

from __future__ import annotations

import random
import sys
import time

from tests.worker.shop_debounce import call


def main(task: str, key: str, count: str, prefix: str) -> None:
    for number in range(int(count)):
        call(task, key, f"{prefix}{number:03}")
        time.sleep(random.choice((0, 0, 0.05, 0.5)))


if __name__ == "__main__":
    main(*sys.argv[1:])
