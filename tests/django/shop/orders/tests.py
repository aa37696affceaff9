"""The tests of this project, as its author would write them; ours run them in several databases."""

import json
import re
from html import unescape

from celery import current_app
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import Permission, User
from django.db import transaction
from django.test import Client, TestCase, TransactionTestCase

from celery_exclusive.core.operations import Acquire, AcquireAlone, Granted, Held
from celery_exclusive.core.records import SECOND
from celery_exclusive.stores.base import open_store
from orders.models import Order
from orders.tasks import bill

LOCKS, WAITING = "/admin/celery_exclusive/lock/", "/admin/celery_exclusive/waitingtask/"
MINUTE = 60 * SECOND
PAGE = f"{LOCKS}page/"
services = current_app._celery_exclusive


def held(key, id="holder/publish", store=None):
    return (store or services.store).apply(key, Acquire(id, "token", MINUTE)).answer


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


class Admin(Clean, TransactionTestCase):
    """In a transaction SQLite would show no locks that were acquired since it began."""

    def setUp(self):
        super().setUp()
        self.root = User.objects.create_superuser("root")
        self.client.force_login(self.root)

    def rows(self, page, **query):
        return self.client.get(page, query).context["cl"].result_list

    def release(self, *keys):
        asked = {"action": "release", "_selected_action": keys}
        return self.client.post(LOCKS, asked, follow=True)

    def test_a_lock_shows_holder_and_line(self):
        held("x:orders.bill:1")
        park("x:orders.bill:1", "first/publish@celery")
        shown = self.client.get(LOCKS).content.decode()
        for text in ("x:orders.bill:1", ">holder<", ">running<", '"field-in_line">1<', " s<", "1 lock"):
            assert text in shown, text
        detail = self.client.get(f"{LOCKS}x_3Aorders.bill_3A1/change/").content.decode()
        assert "holder" in detail
        assert 'name="_save"' not in detail

    def test_waiting_tasks_show_their_places(self):
        held("x=a")
        held("x=b")
        for key, id in ("x=a", "1/p@celery"), ("x=b", "2/p"), ("x=a", "3/p@slow"):
            park(key, id)
        rows = [(row.key, row.position, row.id) for row in self.rows(WAITING)]
        assert rows == [("x=a", 1, "1/p@celery"), ("x=a", 2, "3/p@slow"), ("x=b", 1, "2/p")]
        shown = self.client.get(WAITING).content.decode()
        assert all(text in shown for text in (">2<", ">3<", ">waiting<"))
        assert self.client.get(f"{WAITING}3_2Fp_40slow/change/").status_code == 200

    def test_free_keys_and_keys_of_other_namespaces_are_left_out(self):
        held("x=ours")
        store = open_store(services.store_url, prefix="theirs")
        held("x=theirs", store=store)
        assert [row.key for row in self.rows(LOCKS)] == ["x=ours"]
        store.forget("x=theirs")
        store.close()
        services.store.apply("x=short", Acquire("a/p", "token", 1))
        assert [row.key for row in self.rows(LOCKS)] == ["x=ours"]

    def test_keys_are_found_by_their_beginning(self):
        for key in ("x:orders.bill:1", "x:orders.pack:1", "u:orders.bill:2", "x=orders"):
            held(key)
        found = [row.key for row in self.rows(LOCKS, q="orders.bill")]
        assert sorted(found) == ["u:orders.bill:2", "x:orders.bill:1"]
        assert [row.key for row in self.rows(LOCKS, q="x=")] == ["x=orders"]

    def test_nothing_can_be_added_changed_or_deleted(self):
        held("x=a")
        for page in (f"{LOCKS}add/", f"{LOCKS}x_3Da/delete/", f"{WAITING}add/"):
            assert self.client.get(page).status_code == 403
        assert self.client.post(f"{LOCKS}x_3Da/change/", {"waiting": 7}).status_code == 403
        assert "delete_selected" not in self.client.get(LOCKS).content.decode()

    def test_a_lock_is_not_released_while_its_holder_runs(self):
        held("x=a")
        answer = self.release("x=a").content.decode()
        assert "Lock x=a: Not released: holder runs." in answer
        assert services.store.inspect("x=a").holders
        (entry,) = LogEntry.objects.all()
        assert (entry.user, entry.object_id) == (self.root, "x=a")
        assert entry.change_message.startswith("Not released: holder runs.")

    def test_a_key_whose_task_does_not_run_is_released_and_logged(self):
        queued("u=a")
        answer = self.release("u=a").content.decode()
        assert "Lock u=a: Released, was held by lost." in answer, answer
        assert not services.store.inspect("u=a").holders
        (entry,) = LogEntry.objects.all()
        assert entry.change_message == "Released, was held by lost."
        assert self.client.get(f"{LOCKS}u_3Da/history/").status_code in (200, 302)

    def test_a_key_of_any_characters_is_shown_and_released(self):
        key = "x=\ud800\0\\<b>&ä"
        queued(key)
        (row,) = self.rows(LOCKS)
        assert row.key == r"x=\ud800\x00\\<b>&ä"
        (link,) = re.findall(r'field-on_page"><a href="([^"]*)"', self.client.get(LOCKS).content.decode())
        assert ">lost</a>" in self.client.get(unescape(link)).content.decode()
        self.release(row.key)
        assert not services.store.inspect(key).holders

    def test_odd_records_are_shown_beside_the_others(self):
        held("x=a")
        held("x=odd")
        held("x=other")
        odd = json.dumps({"limit": 1, "holders": [{"phase": "paused"}]})
        store = services.store
        for change, key in (("document = ?", (odd, b"x=odd")), ("key = ?", (b"x=\xff", b"x=other"))):
            statement = f"UPDATE exclusive2_lock SET {change} WHERE key = ?"
            store.transact(lambda it, s=statement, p=key: it.cursor.execute(s, p))
        states = {row.key: row.snapshot.state for row in self.rows(LOCKS)}
        assert states == {"x=a": "running", "x=odd": "damaged", r"x=\udfff\udcff": "running"}
        assert "damaged" in self.client.get(LOCKS).content.decode()
        assert "Lock x=odd: Not released: store" in self.release("x=odd").content.decode()

    def test_to_release_is_a_permission_of_its_own(self):
        queued("u=a")
        clerk = User.objects.create_user("clerk", is_staff=True)
        self.client.force_login(clerk)
        assert self.client.get(LOCKS).status_code == 403
        clerk.user_permissions.set(Permission.objects.filter(codename__startswith="view_"))
        assert 'value="release"' not in self.client.get(LOCKS).content.decode()
        self.release("u=a")
        assert services.store.inspect("u=a").holders
        clerk.user_permissions.add(Permission.objects.get(codename="release_lock"))
        assert 'value="release"' in self.client.get(LOCKS).content.decode()
        self.release("u=a")
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
