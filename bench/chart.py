"""The chart of speed.md: ours, the best other and the goal of each row, by the speed of the base."""

from __future__ import annotations

from html import escape

from bench.row import Row

WIDTH, LEFT, STEP, BAR, TOP = 860, 430, 44, 14, 40
SCALE = WIDTH - LEFT - 60
STYLE = """<style>
text { font: 13px sans-serif; fill: #24292f } .small { font-size: 11px; fill: #57606a }
.ours { fill: #1f6feb } .other { fill: #afb8c1 }
.goal { stroke: #cf222e; stroke-width: 2 } .base { stroke: #d0d7de }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3 } .small { fill: #9198a1 } .other { fill: #656c76 } .base { stroke: #3d444d }
}
</style>"""


def svg(rows: list[Row]) -> str:
    """Return a picture: a bar that reaches the line at the right is as fast as the base of its row."""
    drawn = [row for row in rows if row.unit in ("share", "times") and row.goal and row.ours in row.figures]
    height = TOP + STEP * len(drawn) + 10
    right = LEFT + SCALE
    size = f'width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size}>',
        STYLE,
        _legend(right),
        f'<line class="base" x1="{right}" x2="{right}" y1="{TOP - 8}" y2="{height - 10}"/>',
        *(_row(row, TOP + STEP * number) for number, row in enumerate(drawn)),
        "</svg>\n",
    ]
    return "\n".join(parts)


def _legend(right: int) -> str:
    return (
        f'<rect class="ours" x="{LEFT}" y="8" width="12" height="12"/>'
        f'<text x="{LEFT + 17}" y="19">ours</text>'
        f'<rect class="other" x="{LEFT + 65}" y="8" width="12" height="12"/>'
        f'<text x="{LEFT + 82}" y="19">the best other</text>'
        f'<line class="goal" x1="{LEFT + 190}" x2="{LEFT + 190}" y1="6" y2="22"/>'
        f'<text x="{LEFT + 197}" y="19">goal</text>'
        f'<text x="{right}" y="19" text-anchor="middle">1</text>'
    )


def _row(row: Row, y: int) -> str:
    parts = [f'<text x="{LEFT - 10}" y="{y + 18}" text-anchor="end">{escape(_short(row.what))}</text>']
    parts += _bar(row, row.figures[row.ours].median, y, "ours")
    for other in list(row.others.values())[:1]:
        parts += _bar(row, other.median, y + BAR, "other")
    goal = LEFT + SCALE * _speed(row, row.goal or 1)
    parts.append(f'<line class="goal" x1="{goal:.0f}" x2="{goal:.0f}" y1="{y - 2}" y2="{y + 2 * BAR + 2}"/>')
    return "\n".join(parts)


def _bar(row: Row, number: float, y: int, kind: str) -> list[str]:
    width = SCALE * min(1.1, _speed(row, number))
    return [
        f'<rect class="{kind}" x="{LEFT}" y="{y}" width="{width:.0f}" height="{BAR - 1}"/>',
        f'<text class="small" x="{LEFT + width + 4:.0f}" y="{y + 11}">{_shown(row, number)}</text>',
    ]


def _speed(row: Row, number: float) -> float:
    return number if row.unit == "share" else 1 / number


def _short(what: str) -> str:
    text = what.replace("`", "")
    return text if len(text) <= 58 else f"{text[:56]}..."


def _shown(row: Row, number: float) -> str:
    """Return what the table says: of a cost, that it is one, since the bar is its speed."""
    return f"{number:.2f}" if row.unit == "share" else f"{number:,.3g} times"
