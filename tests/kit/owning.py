"""A key that one id holds alone, for as long as it asks, and may hand over."""

from __future__ import annotations

import pytest

from celery_exclusive.core.operations import Held, Stale
from celery_exclusive.core.records import SECOND, Phase
from tests.kit.subject import LONG, OTHER, SHORT, TOKEN, Subject, fence_of, found


@pytest.mark.promise(
    "A store keeps a key for one id for exactly as long as it says, and hands it over with its fence; each "
    "in one call that can be repeated",
    name="owned keys",
    broke=(
        "a new fence for the new owner; the former lease stays; any token will do for a run; only its own "
        "for a queued call; never shortened"
    ),
)
class OwningPromises(Subject):
    def test_one_holds_a_key_and_the_answer_to_others_names_it(self) -> None:
        key = self.key()
        fence_of(key.acquire_alone("a"))
        refused = key.acquire_alone("b", OTHER)
        assert isinstance(refused.answer, Held)
        assert [owner.id for owner in refused.answer.by] == ["a"]
        assert key.is_held_against("c")
        assert found(key.release("a", ending="open"))
        fence_of(key.acquire_alone("b", OTHER))

    def test_acquiring_alone_again_is_the_same_lease_with_the_new_ttl(self) -> None:
        key = self.key()
        fence = fence_of(key.acquire_alone("a", ttl=2 * LONG))
        assert fence_of(key.acquire_alone("a", ttl=LONG)) == fence
        (holder,) = key.inspect().holders
        assert holder.remaining <= LONG * SECOND
        assert fence_of(key.acquire_alone("a", ttl=2 * LONG)) == fence
        (holder,) = key.inspect().holders
        assert holder.remaining > LONG * SECOND

    def test_a_holder_that_has_shortened_its_lease_loses_it_after_that(self) -> None:
        key = self.key()
        fence = fence_of(key.acquire_alone("a", ttl=LONG))
        fence_of(key.acquire_alone("a", ttl=SHORT))
        key.wait_until_expired()
        assert fence_of(key.acquire_alone("b", OTHER)) > fence
        assert not key.renew("a")

    def test_a_running_lease_does_not_belong_to_another_delivery_of_the_same_id(self) -> None:
        key = self.key()
        fence_of(key.acquire_alone("a", TOKEN))
        for phase in ("running", "queued"):
            refused = key.acquire_alone("a", OTHER, phase=phase).answer
            assert isinstance(refused, Held)
            assert [owner.id for owner in refused.by] == ["a"]
        assert isinstance(key.acquire_alone("a", OTHER, inherits=("b", "any")).answer, Held)
        assert key.renew("a", TOKEN)
        assert found(key.release("a", TOKEN, ending="open"))

    def test_another_delivery_of_the_same_id_holds_it_from_then_on(self) -> None:
        key = self.key()
        fence = fence_of(key.acquire_alone("a", TOKEN, phase="queued"))
        assert fence_of(key.acquire_alone("a", OTHER)) == fence
        assert not key.renew("a", TOKEN)
        assert key.inspect().holders[0].phase == "running"
        assert not found(key.release("a", TOKEN, ending="open"))
        assert key.renew("a", OTHER)

    def test_a_lease_that_does_not_run_belongs_to_its_id_with_any_token(self) -> None:
        key = self.key()
        key.acquire_alone("a", TOKEN, phase="queued")
        assert not key.renew("a", OTHER)  # no run exists whose heartbeat could renew it
        assert found(key.requeue("a", OTHER))
        assert found(key.release("a", OTHER, ending="open"))
        key.acquire_alone("a", TOKEN)
        (owner,) = key.inspect().holders
        assert found(key.requeue("a", owner.token))
        assert found(key.release("a", OTHER, ending="open"))
        assert key.holders() == []

    def test_a_running_lease_is_not_taken_over_without_its_token(self) -> None:
        key = self.key()
        fence = fence_of(key.acquire_alone("a", TOKEN))
        assert isinstance(key.acquire_alone("b", OTHER, inherits=("a", "another")).answer, Held)
        assert key.renew("a", TOKEN)
        key.acquire_alone("a", TOKEN, phase="queued")
        assert fence_of(key.acquire_alone("b", OTHER, inherits=("a", "another"))) == fence
        assert key.holders() == ["b"]

    @pytest.mark.proves("takeover asks for its own end")
    def test_a_delivery_takes_over_a_queued_lease_but_not_a_running_one(self) -> None:
        key = self.key()
        fence = fence_of(key.acquire_alone("a", TOKEN, phase="queued"))
        assert key.is_held_against("b")
        others: tuple[Phase, ...] = ("running", "again", "period")
        for phase in others:
            assert isinstance(key.acquire("b", OTHER, takes_over=("a", phase)).answer, Held)
        assert fence_of(key.acquire("b", OTHER, takes_over=("a", "queued"))) == fence
        assert key.holders() == ["b"]
        both: tuple[Phase, ...] = ("running", "queued")
        for phase in both:
            assert isinstance(key.acquire("c", takes_over=("b", phase)).answer, Held)
        assert isinstance(key.acquire("c", takes_over=("a", "queued")).answer, Held)
        assert found(key.release("b", OTHER))
        assert fence_of(key.acquire("c", takes_over=("b", "queued"))) > fence

    @pytest.mark.promise(
        "A delivery that takes over the key of a queued task asks first whether its own task has finished",
        name="takeover asks for its own end",
        broke="explorer: a takeover that does not ask",
        also="the explorer",
    )
    def test_a_finished_task_does_not_take_over_a_queued_lease(self) -> None:
        key = self.key()
        fence_of(key.acquire("b", OTHER, redelivered=True))
        assert found(key.release("b", OTHER))
        key.acquire_alone("a", TOKEN, phase="queued")
        assert key.acquire("b", redelivered=True, takes_over=("a", "queued")).answer == Stale()
        assert key.holders() == ["a"]

    @pytest.mark.proves("copies of a superseded run")
    def test_copies_of_a_superseded_message_leave_and_later_ones_are_stale(
        self,
    ) -> None:
        key = self.key()
        key.hold("b")
        assert not found(key.remove("a"))
        assert isinstance(key.acquire("a", OTHER, redelivered=True).answer, Held)
        assert not found(key.remove("a", ending="superseded"))
        assert key.is_stale("a", OTHER, redelivered=True)
        key.park("c")
        assert found(key.remove("c", ending="superseded"))
        assert key.is_stale("c", OTHER, redelivered=True)

    @pytest.mark.proves("call that was given up")
    def test_the_request_of_a_call_that_was_given_up_acquires_nothing_when_it_comes(self) -> None:
        key = self.key()
        key.give_up("a")
        phases: tuple[Phase, ...] = ("queued", "again", "period")
        for phase in phases:
            assert isinstance(key.acquire_alone("a", TOKEN, phase=phase).answer, Held)
            assert key.holders() == []
        fence_of(key.acquire_alone("b", OTHER, phase="queued"))

    @pytest.mark.proves("retry that was given up")
    def test_the_request_of_a_retry_that_was_given_up_leaves_the_lease_to_its_run(self) -> None:
        key = self.key()
        fence = fence_of(key.acquire_alone("run", TOKEN))
        key.give_up("retry")
        assert fence_of(key.acquire_alone("run", TOKEN, inherits=("retry", OTHER))) == fence
        late = key.acquire_alone("retry", OTHER, inherits=("run", TOKEN), phase="again")
        assert isinstance(late.answer, Held)
        assert key.holders() == ["run"]
        assert key.renew("run", TOKEN)

    @pytest.mark.proves("retry that was given up")
    def test_a_message_whose_call_was_given_up_and_that_comes_nevertheless_waits_and_begins(self) -> None:
        key = self.key()
        key.hold("run")
        key.park("retry", OTHER)
        key.give_up("retry")
        key.park("other")
        assert key.inspect().waiting == 2
        key.release("run")
        fence_of(key.acquire("retry", OTHER, redelivered=True))

    @pytest.mark.proves("one command, no answer")
    def test_a_call_that_is_given_up_releases_the_key_that_it_holds_if_its_message_is_not_known(self) -> None:
        key = self.key()
        fence_of(key.acquire_alone("a", TOKEN, phase="queued"))
        assert found(key.give_up("a"))
        assert key.holders() == ["a"]
        for _ in range(2):
            assert found(key.give_up("a", releases=True))
            assert key.holders() == []

    @pytest.mark.proves("one command, no answer")
    def test_a_call_whose_message_runs_or_waits_is_not_given_up(self) -> None:
        key = self.key()
        fence_of(key.acquire_alone("a", TOKEN, phase="queued"))
        fence_of(key.acquire("a", OTHER))
        key.park("b")
        for id in ("a", "b"):
            assert not found(key.give_up(id, releases=True))
        assert key.holders() == ["a"]
        assert key.inspect().waiting == 1

    def test_the_request_of_a_call_whose_message_is_over_is_stale(self) -> None:
        key = self.key()
        key.remove("a", ending="superseded")
        assert key.acquire_alone("a", TOKEN, phase="queued").answer == Stale()
        assert key.holders() == []

    @pytest.mark.proves("retry that was given up")
    def test_a_copy_of_a_finished_message_does_not_run_after_its_call_was_given_up(self) -> None:
        key = self.key()
        key.remove("a", ending="superseded")
        key.give_up("a")
        assert key.is_stale("a", OTHER, redelivered=True)

    def test_a_lease_is_handed_over_with_its_fence_and_its_former_holder_has_none(self) -> None:
        key = self.key()
        fence = fence_of(key.acquire_alone("a", TOKEN))
        assert fence_of(key.acquire_alone("b", OTHER, inherits=("a", TOKEN))) == fence
        assert key.holders() == ["b"]
        assert not found(key.release("a", TOKEN, ending="open"))
        assert not key.renew("a", TOKEN)
        assert key.renew("b", OTHER)

    @pytest.mark.promise(
        "A lease passes to another id beside other holders of its key, under its fence. It is not left to a "
        "message that is over",
        name="lease of a retry",
        broke="granted only while no other owner holds the key; the lease stays with a message that is over",
    )
    def test_a_lease_passes_to_a_retry_beside_other_holders_and_is_left_to_it(self) -> None:
        key = self.key()
        fence = key.hold("a", limit=2)
        key.hold("other", limit=2)
        assert fence_of(key.acquire_alone("b", TOKEN, inherits=("a", TOKEN))) == fence
        assert sorted(key.holders()) == ["b", "other"]
        assert isinstance(key.acquire("b", OTHER, limit=2).answer, Held)  # its run has not ended
        assert found(key.requeue("b"))
        assert fence_of(key.acquire("b", OTHER, limit=2)) == fence
        assert sorted(key.holders()) == ["b", "other"]

    @pytest.mark.proves("lease of a retry")
    def test_a_lease_is_not_left_to_a_message_that_is_over(self) -> None:
        key = self.key()
        fence_of(key.acquire_alone("a", TOKEN))
        assert not found(key.remove("a", ending="superseded"))
        assert found(key.requeue("a", TOKEN))
        assert key.holders() == []

    def test_others_see_its_phase(self) -> None:
        def seen() -> str:
            (holder,) = key.inspect().holders
            refused = key.acquire_alone("b", OTHER).answer
            assert isinstance(refused, Held)
            assert refused.by[0].phase == holder.phase
            return holder.phase

        key = self.key()
        key.acquire_alone("a", phase="queued")
        assert seen() == "queued"
        key.acquire_alone("a", ttl=2 * LONG)
        assert seen() == "running"
        assert found(key.requeue("a", TOKEN))
        assert seen() == "again"
        assert key.renew("a", ttl=3 * LONG)
        assert seen() == "again"
        key.acquire_alone("a", phase="period")
        assert seen() == "period"
        key.acquire_alone("c", OTHER, inherits=("a", "any"), phase="running")
        assert seen() == "running"

    def test_handing_over_again_changes_nothing(self) -> None:
        key = self.key()
        fence = fence_of(key.acquire_alone("a", TOKEN))
        fence_of(key.acquire_alone("b", OTHER, inherits=("a", TOKEN)))
        assert fence_of(key.acquire_alone("b", OTHER, inherits=("a", TOKEN))) == fence
        assert key.holders() == ["b"]

    def test_an_expired_lease_is_not_handed_over_but_a_free_key_is_granted_and_a_held_one_is_not(
        self,
    ) -> None:
        key = self.key()
        fence_of(key.acquire_alone("a", TOKEN, ttl=SHORT))
        key.wait_until_expired()
        fence_of(key.acquire_alone("b", OTHER, inherits=("a", TOKEN)))
        assert isinstance(key.acquire_alone("c", TOKEN, inherits=("a", TOKEN)).answer, Held)
        assert key.holders() == ["b"]

    def test_a_key_with_another_holder_is_not_acquired_alone(self) -> None:
        key = self.key()
        key.hold("a")
        assert isinstance(key.acquire_alone("b", OTHER).answer, Held)
