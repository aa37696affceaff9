"""A Django app for locks in a database of the project.

Add `"celery_exclusive.contrib.django"` to `INSTALLED_APPS`. Its migrations make the tables of `django://`,
its system checks find what is wrong, and the admin has the page of locks.
"""
