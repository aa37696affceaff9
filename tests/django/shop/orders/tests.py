"""The tests of this project, as its author would write them; ours run them in several databases."""

import json
import re
from html import escape

from celery import current_app
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import Permission, User
from django.db import transaction
from django.test import Client, TestCase, TransactionTestCase

from celery_exclusive.core.operations import Acquire, AcquireAlone, Granted, Held
from celery_exclusive.core.records import SECOND
from orders.models import Order
from orders.tasks import bill

LOCKS = "/admin/celery_exclusive/lock/"
MINUTE = 60 * SECOND
PAGE = f"{LOCKS}page/"
services = current_app._celery_exclusive


def held(key, id="holder/publish"):
    return services.store.apply(key, Acquire(id, "token", MINUTE)).answer


def park(key, id):
    return services.store.apply(key, Acquire(id, "token", MINUTE, message=b"{}")).answer


def queued(key):
    return services.store.apply(key, AcquireAlone("lost/publish", "token", MINUTE, None, "queued")).answer


class Clean:
    databases = "__all__"

    def setUp(self):
        for key in services.store.scan():
            services.store.forget(key)


class Requests(Clean, TestCase):
    """Each view is in a transaction, and so is the whole test."""

    def test_a_call_of_a_request_that_fails_keeps_its_key_as_its_message_is_sent(self):
        with self.assertRaises(RuntimeError):  # noqa: PT027 - here is no pytest
            self.client.get("/bill/17/fail")
        assert not Order.objects.exists()
        assert bill.lock_state(17).unique_holder
        assert self.client.get("/bill/17/ok").json() == {"outcome": "skipped", "orders": 1}

    def test_a_lock_outlives_the_transaction_that_it_was_acquired_in(self):
        with transaction.atomic():
            assert isinstance(held("x=rolled back"), Granted)
            Order.objects.create(number=1)
            transaction.set_rollback(True)
        assert isinstance(held("x=rolled back", "another/publish"), Held)


class WithRealCommits(Clean, TransactionTestCase):
    def test_a_flush_between_tests_leaves_the_tables_as_they_are(self):
        assert isinstance(held("x=flushed"), Granted)
        self._fixture_teardown()
        assert isinstance(held("x=flushed", "another/publish"), Held)


