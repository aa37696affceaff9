"""The Django app: feeds, their entries, and the tasks that import them."""
