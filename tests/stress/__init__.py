"""Many processes against one store, killed and paused at random: `python -m tests.stress --help`."""
