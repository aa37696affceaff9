"""What the demo builds around the feed importer: load, witness, verdict."""
