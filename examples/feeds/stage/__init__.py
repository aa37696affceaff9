"""The stage of the demo around the feed importer: load, witness, verdict."""
