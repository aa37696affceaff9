"""Draw the pictures of the docs from the record of a real run. Light or dark, as the reader's system is."""

from __future__ import annotations

from html import escape
from typing import Any

Events = list[dict[str, Any]]
POLICIES = {
    "wait": ("Exclusive()", "each call runs"),
    "skip": ('on_conflict="skip"', "one call runs"),
    "latest": ('on_conflict="latest"', "the newest call waits"),
    "supersede": ('on_conflict="supersede"', "and the running one stops"),
    "unique": ("Unique()", "the call is not sent again"),
    "debounce": ("Debounce(wait=2)", "a burst of calls runs once"),
}
"""The policies that the picture compares, each with its option and what it is for."""
STORES = (
    (("Redis", "or Valkey?"), ("redis://", "the cheapest")),
    (("PostgreSQL", "or MariaDB?"), ("postgresql://", "mysql://")),
    (("all processes", "on one machine?"), ("sqlite:///", "no server")),
    (("memcached", "and nothing else?"), ("memcached://", "no task waits in line")),
)
"""The questions that choose a store, each with the store for a yes."""
WIDTH, LEFT, LANE, BAR = 860, 180, 24, 18
STYLE = """<style>
.page { fill: #fff } text { font: 13px sans-serif; fill: #24292f } .small { font-size: 12px; fill: #57606a }
.code { font: 12px monospace } .bold { font-weight: 600 } .in { fill: #fff; font-size: 12px }
.run { fill: #1f6feb } .dead { fill: #cf222e } .old { fill: #afb8c1 } .box { fill: #f6f8fa; stroke: #d0d7de }
.call { fill: #57606a } .wait { stroke: #57606a; stroke-dasharray: 2 4; stroke-width: 2 }
.rule { stroke: #d0d7de } .cross { stroke: #cf222e; stroke-width: 2 } .arrow { fill: none; stroke: #57606a }
@media (prefers-color-scheme: dark) {
  .page { fill: #0d1117 } text { fill: #e6edf3 } .small { fill: #9198a1 } .in { fill: #fff }
  .old { fill: #656c76 }
  .box { fill: #151b23; stroke: #3d444d } .call { fill: #9198a1 } .wait, .arrow { stroke: #9198a1 }
  .rule { stroke: #3d444d } .cross { stroke: #f85149 }
}
</style>"""


def pictures(record: dict[str, Any]) -> dict[str, str]:
    """Return the text of each SVG by its name."""
    return {
        "policies": policies(record["policies"]),
        "death": death(record["death"]),
        "chains": chains(record["chains"]),
        "stores": stores(),
    }


def policies(events: dict[str, Events]) -> str:
    """Return the calls of each policy on a time line."""
    time = Time(max(event["at"] for each in events.values() for event in each))
    band = 3 * LANE + 14
    height = band * len(POLICIES) + 50
    parts = [time.axis(height - 30)]
    for row, (policy, (option, purpose)) in enumerate(POLICIES.items()):
        y = 14 + band * row
        parts.append(text(10, y + 30, option, "code") + text(10, y + 50, purpose, "small"))
        lanes = enumerate((1, 2, 3))
        parts += [
            call(time, y + LANE * lane, number, of_call(events, policy, number)) for lane, number in lanes
        ]
        parts.append(line(0, y + band - 8, WIDTH, y + band - 8, "rule"))
    return svg(height, parts)


def call(time: Time, y: int, number: int, events: Events) -> str:
    """Return one call: when it is sent, how long it waits, and its body, or why it has none."""
    at = {event.get("kind") or event["what"]: event["at"] for event in events}
    sent, middle = time.x(at["sent"]), y + BAR / 2
    dot = f'<circle class="call" cx="{sent:.0f}" cy="{middle:.0f}" r="4"/>'
    match fate(events):
        case "runs":
            waits = line(sent + 6, middle, time.x(at["start"]), middle, "wait")
            return dot + waits + time.bar("run", at["start"], at["end"], y, f"call {number}")
        case "is superseded":
            stops = cross(time.x(at["superseded"]) + 12, middle, "stops for call 3")
            return dot + time.bar("run", at["start"], at["superseded"], y, f"call {number}") + stops
        case "is replaced":
            waits = line(sent + 6, middle, time.x(at["replaced"]) - 8, middle, "wait")
            return dot + waits + cross(time.x(at["replaced"]), middle, "replaced by call 3")
        case "is skipped":
            return dot + cross(time.x(at["skipped"]) + 12, middle, "skipped: SUCCESS, without its body")
        case "is not sent":
            return dot + cross(sent + 12, middle, "not sent: the caller gets call 1")
        case _:
            return dot + text(sent + 10, middle + 4, "waits for newer calls", "small")


def of_call(events: dict[str, Events], policy: str, number: int) -> Events:
    return [event for event in events[policy] if event["tag"] == f"{policy} {number}"]


def fate(events: Events) -> str:
    """Return what becomes of a call."""
    found = {event.get("kind") or event["what"] for event in events}
    if "superseded" in found:
        return "is superseded"
    if "start" in found:
        return "runs"
    if "replaced" in found:
        return "is replaced"
    if "skipped" in found:
        return "is skipped"
    is_sent = any(event.get("outcome") in ("published", "updated") for event in events)
    return "gives way to a newer call" if is_sent else "is not sent"


