"""Messages: our header, how they are stored while their tasks wait, and how they are republished."""
