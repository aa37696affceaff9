"""The chart of speed.md: ours, the best other and the goal of each row, by the speed of the base."""

from __future__ import annotations

from html import escape

from bench.row import Row

LEFT, SCALE, FIGURES, WIDTH = 12, 500, 580, 700
"""Where bars begin, how long the bar of a base is, where the column of figures begins."""
STEP, BAR, TOP = 62, 14, 64
LONGEST = 1.1
STYLE = """<style>
text { font: 13px sans-serif; fill: #24292f } .small { font-size: 12px; fill: #57606a }
.ours { fill: #1f6feb } .other { fill: #afb8c1 }
.goal { stroke: #cf222e; stroke-width: 2 } .base { stroke: #d0d7de }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3 } .small { fill: #9198a1 } .other { fill: #656c76 } .base { stroke: #3d444d }
}
</style>"""


def svg(rows: list[Row]) -> str:
    """Return a picture: a bar that reaches the line at the right is as fast as the base of its row."""
    drawn = [row for row in rows if row.unit in ("share", "times") and row.goal and row.ours in row.figures]
    height = TOP + STEP * len(drawn)
    base = LEFT + SCALE
    size = f'width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size}>',
        STYLE,
        _legend(),
        *(_row(row, TOP + STEP * number, base) for number, row in enumerate(drawn)),
        "</svg>\n",
    ]
    return "\n".join(parts)


def _legend() -> str:
    return (
        f'<text x="{LEFT}" y="18">Longer is faster. The grey line is the speed of what stands '
        "in parentheses.</text>"
        f'<rect class="ours" x="{LEFT}" y="32" width="12" height="12"/>'
        f'<text x="{LEFT + 17}" y="43">celery-exclusive</text>'
        f'<rect class="other" x="{LEFT + 145}" y="32" width="12" height="12"/>'
        f'<text x="{LEFT + 162}" y="43">the best other package</text>'
        f'<line class="goal" x1="{LEFT + 322}" x2="{LEFT + 322}" y1="30" y2="46"/>'
        f'<text x="{LEFT + 329}" y="43">our goal</text>'
    )


def _row(row: Row, y: int, base: int) -> str:
    top, end = y + 20, y + 20 + 2 * BAR
    parts = [
        f'<text x="{LEFT}" y="{y + 13}">{escape(row.what.replace("`", ""))}</text>',
        f'<line class="base" x1="{base}" x2="{base}" y1="{top - 2}" y2="{end + 2}"/>',
        *_bar(row, row.figures[row.ours].median, top, "ours"),
    ]
    for other in list(row.others.values())[:1]:
        parts += _bar(row, other.median, top + BAR, "other")
    goal = LEFT + SCALE * _speed(row, row.goal or 1)
    parts.append(f'<line class="goal" x1="{goal:.0f}" x2="{goal:.0f}" y1="{top - 2}" y2="{end + 2}"/>')
    return "\n".join(parts)


def _bar(row: Row, number: float, y: int, kind: str) -> list[str]:
    width = SCALE * min(LONGEST, _speed(row, number))
    return [
        f'<rect class="{kind}" x="{LEFT}" y="{y}" width="{width:.0f}" height="{BAR - 1}"/>',
        f'<text class="small" x="{FIGURES}" y="{y + 11}">{row.told(number)}</text>',
    ]


def _speed(row: Row, number: float) -> float:
    return number if row.unit == "share" else 1 / number
