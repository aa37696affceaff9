"""The policy of a lock, pure: document, operations, `step`."""