def death(events: Events) -> str:
    """Return the death of a worker, and the runs after it."""
    time = Time(max(event["at"] for event in events))
    killed = next(event["at"] for event in events if event["what"] == "killed")
    first, again, other = [event["at"] for event in events if event["what"] == "start"]
    again_end, other_end = [event["at"] for event in events if event["what"] == "end"]
    sent = next(event["at"] for event in events if event["what"] == "sent" and event["tag"] == "A2")
    height = 5 * 40 + 40
    lanes = ("worker w1", "the lease", "worker w2", "the line")
    parts = [time.axis(height - 30)]
    parts += [text(10, 33 + 48 * number, name) for number, name in enumerate(lanes)]
    parts += [line(0, 57 + 48 * number, WIDTH, 57 + 48 * number, "rule") for number in range(4)]
    parts += [
        time.bar("dead", first, killed, 20, "A1"),
        cross(time.x(killed) + 12, 20 + BAR / 2, "killed"),
        time.bar("run", first, killed, 68, "renewed"),
        time.bar("old", killed, again, 68, "not renewed, expires after ttl"),
        time.bar("run", again, again_end, 68, "higher fence"),
        time.bar("run", other, other_end, 68, "higher fence"),
        time.bar("run", again, again_end, 116, "A1 again"),
        time.bar("run", other, other_end, 116, "A2"),
        f'<circle class="call" cx="{time.x(sent):.0f}" cy="173" r="4"/>',
        line(time.x(sent) + 6, 173, time.x(other), 173, "wait"),
        text(time.x(sent) + 12, 166, "A2 waits without a slot", "small"),
    ]
    return svg(height, parts)


def chains(events: Events) -> str:
    """Return three calls of a chain of two unique steps."""
    at = {(event["what"], event["tag"]): event["at"] for event in events}
    ends = {event["tag"]: event["outcome"] for event in events if event["what"] == "ended"}
    time = Time(max(at.values()) + 2)
    height = 3 * 44 + 44
    parts = [time.axis(height - 30)]
    for number in (1, 2, 3):
        chain, y = f"chain {number}", 44 * number - 26
        sent, ended, middle = time.x(at["sent", chain]), time.x(at["ended", chain]), y + BAR / 2
        parts.append(text(10, y + 13, chain))
        parts.append(f'<circle class="call" cx="{sent:.0f}" cy="{middle:.0f}" r="4"/>')
        parts.append(line(sent + 6, middle, ended, middle, "wait"))
        for step in ("generate", "send"):
            tag = f"{step} {number}"
            if ("start", tag) in at:
                parts.append(time.bar("run", at["start", tag], at["end", tag], y, step))
        parts.append(text(ended + 8, y + 13, ends[chain], "small"))
    return svg(height, parts)


def stores() -> str:
    """Return the questions that choose a store."""
    step, width = 222, 165
    parts = []
    for number, (question, answer) in enumerate(STORES):
        x = 10 + step * number
        middle = x + width / 2
        for y, lines, style in ((10, question, "bold"), (130, answer, "code")):
            parts.append(f'<rect class="box" x="{x}" y="{y}" width="{width}" height="58" rx="6"/>')
            parts.append(text(middle, y + 25, lines[0], f"{style}", "middle"))
            parts.append(
                text(middle, y + 44, lines[1], style if "://" in lines[1] or y == 10 else "", "middle")
            )
        parts.append(arrow(middle, 68, middle, 126) + text(middle + 8, 102, "yes", "small"))
        if number + 1 < len(STORES):
            parts.append(arrow(x + width, 39, x + step - 4, 39))
            parts.append(text(x + width + 16, 32, "no", "small"))
    parts.append(text(10, 218, "Without a setting the broker is the store, if it can keep locks.", "small"))
    return svg(232, parts)


class Time:
    """The time line: its seconds, and where they are drawn."""

    def __init__(self, end: float) -> None:
        self.end = end
        self._scale = (WIDTH - LEFT - 20) / (end + 0.2)

    def x(self, at: float) -> float:
        return LEFT + 8 + self._scale * at

    def bar(self, kind: str, start: float, end: float, y: int, label: str) -> str:
        x, width = self.x(start), self._scale * (end - start)
        rect = f'<rect class="{kind}" x="{x:.0f}" y="{y}" width="{width:.0f}" height="{BAR}" rx="3"/>'
        return rect + text(x + 7, y + 13, label, "in" if kind != "old" else "")

    def axis(self, y: int) -> str:
        marks = [
            line(self.x(at), 6, self.x(at), y, "rule")
            + text(self.x(at), y + 18, f"{at} s", "small", "middle")
            for at in range(int(self.end) + 1)
        ]
        return "".join(marks)


def svg(height: int, parts: list[str]) -> str:
    size = f'width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}"'
    page = f'<rect class="page" width="{WIDTH}" height="{height}" rx="8"/>'
    return "\n".join([f'<svg xmlns="http://www.w3.org/2000/svg" {size}>', STYLE, page, *parts, "</svg>\n"])


def text(x: float, y: float, words: str, style: str = "", anchor: str = "start") -> str:
    return f'<text class="{style}" x="{x:.0f}" y="{y:.0f}" text-anchor="{anchor}">{escape(words)}</text>'


def line(x1: float, y1: float, x2: float, y2: float, style: str) -> str:
    return f'<line class="{style}" x1="{x1:.0f}" y1="{y1:.0f}" x2="{x2:.0f}" y2="{y2:.0f}"/>'


def arrow(x1: float, y1: float, x2: float, y2: float) -> str:
    back = "l-6 -4 m6 4 l-6 4" if y1 == y2 else "l-4 -6 m4 6 l4 -6"
    return f'<path class="arrow" d="M{x1:.0f} {y1:.0f} L{x2:.0f} {y2:.0f} {back}"/>'


def cross(x: float, y: float, label: str) -> str:
    lines = line(x - 5, y - 5, x + 5, y + 5, "cross") + line(x - 5, y + 5, x + 5, y - 5, "cross")
    return lines + text(x + 12, y + 4, label, "small")
