"""The pictures of the docs, their record, and the play of real workers that the record is of."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest

from docs.pictures.draw import POLICIES, fate, of_call, pictures
from docs.pictures.play import TTL, play

PICTURES = Path(__file__).parents[2] / "docs/pictures"
RECORD = json.loads((PICTURES / "record.json").read_text())
FATES = {
    "wait": ["runs", "runs", "runs"],
    "skip": ["runs", "is skipped", "is skipped"],
    "latest": ["runs", "is replaced", "runs"],
    "supersede": ["is superseded", "is replaced", "runs"],
    "unique": ["runs", "is not sent", "is not sent"],
    "debounce": ["gives way to a newer call", "gives way to a newer call", "runs"],
}


def assert_shows_what_the_pages_say(record: dict[str, Any]) -> None:
    policies, death = record["policies"], record["death"]
    assert {
        policy: [fate(of_call(policies, policy, number)) for number in (1, 2, 3)] for policy in POLICIES
    } == FATES
    starts = [event for event in death if event["what"] == "start"]
    assert [event["tag"] for event in starts] == ["A1", "A1", "A2"]
    assert starts[0]["fence"] < starts[1]["fence"] < starts[2]["fence"]
    (killed,) = (event["at"] for event in death if event["what"] == "killed")
    assert killed + TTL / 2 < starts[1]["at"]
    chains = record["chains"]
    ran = [event["tag"].split()[0] for event in chains if event["what"] == "start"]
    assert ran == ["generate", "send"]
    ends = {event["outcome"] for event in chains if event["what"] == "ended"}
    assert ends == {"SUCCESS: file of generate 1"}


@pytest.mark.promise(
    "The pictures of the docs are drawn from the record of a run of real workers, which is kept beside them",
    broke="another end in the record; a picture that was changed by hand",
)
def test_each_picture_is_drawn_from_the_record() -> None:
    drawn = pictures(RECORD)
    assert {file.name for file in PICTURES.glob("*.svg")} == {f"{name}.svg" for name in drawn}
    for name, text in drawn.items():
        assert (PICTURES / f"{name}.svg").read_text() == text, f"{name}.svg: `make pictures` draws it"
        ET.fromstring(text)
    assert_shows_what_the_pages_say(RECORD)


@pytest.mark.slow
@pytest.mark.promise(
    "`make pictures` plays with real workers on Redis: of three calls all run, or one, or the newest, as the "
    "option says; after a killed worker both calls run with higher fences; of three chains one runs, and all "
    "have its result",
    broke='`on_conflict="latest"` as "wait"; a worker that is not killed',
)
def test_the_workers_of_the_pictures_play_what_the_record_shows(redis_url: str, tmp_path: Path) -> None:
    assert_shows_what_the_pages_say(play(tmp_path, redis_url))
