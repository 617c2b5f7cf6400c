"""Who knows of whose writes: releases, acquires, scopes and fences, one by one."""

from __future__ import annotations

import pytest

from uniep_compiler.machine.findings import Fault
from uniep_compiler.machine.memory import Counter, Knowledge, Memory, Write

PRODUCER, CONSUMER = 0, 1


def write(agent, family, time, *, is_async=False, launch=0):
    return Write(family=family, execution=10 * family + agent, agent=agent, time=time, is_async=is_async, launch=launch)


class Pair:
    """A producer and a consumer with one cell and one counter between them."""

    def __init__(self):
        self.memory = Memory()
        self.knowledge = [Knowledge.initial(agent, 2) for agent in (PRODUCER, CONSUMER)]
        self.counter = Counter.initial(2)

    def produce(self, **how):
        self.memory.write(0, write(PRODUCER, 0, self.knowledge[PRODUCER].known[PRODUCER], **how), self.knowledge[0])

    def post(self, *, is_sys=True, is_remote=False):
        self.counter.release(self.knowledge[PRODUCER], 1, is_sys=is_sys, is_remote=is_remote)
        self.knowledge[PRODUCER].tick(PRODUCER)

    def wait(self, *, is_sys=True, fence=False):
        self.counter.acquire(self.knowledge[CONSUMER], is_sys=is_sys, fence=fence)

    def consume(self, **how):
        fault = self.memory.read(0, 0, write(CONSUMER, 1, 1, **how), self.knowledge[CONSUMER])
        return None if fault is None else fault[0]


@pytest.fixture
def pair():
    return Pair()


def test_a_post_and_a_wait_order_a_write_before_a_read(pair):
    pair.produce()
    pair.post()
    pair.wait()
    assert pair.consume() is None


def test_without_a_wait_it_is_a_race(pair):
    pair.produce()
    pair.post()
    assert pair.consume() is Fault.RACE


def test_what_is_written_after_the_post_was_not_released(pair):
    pair.post()
    pair.produce()
    pair.wait()
    assert pair.consume() is Fault.RACE


def test_a_read_before_the_write_is_stale(pair):
    assert pair.consume() is Fault.STALE_READ


@pytest.mark.parametrize(("post_sys", "wait_sys"), [(True, False), (False, True), (False, False)])
def test_ranks_hear_each_other_by_sys_scope_only(pair, post_sys, wait_sys):
    pair.produce()
    pair.post(is_sys=post_sys, is_remote=True)
    pair.wait(is_sys=wait_sys)
    assert pair.consume() is Fault.NARROW_SCOPE


def test_on_one_rank_gpu_scope_is_enough(pair):
    pair.produce()
    pair.post(is_sys=False)
    pair.wait(is_sys=False)
    assert pair.consume() is None


@pytest.mark.parametrize(("fence", "fault"), [(True, None), (False, Fault.MISSING_FENCE)])
def test_tma_reads_need_a_fence_after_the_wait(pair, fence, fault):
    pair.produce()
    pair.post()
    pair.wait(fence=fence)
    assert pair.consume(is_async=True) is fault


def test_a_fence_before_the_wait_does_not_help(pair):
    pair.produce()
    pair.wait(fence=True)
    pair.post()
    pair.wait()
    assert pair.consume(is_async=True) is Fault.MISSING_FENCE


def test_tma_writes_are_seen_after_the_kernel_only(pair):
    pair.produce(is_async=True)
    pair.post()
    pair.wait()
    assert pair.consume() is Fault.ASYNC_WRITE
    assert pair.consume(launch=1) is None


def test_overwriting_needs_to_know_the_readers(pair):
    pair.produce()
    pair.post()
    pair.wait()
    pair.consume()
    later = Write(family=2, execution=99, agent=PRODUCER, time=2, is_async=False, launch=0)
    assert pair.memory.write(0, later, pair.knowledge[PRODUCER]) == (Fault.RACE, 11)
