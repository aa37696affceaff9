"""Options of a task and of a call, settings, and the keys that are computed from them."""
