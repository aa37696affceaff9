"""A Django app with tasks of its own."""
