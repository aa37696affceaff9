"""Parts for other frameworks."""
