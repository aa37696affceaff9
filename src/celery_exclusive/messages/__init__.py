"""What a message carries, how it is stored while it waits, and how it is published again."""
