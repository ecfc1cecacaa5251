"""The scheduler against a plain reading of its promise: first come, first served, not too many."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from blockdraft.engine.scheduler import Scheduler

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(1, 4)),
        st.tuples(st.just("admit"), st.just(0)),
        st.tuples(st.just("finish"), st.integers(0, 7)),
        st.tuples(st.just("cancel"), st.integers(0, 30)),
    ),
    max_size=60,
)


@given(max_batch_size=st.integers(1, 5), steps=STEPS)
def test_any_order_of_events(max_batch_size: int, steps: list[tuple[str, int]]) -> None:
    scheduler = Scheduler(max_batch_size)
    waiting: list[int] = []
    running: list[int] = []
    num_added = 0
    for kind, number in steps:
        if kind == "add":
            new = list(range(num_added, num_added + number))
            num_added += number
            scheduler.add(new)
            waiting += new
        elif kind == "admit":
            joining = scheduler.next_to_admit()
            assert joining == waiting[: max_batch_size - len(running)]
            del waiting[: len(joining)]
            running += joining
            assert len(running) <= max_batch_size
        elif kind == "finish" and running:
            scheduler.finish(running.pop(number % len(running)))
        elif kind == "cancel":
            scheduler.cancel(number)  # whether it waits, runs, is done or is not known yet
            waiting = [i for i in waiting if i != number]
        assert scheduler.is_idle == (not waiting and not running)


def test_a_free_place_is_taken_at_once() -> None:
    scheduler = Scheduler(2)
    scheduler.add(range(4))
    assert scheduler.next_to_admit() == [0, 1]
    assert scheduler.next_to_admit() == []
    scheduler.finish(1)
    assert scheduler.next_to_admit() == [2]
    scheduler.finish(0)
    scheduler.finish(2)
    assert scheduler.next_to_admit() == [3]
    assert not scheduler.is_idle
    scheduler.finish(3)
    assert scheduler.is_idle
