"""Answers what operators ask: what holds, what waits, why, and what to do. Commands and pages show it."""
