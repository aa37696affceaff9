"""A Django app of somebody else, who does not know of exclusive tasks."""
