"""The words for why a task does not run are one closed list."""

from __future__ import annotations

from typing import get_args, get_type_hints

from celery_exclusive.core.admission import Admission
from celery_exclusive.reasons import REASONS, Reason


def test_each_reason_has_a_sentence():
    assert tuple(REASONS) == get_args(Reason)


def test_the_plan_of_a_delivery_knows_no_reason_outside_the_list():
    assert {*get_args(get_type_hints(Admission)["reason"])} <= {*REASONS}
