"""What happens on a worker: the gate around the body, and what the main process does for its children."""
