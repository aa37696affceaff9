"""Verdicts of systems that keep a task from running twice: `python -m bench.compare` runs each of them."""
