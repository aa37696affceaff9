"""The worker: the gate around each body, and the work of the main process for its children."""
