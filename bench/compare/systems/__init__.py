"""The adapters: each says how its system declares a task with one key, runs a worker, and sends a call."""
