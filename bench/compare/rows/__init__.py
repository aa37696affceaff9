"""The rows of the comparison: each file plays one scene, the same for all systems, and returns a verdict."""

from __future__ import annotations

from bench.compare.rows import chain, child, chord, order, redelivery, slot, stuck, timeout, worker

ROWS = {
    "child": child,
    "worker": worker,
    "stuck": stuck,
    "redelivery": redelivery,
    "timeout": timeout,
    "order": order,
    "slot": slot,
    "chord": chord,
    "chain": chain,
}
"""`WHAT` is the row's title, `SETTINGS` is the settings of the stage with which it is played."""
