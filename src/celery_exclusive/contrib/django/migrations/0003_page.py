"""The admin shows the page, and no rows of tables. The tables themselves stay as they are."""

from django.db import migrations


class Migration(migrations.Migration):
    dependencies = [("celery_exclusive", "0002_permissions")]
    operations = [
        migrations.DeleteModel("WaitingTask"),
        migrations.AlterModelTable("lock", None),
        migrations.AlterModelOptions(
            "lock",
            {
                "base_manager_name": "objects",
                "default_permissions": ("view",),
                "managed": False,
                "permissions": (
                    ("release_lock", "Can release locks that no task holds"),
                    ("force_release_lock", "Can release locks by force"),
                    ("drop_waiting", "Can drop waiting tasks"),
                ),
            },
        ),
    ]
