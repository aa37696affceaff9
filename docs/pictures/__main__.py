"""`make pictures`: play what the pictures show, keep the record, and draw them."""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import TemporaryDirectory

from docs.pictures.draw import pictures
from docs.pictures.play import play
from tests.servers import RedisServer

HERE = Path(__file__).parent


def main() -> None:
    with TemporaryDirectory() as folder, RedisServer() as server:
        record = play(Path(folder), server.url)
    (HERE / "record.json").write_text(json.dumps(record, indent=1) + "\n")
    for name, drawn in pictures(record).items():
        (HERE / f"{name}.svg").write_text(drawn)


if __name__ == "__main__":
    main()
