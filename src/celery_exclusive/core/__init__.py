"""What is decided of keys and messages, pure: `step` for a key, plans for a message."""
