"""One table."""

from django.db import models


class Repo(models.Model):
    name = models.CharField(max_length=50)
    syncs = models.PositiveIntegerField(default=0)

    def __str__(self):
        return self.name
