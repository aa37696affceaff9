"""The options of a task: `Exclusive` (not run twice at once), `Unique` (not queued twice), and `Debounce`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from inspect import signature
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, cast, get_args

from celery_exclusive.core.admission import IN_LINE, REPLACING
from celery_exclusive.core.claim import FINISHED, PERIOD, WINDOW, UniqueUntil
from celery_exclusive.core.room import Rates
from celery_exclusive.errors import shown
from celery_exclusive.options.amounts import (
    A_COUNT,
    A_WEIGHT,
    LONGEST,
    MOST,
    Time,
    is_count,
    is_duration,
    is_weight,
    microseconds,
    seconds,
    seconds_from,
)
from celery_exclusive.options.hints import OF_DEBOUNCE, OF_EXCLUSIVE, OF_UNIQUE
from celery_exclusive.options.option import ALL, NOT_GIVEN, Option, explain_wrong_arguments, is_switch
from celery_exclusive.options.rates import FORM, Rate
from celery_exclusive.options.rates import read as read_rates

if TYPE_CHECKING:
    from typing_extensions import Self

OnConflict = Literal["wait", "latest", "supersede", "skip", "raise", "reschedule"]
OnFull = Literal["raise", "skip"]
OnGiveUp = Literal["raise", "skip"]
StartOrder = Literal["arrived", "published", "any"]


class _ByDefault(int):
    """The limit of an option without `limit=`, also in copies: 1 for a key and none for its parts."""


_ONE: Final = _ByDefault(1)


@explain_wrong_arguments
@dataclass(frozen=True, slots=True, repr=False)
class Exclusive(Option):
    """Let a task run only so many times at once: once per key, or `limit` times.

    The worker acquires the lease before the body, and renews it while the body runs.

        @app.task(exclusive=Exclusive())                            # one at a time, the others wait in line
        def rebuild_index(): ...

        @app.task(exclusive=Exclusive("feed_url", on_conflict="skip"))   # one per feed
        def import_feed(feed_url, *, full=False): ...

        @app.task(exclusive=Exclusive(key="repo:{project_id}"))     # shared with other tasks
        def sync(project_id): ...

    Parameters:
        by: the parameter or parameters of the task that make up the key, or "*" for identical arguments.
            Default None: the whole task, whatever its arguments. Kept as a tuple of names. Together they may
            have 5,000 values, items of lists and dicts, and 500,000 characters: a call with more raises
            OptionError, and a message with more fails.
        key: an absolute key instead of `by`, shared by all tasks that give the same string: a template over
            the arguments ("repo:{project_id}", "repo:{project.pk}"), or a function that returns the
            string. It gets all arguments by place, with their defaults, and keyword-only ones by name. One
            with other parameters and `**kwargs` gets all by name. A keyword-only parameter `headers` gets the
            headers of the message. A template shows values as strings: 17 and "17" have one key, as None and
            "None" do.
        limit: how many may run at once per key, an int from 1, or a function without arguments that returns
            it, called at each call and each start. Default 1, also beside `rate`. None: any number.
        rate: how many may start in a time, by the clock of the store: "500/m" is at most 500 in any minute,
            "1/6s" one in any six seconds; the times are s, m, h and d, as in Celery's `rate_limit`, but per
            key and over all workers. Up to three with different times: ("5/s", "10000/d"). A retry counts, as
            each start of a body does. A task above it meets a key that is held, so `on_conflict` decides.
            Default None: any number.
        cost: the units that a run takes of `limit` and of each rate: an int from 1, the name of a parameter
            of the task, or a function of its arguments. A run that is dearer than a limit needs all of it,
            and runs alone. Default 1.
        per: what divides the key into parts that start their waiting tasks in turn, so that none waits behind
            all that another has queued: the name of a parameter ("tenant_id"), a template as for `key`
            ("{tenant.pk}"), or a function of the arguments. `per=Exclusive("tenant_id", limit=4, rate="60/m",
            weight="plan")` gives each part a limit and a rate of its own, besides the key's own, and a
            weight; without limit= a part has none. Fair are starts, or units of `cost`, not seconds. For
            tasks that wait in line in their order. Default None: one line for all.
        weight: only within `per=`: how many starts a part has for one of a part of weight 1, an int from 1 to
            100, the name of a parameter, or a function of the arguments. Default 1.
        ttl: seconds without heartbeat after which the lease of a dead worker expires, from 0.1. It does not
            limit the run time. Default None: the setting `exclusive_ttl` (30 s).
        on_conflict: what a task does if its key is held. Default "wait": it waits in line and in order, but
            in no worker slot. "latest": it waits, and takes the place of the task that waits already, which
            ends with SUCCESS, without its body; so up to `limit` tasks run, and the newest waits.
            "supersede": as "latest", and the running task is told: `self.lease.superseded` is True, and
            `self.lease.check()` raises `Superseded`, which ends it as skipped. "skip": it ends with SUCCESS,
            without its body. "raise": it fails with `LockHeld`, and so do the chain and the chord it is in.
            "reschedule": its message is published again with a delay that grows from about 1 s to about 60 s,
            in no order; no task waits in line.
        grace: with on_conflict="supersede", the seconds from 0 after which a prefork worker interrupts a body
            that was superseded: `SoftTimeLimitExceeded` is raised in it, once, and ends it as skipped if it
            is not caught. Workers with threads, gevent or solo only tell it. Default None: it is only told.
        give_up_after: unless on_conflict is "skip" or "raise", the seconds after which a task does not wait
            any longer. They begin when it joins the line, by the clock of the store, or at its first try, by
            the clocks of the workers. A task that has been admitted before, such as a retry, does not give
            up. Default None: never.
        on_give_up: what a task does then. Default "raise": it fails with `LockHeld`, and so do the chain and
            the chord it is in. "skip": it ends with SUCCESS, without its body.
        max_waiting: how many tasks may wait in line per key, an int from 1. Retries and redelivered messages
            count, but are never refused. Default None: the setting `exclusive_max_waiting` (any number).
        on_full: what a task does if so many wait in line. Default "raise": it fails with `LockHeld`, and
            so do the chain and the chord it is in. "skip": it ends with SUCCESS, without its body.
        on_store_error: what a task does if the store has not answered for `exclusive_store_wait` seconds.
            "raise": its message goes back to the broker, and is delivered again later. "allow": its body runs
            without a lease, maybe beside another; a log line and an event report it. Default None: the
            setting `exclusive_on_store_error` ("raise").
        recover: with late acknowledgement (`acks_late=True`), whether the store keeps the message while the
            body runs, so that the task runs again as soon as `ttl` is over if its worker dies, and not when
            the broker's visibility timeout is over. Default None: the setting `exclusive_recover`, by default
            on where brokers have such a timeout (Redis, SQS), and off for RabbitMQ, which needs none. A
            worker does not start if a task is declared with True and has early acknowledgement.
        order: the order in which the tasks of a key start that wait in line. "published": as they were
            published, by all processes; a call for a busy key goes from its caller into the line, and to no
            worker before its turn; a call with an eta or a countdown joins the line when it is due.
            "arrived": as they reach the store from their workers. "any", for on_conflict="wait" alone: a free
            slot is granted to the first task that asks, also before waiting tasks. Default None: "published"
            where broker and store are one Redis database, without max_waiting= and exclusive_max_waiting,
            else "arrived". With key= and no per= it is "arrived": `lock(..., wait=0)` of that key does not
            fail because a call is queued, and no task in a fast queue waits for calls in a slow one. With
            "supersede" it is always "published".
        keep_on_retry: whether a run that ends with a retry (`self.retry`, `autoretry_for`) leaves its lease
            to the retry, so that no other task runs between the attempts. The retry holds the lease during
            its countdown and for `exclusive_queued_ttl` after that, all others wait as long. Default False:
            the lease is released, and the retry waits for its turn. A retry with another key never gets it.
        skip_result: the result of a skipped run, any constant that JSON can express (None too). Default:
            `{"skipped": {"key": ..., "existing_id": ...}}`, with the id of the task that holds the key, or of
            the newer task with "latest" and "supersede".

    Each time is seconds or a timedelta.

    Raises:
        OptionError: at once if a value or a name is wrong, a time longer than 157,766,400 s (5 years), or a
            count above 1,000,000,000; when the task is registered if the attribute is not called `exclusive`,
            the app was not installed, or a name is no parameter of the task.

    In a subclass `exclusive=None` switches it off. If a worker dies, its lease expires after `ttl`; while the
    store is down, tasks wait and none is lost. If a store loses its data, the leases of running bodies are
    restored; of the tasks in line, only those whose messages the broker still has run.
    """

    attribute: ClassVar[str] = "exclusive"
    kind: ClassVar[str] = "x"
    without_store: ClassVar[str] = "back to the broker"
    whole_task: ClassVar[str] = "Leave it out for the whole task"
    elsewhere: ClassVar[dict[str, str]] = OF_EXCLUSIVE

    _: KW_ONLY
    limit: int | Callable[[], int | None] | None = _ONE
    rate: Rate = None
    cost: int | str | Callable[..., int] = 1
    per: str | Callable[..., str] | Exclusive | None = None
    weight: int | str | Callable[..., int] = 1
    on_conflict: OnConflict = "wait"
    grace: Time | None = None
    give_up_after: Time | None = None
    on_give_up: OnGiveUp = "raise"
    max_waiting: int | None = None
    on_full: OnFull = "raise"
    order: StartOrder | None = None
    keep_on_retry: bool = False

    @property
    def most(self) -> int:
        try:
            limit = self.limit() if callable(self.limit) else self.limit
        except Exception as error:  # noqa: BLE001 - whatever the user's function raises
            self.refuse(f"limit= raised {type(error).__name__}: {error}. Correct the function.")
        if limit is None:
            return MOST
        if not is_count(limit):
            self.refuse(f"limit= returned {shown(limit)}, and must return {A_COUNT}, or None.")
        return limit

    @property
    def rates(self) -> Rates:
        """The units and the period, in microseconds, of each rate."""
        return read_rates(self.rate)

    @property
    def part_key(self) -> str | Callable[..., str] | None:
        """The template, or the function, of the part that a call belongs to."""
        per = self.per
        if isinstance(per, Exclusive):
            return per.key if per.key is not None else ":".join(f"{{{name}}}" for name in per.names or ())
        return f"{{{per}}}" if isinstance(per, str) and per.isidentifier() else per

    @property
    def part_option(self) -> Exclusive | None:
        """The option of the parts of its key. None: `per=` gives only their names."""
        return self.per if isinstance(self.per, Exclusive) else None

    @property
    def part_weight(self) -> int | str | Callable[..., int]:
        return self.part_option.weight if self.part_option else 1

    @property
    def limits_parts(self) -> bool:
        """Whether a task may have to wait for room of its part."""
        per = self.part_option
        return per is not None and (bool(per.rates) or per.has_given_limit)

    @property
    def has_given_limit(self) -> bool:
        """Whether `limit=` is written out, and limits."""
        return not (self.limit is None or isinstance(self.limit, _ByDefault))

    @property
    def has_line(self) -> bool:
        return self.on_conflict in IN_LINE

    @property
    def longest_wait(self) -> float | None:
        """The seconds for which a new task waits. None: without end."""
        kept: float | None = seconds(self.give_up_after)
        return kept

    @property
    def gives_up_in(self) -> int | None:
        """The microseconds for which a new task waits. None: without end."""
        return None if self.longest_wait is None else microseconds(self.longest_wait)

    @property
    def ends_waits(self) -> bool:
        """Whether a task may leave the line without its body."""
        return self.replaces or self.gives_up_in is not None

    @property
    def replaces(self) -> bool:
        """Whether a new task takes the place of the waiting one."""
        return self.on_conflict in REPLACING

    @property
    def supersedes(self) -> bool:
        """Whether a new task ends the running one, too."""
        return self.on_conflict == "supersede"

    @property
    def grace_s(self) -> float | None:
        kept: float | None = seconds(self.grace)
        return kept

    @property
    def may_skip(self) -> bool:
        return self.replaces or "skip" in (self.on_conflict, self.on_give_up, self.on_full)

    def _check_own(self) -> None:
        if callable(self.limit):
            self._check_function()
        elif not (self.limit is None or is_count(self.limit)):
            self.refuse(f"limit={shown(self.limit)} must be {A_COUNT}, or None: how many may run at once.")
        self._check_rate()
        self._check_choice(
            "on_conflict",
            get_args(OnConflict),
            "is none of 'wait' (in line), 'latest' (the newest waits), 'supersede' (and the running one "
            "ends), 'skip' (without a run), 'raise' (LockHeld) and 'reschedule' (again later)",
        )
        self._check_give_up_after()
        self._check_supersede()
        self._check_choice(
            "on_full", get_args(OnFull), "is neither 'raise' (LockHeld) nor 'skip' (without a run)"
        )
        most = self.max_waiting
        hint = "on_conflict='skip' if no task may wait" if most == 0 else "None for exclusive_max_waiting"
        self._require("max_waiting", is_count, f"{A_COUNT}: how many may wait. Use {hint}")
        self._check_choice(
            "order",
            (None, *get_args(StartOrder)),
            "is none of 'arrived' (at the store), 'published' and 'any' (the first that asks)",
        )
        self._require("keep_on_retry", is_switch, "True or False: whether a retry keeps the lease")
        self._check_line()
        self._check_parts()

    def _check_function(self) -> None:
        try:
            signature(cast("Any", self.limit)).bind()
        except (TypeError, ValueError):
            self.refuse(
                f"limit={shown(self.limit)} must take no arguments: it counts for the whole key, or within "
                "per= for each part. A call may give its own: exclusive=task.exclusive.replace(limit=2)."
            )

    def _check_rate(self) -> None:
        try:
            read_rates(self.rate)
        except ValueError:
            self.refuse(f"rate={shown(self.rate)} must be {FORM}.")
        if isinstance(self.rate, list):
            object.__setattr__(self, "rate", tuple(self.rate))
        if not (isinstance(self.cost, str) or callable(self.cost) or is_count(self.cost)):
            self.refuse(
                f"cost={shown(self.cost)} must be {A_COUNT}, the name of a parameter, or a function of the "
                "arguments."
            )
        has_rate = self.rate is not None or bool(self.part_option and self.part_option.rates)
        if self.cost != 1 and self.limit == 1 and not has_rate:
            self.refuse(
                f"cost={shown(self.cost)} does nothing with limit=1, which any run fills: add limit= or rate."
            )
        if has_rate and self.keep_on_retry:
            self.refuse(
                "rate= has no keep_on_retry=True: each attempt counts, and a retry that holds its key could "
                "not wait for the rate. Leave one of them out."
            )

    def _check_parts(self) -> None:
        per = self.per
        if not (isinstance(self.weight, str) or callable(self.weight) or is_weight(self.weight)):
            self.refuse(
                f"weight={shown(self.weight)} must be {A_WEIGHT}, the name of a parameter, or a function."
            )
        if per is None:
            return
        if isinstance(per, Exclusive):
            others = {*per.values, *per.functions} - {"key", "weight", "limit", "rate"}
            if others or (per.names in (None, ALL) and per.key is None):
                self.refuse(
                    f"per={per!r} must name parameters or have a key=, may have limit=, rate= and weight=, "
                    "and nothing else."
                )
        elif not per or not (isinstance(per, str) or callable(per)):
            self.refuse(
                f"per={shown(per)} must be the name of a parameter, a template like '{{tenant.pk}}', or a "
                "function of the arguments."
            )
        if self.on_conflict != "wait" or self.order == "any":
            given = f"order={self.order!r}" if self.order == "any" else f"on_conflict={self.on_conflict!r}"
            self.refuse(
                f"per= is for tasks that wait in line in their order, and {given} keeps none. Leave one of "
                "them out."
            )
        if self.give_up_after is not None:
            self.refuse(
                "per= has no give_up_after=: a part whose tasks give up keeps their places, and would fall "
                "behind all others. Leave one of them out."
            )
        inner = per.limit if isinstance(per, Exclusive) and per.has_given_limit else None
        if isinstance(inner, int) and isinstance(self.limit, int) and inner >= self.limit:
            self.refuse(
                f"limit={inner} within per= does nothing with limit={self.limit} of all: give a greater "
                "limit=, or limit=None for no limit of all."
            )
        if self.limit is None and self.rate is None and not self.limits_parts:
            self.refuse(
                "per= does nothing with limit=None, where no task waits: add limit= or rate=, here or within "
                "per=Exclusive(...)."
            )

    def _check_line(self) -> None:
        """Refuse what is for a line where there is none or another one, or where calls join it themselves."""
        if not self.has_line and self.order not in (None, "arrived"):
            self._refuse_without_line(f"order={self.order!r}")
        if self.replaces and (self.order == "any" or (self.supersedes and self.order == "arrived")):
            self.refuse(
                f"on_conflict={self.on_conflict!r} has no order={self.order!r}: an older task that comes "
                "late could start after a newer one. Leave order= out, or use order='published'."
            )
        if self.on_conflict != "wait":
            if self.max_waiting is not None:
                self._refuse_without_line(f"max_waiting={self.max_waiting!r}")
            if self.on_full != "raise":
                self._refuse_without_line(f"on_full={self.on_full!r}")
        if self.order == "published" and self.max_waiting is not None:
            self.refuse(
                "order='published' has no max_waiting=: calls take their places when they are published, and "
                "none is refused. Leave one of them out."
            )

    def _refuse_without_line(self, given: str) -> None:
        line = "only the newest task waits" if self.has_line else "there is no line"
        self.refuse(
            f"{given} is for on_conflict='wait': with {self.on_conflict!r} {line}. Leave one of them out."
        )

    def _check_supersede(self) -> None:
        self._keep_seconds("grace")
        self._require("grace", lambda it: is_duration(it, at_least=0), f"{seconds_from(0)}, or None")
        if self.grace is not None and not self.supersedes:
            self.refuse(
                f"grace={shown(self.grace)} is for on_conflict='supersede': with {self.on_conflict!r} no "
                "body is interrupted. Leave it out."
            )
        if self.supersedes and self.limit != 1:
            self.refuse(
                f"on_conflict='supersede' has no limit={shown(self.limit)}: a newer call ends the one task "
                "that runs. Leave limit= out, or use on_conflict='latest'."
            )

    def _check_give_up_after(self) -> None:
        self._keep_seconds("give_up_after")
        wait = self.give_up_after
        self._check_choice(
            "on_give_up", get_args(OnGiveUp), "is neither 'raise' (LockHeld) nor 'skip' (without a run)"
        )
        if wait is None:
            if self.on_give_up != "raise":
                self.refuse(
                    f"on_give_up={self.on_give_up!r} is for give_up_after=: without it a task never gives "
                    "up. Add give_up_after=60 for a minute, or leave it out."
                )
            return
        if self.on_conflict in ("skip", "raise"):
            self.refuse(
                f"give_up_after={shown(wait)} is for on_conflict='wait', 'latest', 'supersede' or "
                f"'reschedule': with {self.on_conflict!r} no task waits. Leave one of them out."
            )
        if not is_duration(wait, at_least=0) or wait == 0:
            self.refuse(
                f"give_up_after={shown(wait)} must be a number of seconds above 0 and up to {LONGEST}, or "
                "None for never."
            )


Until = Literal["finished", "started"]
"""The events that end a unique lease: the end of the task, or its start."""
OnDuplicate = Literal["skip", "raise", "share"]


@dataclass(frozen=True, slots=True, repr=False)
class UniqueOption(Option):
    """An option of the calls of a task: `Unique` or `Debounce`."""

    attribute: ClassVar[str] = "unique"
    without_store: ClassVar[str] = "StoreUnavailable"

    @classmethod
    def of(cls, **parameters: Any) -> Self:
        """Return an option with these parameters: only `Debounce` has a `wait`."""
        option: Any = (Debounce if "wait" in parameters else Unique)(**parameters)
        return cast("Self", option)

    @property
    def held_until(self) -> UniqueUntil:
        """The event that ends the lease."""
        raise NotImplementedError

    @property
    def refuses_duplicates(self) -> bool:
        return False

    @property
    def may_skip(self) -> bool:
        return not (self.refuses_duplicates or self.shares)

    @property
    def shares(self) -> bool:
        """Whether a duplicate call has a handle of its own, which ends as the task has that holds the key."""
        return False


@explain_wrong_arguments
@dataclass(frozen=True, slots=True, repr=False)
class Unique(UniqueOption):
    """Let a task be queued only once: the same call is not published again while its key is held.

    The caller acquires the lease, before the message is published.

        @app.task(unique=Unique())                              # until it has finished, per arguments
        def send_digest(user_id): ...

        @app.task(unique=Unique("doc_id", until="started"))     # one may run, and one more be queued
        def reindex(doc_id, *, full=False): ...

        @app.task(unique=Unique("team_id", period=60))          # at most once a minute
        def refresh_stats(team_id): ...

    A call whose key is held publishes nothing, and returns the AsyncResult of the task that holds it, with
    `outcome` "skipped", `existing_id` and `key`; the result of any other call has `outcome` "published". A
    call whose end other code awaits is published all the same. A member of a chain, group or chord, or a call
    with a link, waits in line, in no slot, for the task that holds its key, and ends with its result or its
    error; if that was lost or revoked, it runs. It needs a result backend that a worker can read, and a store
    with lines: without them, and until "started" or with a period, a step before another one fails with
    `DuplicateTask`, unless `skip_result` is given. A call with a `task_id` of its own, and every call whose
    result goes through `rpc://`, ends with SUCCESS without its body. With on_conflict="raise" members of
    canvases and callbacks fail with `DuplicateTask`.

    Parameters:
        by: the parameter or parameters of the task that make up the key. Default None: all of them,
            identical arguments.
        key: an absolute key instead of `by`, as for `Exclusive`, or a constant for the whole task.
        until: when the key is released. Default "finished": when the task has its result, through retries
            and redeliveries. "started": when its body begins.
        period: seconds for which the key is held instead, however the task ends.
        on_conflict: "skip"; "raise": the call raises `DuplicateTask`; or "share": the call is published, and
            its own AsyncResult ends as the task has that holds the key. Default "skip".
        ttl: as for `Exclusive`.
        queued_ttl: seconds after which the key of a lost message expires, counted from its eta if it has one,
            5 years in all. Default None: the setting `exclusive_queued_ttl` (86,400 s, a day).
        on_store_error: what a call does if the store does not answer. "raise": it raises `StoreUnavailable`.
            "allow": it is published without a lease, maybe twice. Default None: the setting
            `exclusive_on_store_error` ("raise").
        recover: with until="finished", as for `Exclusive`. With both options the value in `exclusive=`
            counts, unless it is None.
        skip_result: the result of a call that is published and then skipped, any constant that JSON can
            express (None too). Default: `{"skipped": {"key": ..., "existing_id": ...}}`.

    Each time is seconds or a timedelta.

    Raises:
        OptionError: as for `Exclusive`; the attribute of the task must be called `unique`.

    In a subclass, or in a call, `unique=None` switches it off. If the message cannot be published, the key
    is released at once; if the caller dies before, it expires after `queued_ttl`. Until "finished" the key
    guards the run as a lock does: its body has `self.lease`, and after the death of its worker the task runs
    again when `ttl` is over, with late acknowledgement (see `recover`), or the key expires.
    """

    kind: ClassVar[str] = "u"
    names_by_default: ClassVar[tuple[str, ...] | None] = ALL
    whole_task: ClassVar[str] = "For the whole task give it one key='...'"
    elsewhere: ClassVar[dict[str, str]] = OF_UNIQUE

    _: KW_ONLY
    until: Until = "finished"
    period: Time | None = None
    on_conflict: OnDuplicate = "skip"
    queued_ttl: Time | None = None

    @property
    def held_until(self) -> UniqueUntil:
        return self.until if self.period is None else PERIOD

    @property
    def refuses_duplicates(self) -> bool:
        return self.on_conflict == "raise"

    @property
    def shares(self) -> bool:
        return self.on_conflict == "share"

    def _check_own(self) -> None:
        if self.shares and (self.held_until != FINISHED or self.skip_result is not NOT_GIVEN):
            self.refuse(
                "on_conflict='share' waits for the end of the task that holds the key, and has its result: "
                "leave out until=, period= and skip_result=."
            )
        self._check_choice(
            "until",
            get_args(Until),
            "is neither 'finished' (it has its result) nor 'started' (its body begins)",
        )
        self._require_time("period", seconds_from())
        is_alone = self.until == "finished" and self.ttl is None and self.queued_ttl is None
        if self.period is not None and not is_alone:
            self.refuse(
                f"period={self.period!r} alone determines how long a key is held. Leave out until=, ttl= and "
                "queued_ttl=."
            )
        if self.recover and self.held_until != FINISHED:
            self.refuse(
                "recover=True is for until='finished': no other key guards the run of its task. Leave one of "
                "them out."
            )
        self._require_time("queued_ttl", f"{seconds_from()}, or None for exclusive_queued_ttl")
        self._check_choice(
            "on_conflict",
            get_args(OnDuplicate),
            "is neither 'skip' (nothing is published), 'raise' (DuplicateTask) nor 'share' (it ends as the "
            "task has that holds the key)",
        )


@explain_wrong_arguments
@dataclass(frozen=True, slots=True, repr=False)
class Debounce(UniqueOption):
    """Let a burst of calls run once, with the arguments of the newest call.

    The first call opens a window. Its message waits in the store, in no queue and in no worker slot, and each
    further call replaces it. It is published `wait` seconds after the last call, and at most `max_wait`
    seconds after the first, within a second or so (`exclusive_reap_period`). A call after that, also during
    the run, opens the next window.

        @app.task(unique=Debounce("doc_id", wait=5, max_wait=60))       # one window per document
        def reindex(doc_id, text): ...

        @app.task(unique=Debounce(wait=2, max_wait=30), exclusive=Exclusive())   # and one run at a time
        def rebuild_index(): ...

    All calls of a window return the AsyncResult of its one run: the first with `outcome` "published", the
    later ones with "updated" and `existing_id`. A call whose end other code awaits keeps its own id, while
    its arguments count: it ends with SUCCESS without its body. So do members of chains, groups and chords,
    calls with links, or with a `task_id` of their own unless they open the window, and all calls whose
    results go through `rpc://`.

    Parameters:
        by: the parameter or parameters of the task that make up the key. Default None: the whole task,
            whatever its arguments, since the newest call counts.
        key: an absolute key instead of `by`, as for `Exclusive`.
        wait: seconds without a call after which the window ends, from 0.1.
        max_wait: seconds after the first call at which the window ends at the latest, from `wait`.
        leading: whether a call that finds no window runs at once, and opens none. Calls that come within
            `wait` after it open one, and the last of them runs at its end. Default False.
        on_store_error: what a call does if the store does not answer. "raise": it raises `StoreUnavailable`.
            "allow": it is published at once, beside the window. Default None: the setting
            `exclusive_on_store_error` ("raise").
        skip_result: the result of a call that keeps its own id, any constant that JSON can express (None
            too). Default: `{"skipped": {"key": ..., "existing_id": ...}}`.

    Each time is seconds or a timedelta.

    Raises:
        OptionError: as for `Exclusive`; the attribute of the task must be called `unique`. A call with a
            countdown or an eta raises it, too: the window says when its task runs.

    In a subclass, or in a call, `unique=None` switches it off; `apply()` runs the task here and now. Other
    options of the newest call count as well, such as `expires` and `queue`. A retry belongs to its run and
    opens no window. To revoke the id revokes all calls of its window.
    """

    kind: ClassVar[str] = "d"
    whole_task: ClassVar[str] = "Leave it out for the whole task"
    elsewhere: ClassVar[dict[str, str]] = OF_DEBOUNCE

    _: KW_ONLY
    wait: Time
    max_wait: Time
    leading: bool = False

    @property
    def held_until(self) -> UniqueUntil:
        return WINDOW

    @property
    def waits(self) -> tuple[int, int]:
        """The microseconds of `wait` and of `max_wait`."""
        return microseconds(seconds(self.wait)), microseconds(seconds(self.max_wait))

    def _check_own(self) -> None:
        pause, longest = ": the pause after the last call", ", counted from the first call"
        for name, what in (("wait", pause), ("max_wait", longest)):
            self._require_time(name, f"{seconds_from()}{what} of a burst", is_optional=False)
        wait, max_wait = self.waits
        if max_wait < wait:
            self.refuse(
                f"max_wait={self.max_wait!r} is below wait={self.wait!r}: the longest time from the first "
                "call of a burst to its run cannot be shorter than the pause after one call."
            )
        self._require("leading", is_switch, "True or False: whether a first call runs at once")


KINDS: tuple[type[Option], ...] = (Exclusive, Unique, Debounce)
FAMILIES: dict[str, type[Option]] = {"exclusive": Exclusive, "unique": UniqueOption}
"""The options that each attribute of a task may have."""
NAMES = list(FAMILIES)
