"""Locks without a worker: `lock()` and `apply()`."""
