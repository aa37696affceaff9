"""What a user declares at a task, in a call, and in the settings; and the keys that follow from it."""
