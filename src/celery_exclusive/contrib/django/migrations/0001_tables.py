"""The first tables."""

from typing import Any

from django.db import migrations, models

from celery_exclusive.contrib.django.tables import MakeTables


class Migration(migrations.Migration):
    initial = True
    dependencies: list[Any] = []
    operations = [
        migrations.CreateModel(
            "Lock",
            [
                ("namespace", models.BinaryField()),
                ("key", models.BinaryField(primary_key=True, serialize=False)),
                ("ends", models.BigIntegerField(null=True)),
                ("waiting", models.IntegerField()),
                ("aside", models.IntegerField()),
            ],
            {
                "db_table": "exclusive2_lock",
                "ordering": ("key",),
                "permissions": (("release_lock", "Can release locks"),),
                "managed": False,
                "default_permissions": ("view",),
                "base_manager_name": "objects",
            },
        ),
        migrations.CreateModel(
            "WaitingTask",
            [
                ("namespace", models.BinaryField()),
                ("key", models.BinaryField()),
                ("id", models.BinaryField(primary_key=True, serialize=False)),
                ("state", models.TextField()),
                ("place", models.BigIntegerField()),
            ],
            {
                "db_table": "exclusive2_line",
                "ordering": ("key", "state", "place"),
                "managed": False,
                "default_permissions": ("view",),
                "base_manager_name": "objects",
            },
        ),
        MakeTables(),
    ]
