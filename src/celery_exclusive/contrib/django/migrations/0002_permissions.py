"""Permissions of their own to release by force, and to drop waiting tasks."""

from django.db import migrations


class Migration(migrations.Migration):
    dependencies = [("celery_exclusive", "0001_tables")]
    operations = [
        migrations.AlterModelOptions(
            "lock",
            {
                "base_manager_name": "objects",
                "default_permissions": ("view",),
                "managed": False,
                "ordering": ("key",),
                "permissions": (
                    ("release_lock", "Can release locks that no task holds"),
                    ("force_release_lock", "Can release locks by force"),
                    ("drop_waiting", "Can drop waiting tasks"),
                ),
            },
        )
    ]
