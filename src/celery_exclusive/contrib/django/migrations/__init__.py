"""The migrations of the tables for locks."""