class Admin(Clean, TestCase):
    def setUp(self):
        super().setUp()
        self.root = User.objects.create_superuser("root")
        self.client.force_login(self.root)

    def shown(self, page, **query):
        return self.client.get(PAGE + page, query).content.decode()

    def release(self, key):
        """Send the form that the page shows, or one that it does not show; return the status."""
        seen = re.search('name="seen" value="([^"]+)"', self.shown("release", key=key))
        return self.client.post(f"{PAGE}release", {"key": key, "seen": seen[1] if seen else ""}).status_code

    def test_the_admin_offers_to_view_locks_and_nothing_else(self):
        index = self.client.get("/admin/").content.decode()
        assert f'<a href="{LOCKS}" class="viewlink"' in index
        assert LOCKS not in index.replace(f'"{LOCKS}"', "")
        held("x=a")
        for page in "add", "x_3Da/change", "x_3Da/delete":
            assert self.client.get(f"{LOCKS}{page}/").status_code == 404

    def test_a_lock_shows_holder_and_line(self):
        held("x=a")
        park("x=a", "first/publish@celery")
        shown = self.shown("key", key="x=a")
        assert shown.index(">holder</a>") < shown.index(">first</a>")

    def test_a_key_of_any_characters_is_shown_released_and_logged(self):
        key, escaped = "x=\ud800\0\\<b>&ä", r"x=\ud800\x00\\<b>&ä"
        queued(key)
        assert escape(escaped) in self.shown("keys")
        assert self.release(escaped) == 200
        assert not services.store.inspect(key).holders
        (entry,) = LogEntry.objects.all()
        assert (entry.user, entry.object_id, str(entry.object_repr)) == (self.root, escaped, escaped)
        assert entry.change_message.startswith("Released the lease of lost")
        assert escape(escaped) in self.client.get("/admin/").content.decode()

    def test_odd_records_are_shown_beside_the_others(self):
        held("x=a")
        held("x=odd")
        held("x=other")
        odd = json.dumps({"limit": 1, "holders": [{"phase": "paused"}]})
        store = services.store
        for change, key in (("document = ?", (odd, b"x=odd")), ("key = ?", (b"x=\xff", b"x=other"))):
            statement = f"UPDATE exclusive2_lock SET {change} WHERE key = ?"
            store.transact(lambda it, s=statement, p=key: it.cursor.execute(s, p))
        states = re.findall(r'>(x=[^<]+)</a>.*?class="badge (\w+)"', self.shown("keys"))
        assert states == [("x=a", "running"), ("x=odd", "damaged"), (r"x=\udfff\udcff", "running")]

    def test_to_release_is_a_permission_of_its_own(self):
        queued("u=a")
        clerk = User.objects.create_user("clerk", is_staff=True)
        self.client.force_login(clerk)
        assert self.client.get(LOCKS, follow=True).status_code == 403
        clerk.user_permissions.set(Permission.objects.filter(codename__startswith="view_"))
        assert "Release…" not in self.shown("key", key="u=a")
        assert self.release("u=a") == 403
        clerk.user_permissions.add(Permission.objects.get(codename="release_lock"))
        assert "Release…" in self.shown("key", key="u=a")
        assert self.release("u=a") == 200
        assert not services.store.inspect("u=a").holders

    def test_the_page_is_shown_under_the_permissions_and_a_release_is_logged(self):
        held("x=a")
        clerk = User.objects.create_user("clerk", is_staff=True)
        self.client.force_login(clerk)
        assert self.client.get(f"{PAGE}keys").status_code == 403
        clerk.user_permissions.set(Permission.objects.filter(codename="view_lock"))
        assert "x=a" in self.client.get(f"{PAGE}keys").content.decode()
        assert self.client.get(f"{PAGE}style.css").headers["Content-Type"].startswith("text/css")
        assert "read-only" in self.client.get(PAGE).content.decode()
        assert self.client.get(f"{PAGE}release?key=x%3Da").status_code == 403
        clerk.user_permissions.add(Permission.objects.get(codename="release_lock"))
        refused = self.client.get(f"{PAGE}release?key=x%3Da")
        assert (refused.status_code, "no right to release it by force" in refused.content.decode()) == (
            403,
            True,
        )
        assert self.client.get(f"{PAGE}drop?key=x%3Da&id=waits").status_code == 403
        clerk.user_permissions.add(Permission.objects.get(codename="force_release_lock"))
        clerk.user_permissions.remove(Permission.objects.get(codename="release_lock"))
        assert self.client.get(f"{PAGE}release?key=x%3Da").status_code == 403
        clerk.user_permissions.add(Permission.objects.get(codename="release_lock"))
        asked = self.client.get(f"{PAGE}release?key=x%3Da").content.decode()
        seen = re.search('name="seen" value="([^"]+)"', asked)[1]
        form = {"key": "x=a", "seen": seen, "reason": "it hangs"}
        assert "may still run" in self.client.post(f"{PAGE}release", form).content.decode()
        assert services.store.inspect("x=a").holders
        assert self.client.post(f"{PAGE}release", {**form, "sure": "yes"}).status_code == 200
        assert not services.store.inspect("x=a").holders
        (entry,) = LogEntry.objects.all()
        assert (entry.user, entry.object_id) == (clerk, "x=a")
        assert "Released the lease of holder" in entry.change_message
        assert entry.change_message.endswith("Reason: it hangs")

    def test_to_drop_is_a_permission_of_its_own(self):
        held("x=a")
        park("x=a", "first/publish")
        park("x=a", "second/publish")
        clerk = User.objects.create_user("clerk", is_staff=True)
        self.client.force_login(clerk)
        others = ("view_lock", "release_lock", "force_release_lock")
        clerk.user_permissions.set(Permission.objects.filter(codename__in=others))
        form = {"key": "x=a", "id": "first", "reason": "poison"}
        assert "drop?" not in self.client.get(f"{PAGE}key?key=x%3Da").content.decode()
        assert self.client.post(f"{PAGE}drop", form).status_code == 403
        assert services.store.inspect("x=a").waiting == 2
        clerk.user_permissions.add(Permission.objects.get(codename="drop_waiting"))
        assert "drop?" in self.client.get(f"{PAGE}key?key=x%3Da").content.decode()
        assert self.client.post(f"{PAGE}drop", form).status_code == 200
        assert services.store.inspect("x=a").waiting == 1

    def test_to_pause_a_key_needs_the_permission_to_force_and_is_logged(self):
        held("x=a")
        clerk = User.objects.create_user("clerk", is_staff=True)
        self.client.force_login(clerk)
        clerk.user_permissions.set(Permission.objects.filter(codename__in=("view_lock", "release_lock")))
        form = {"key": "x=a", "lasts": "2h", "reason": "vendor is down"}
        assert "Pause…" not in self.shown("key", key="x=a")
        assert self.client.post(f"{PAGE}pause", form).status_code == 403
        clerk.user_permissions.add(Permission.objects.get(codename="force_release_lock"))
        assert "Pause…" in self.shown("key", key="x=a")
        assert self.client.post(f"{PAGE}pause", form).status_code == 200
        assert services.store.inspect("x=a").terms.override.limit == 0
        (entry,) = LogEntry.objects.all()
        assert (entry.user, entry.object_id) == (clerk, "x=a")
        assert "Pause: paused by clerk in Django's admin 0s ago, for another " in entry.change_message

    def test_a_form_of_another_site_is_refused_on_the_page(self):
        queued("u=a")
        client = Client(enforce_csrf_checks=True)
        client.force_login(self.root)
        asked = client.get(f"{PAGE}release?key=u%3Da").content.decode()
        seen, token = (
            re.search(f'name="{name}" value="([^"]+)"', asked)[1] for name in ("seen", "csrfmiddlewaretoken")
        )
        form = {"key": "u=a", "seen": seen}
        assert client.post(f"{PAGE}release", form).status_code == 403
        assert services.store.inspect("u=a").holders
        assert client.post(f"{PAGE}release", {**form, "csrfmiddlewaretoken": token}).status_code == 200
        assert not services.store.inspect("u=a").holders
