"""Laws of Suspects: every request ends once, and only a request that kills its process is to blame, after few deaths.

The processes are simulated: they take requests as Suspects admits them, finish them in any order, and die of some.
"""

from __future__ import annotations

import random
from collections import Counter, deque
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from voxbatch.process.suspects import Cause, SearchRules, Suspects, Trial

RULES = st.builds(SearchRules, together=st.integers(1, 3), parts=st.sampled_from((2, 8, 32)), alone=st.integers(1, 3))


@dataclass
class Simulation:
    """Processes that share their suspects, until every request has ended."""

    rules: SearchRules
    requests: int
    concurrency: int = 8
    processes: int = 1
    killers: frozenset[int] = frozenset()
    """Requests of which a process dies when it would finish them, or at once."""
    losers: frozenset[int] = frozenset()
    """Requests for which a process ends its work without a result."""
    at_once: bool = False
    """True if a process dies of a request before it finishes another one."""
    cause: Cause = Cause.CRASH
    """The cause of these deaths as the owner sees it."""
    outside: dict[int, Cause] = field(default_factory=dict)
    """Number of the event → cause of a death that no request has brought."""
    seed: int = 0
    deaths: int = 0
    most: list[int] = field(default_factory=list)
    """Number of requests in each process that died."""

    def run(self) -> tuple[Counter[int], set[int]]:
        """Return how often each request ended, and those that were blamed."""
        dice, suspects = random.Random(self.seed), Suspects[int](self.rules)
        new, waiting = deque(range(self.requests)), deque[int]()
        held: list[list[int]] = [[] for _ in range(self.processes)]
        ended, blamed, event = Counter[int](), set[int](), 0
        while new or waiting or any(held):
            process = dice.choice(held)
            while (request := self._next(suspects, new, waiting, process)) is not None:
                process.append(request)
            if not process:
                continue
            event += 1
            chosen = dice.choice(process)
            if self.at_once:
                chosen = next(filter(self.killers.__contains__, process), chosen)
            is_loss = chosen in self.losers
            cause = self.outside.get(event) or (Cause.LOSS if is_loss else self.cause)
            if chosen not in self.killers | self.losers and event not in self.outside:
                process.remove(chosen)
                suspects.ended(chosen)
                ended[chosen] += 1
                continue
            lost = [chosen] if cause is Cause.LOSS else list(process)
            self.deaths += 1
            self.most.append(len(lost))
            again, guilty = suspects.died(lost, cause)
            assert sorted([*again, *([] if guilty is None else [guilty])]) == sorted(lost)
            if guilty is not None:
                ended[guilty] += 1
                blamed.add(guilty)
            for request in lost:
                process.remove(request)
            waiting.extendleft(reversed(again))
        assert not len(suspects)
        return ended, blamed

    def _next(self, suspects: Suspects[int], new: deque[int], waiting: deque[int], process: list[int]) -> int | None:
        beside = process[0] if process else None
        if len(process) == self.concurrency:
            return None
        for queue in (waiting, new):
            if queue:
                request = None if queue is new else queue[0]
                return queue.popleft() if suspects.admits(request, len(process), beside) else None
        return None


few = st.frozensets(st.integers(0, 59), max_size=4)


@given(RULES, st.integers(1, 60), st.integers(1, 70), st.integers(1, 3), few, few, st.booleans(), st.integers(0, 10**6))
def test_each_request_ends_once_and_only_the_guilty_are_blamed(
    rules: SearchRules, requests: int, concurrency: int, processes: int, killers: frozenset[int],
    losers: frozenset[int], at_once: bool, seed: int,
) -> None:  # fmt: skip
    """With several guilty requests and several processes, all of these are blamed and nobody else, within the bound."""
    losers -= killers
    simulation = Simulation(rules, requests, concurrency, processes, killers, losers, at_once, seed=seed)
    ended, blamed = simulation.run()
    assert ended == Counter(range(requests))
    assert blamed == {request for request in killers | losers if request < requests}
    assert simulation.deaths <= rules.max_deaths(concurrency) * len(blamed)


causes = st.dictionaries(st.integers(1, 300), st.sampled_from((Cause.CRASH, Cause.KILL, Cause.MACHINE)), max_size=6)


@given(RULES, st.integers(1, 60), st.integers(1, 70), st.integers(1, 3), few, causes, st.integers(0, 10**6))
def test_deaths_from_outside_blame_nobody(
    rules: SearchRules, requests: int, concurrency: int, processes: int, killers: frozenset[int],
    outside: dict[int, Cause], seed: int,
) -> None:  # fmt: skip
    """Kills from outside, fewer than a request alone needs, blame no innocent one, and hide no guilty one. Each of them
    can at most make a search begin anew."""
    kills = [event for event, cause in sorted(outside.items()) if cause is not Cause.MACHINE]
    outside = {event: cause for event, cause in outside.items() if event not in kills[rules.alone - 1 :]}
    simulation = Simulation(rules, requests, concurrency, processes, killers, outside=outside, seed=seed)
    ended, blamed = simulation.run()
    assert ended == Counter(range(requests))
    assert blamed == {request for request in killers if request < requests}
    assert simulation.deaths <= rules.max_deaths(concurrency) * (len(blamed) + len(outside))


@given(RULES, st.integers(1, 60), st.integers(1, 70), st.integers(1, 100), st.integers(0, 10**6))
def test_deaths_by_the_machine_leave_no_suspects(
    rules: SearchRules, requests: int, concurrency: int, often: int, seed: int
) -> None:
    """However often the machine ends a process, no request is on trial, let alone blamed."""
    outside = dict.fromkeys(range(1, 1 + often), Cause.MACHINE)
    simulation = Simulation(rules, requests, concurrency, outside=outside, seed=seed)
    assert simulation.run() == (Counter(range(requests)), set())
    assert all(count == min(concurrency, requests) for count in simulation.most), "they are all tried again together"


@pytest.mark.parametrize("killer", [0, 500, 1023])
@pytest.mark.parametrize(("cause", "deaths"), [(Cause.CRASH, 5), (Cause.KILL, 6)])
def test_one_of_a_thousand_is_found_after_a_few_deaths(killer: int, cause: Cause, deaths: int) -> None:
    """The deaths of the docstring: 1,024 twice, 32, and one alone, which SIGKILL must end once more."""
    simulation = Simulation(SearchRules(), 2000, 1024, killers=frozenset({killer}), at_once=True, cause=cause)
    assert simulation.run()[1] == {killer}
    assert simulation.most == [1024, 1024, 32, *[1] * (deaths - 3)]
    assert deaths <= SearchRules().max_deaths(1024) == 6


def test_the_first_death_puts_nobody_on_trial() -> None:
    """Requests of a first death go on beside new ones, and those of a second one without others."""
    suspects = Suspects[str](SearchRules())
    assert suspects.died(["a", "b"]) == (["a", "b"], None)
    assert suspects.admits("a", 5, "new")
    assert suspects.admits(None, 5, "a")
    again, _ = suspects.died(["new", "a", "b"], Cause.KILL)
    assert again == ["a", "b", "new"], "those on trial first"
    assert not suspects.admits("b", 1, "a"), "two suspects are one at a time"
    assert not suspects.admits(None, 1, "a")
    suspects.ended("a")
    assert suspects.admits("b", 0, None)
    assert not suspects.admits("new", 1, "b")


def test_a_death_clears_suspects_that_were_not_in_the_process() -> None:
    """A death with one suspect explains the last one. The others are on trial again at their next death."""
    suspects = Suspects[str](SearchRules(parts=2))
    suspects.died(["a", "b", "c", "d"])
    suspects.died(["a", "b", "c", "d"])
    assert [suspects.width(request) for request in "abcd"] == [2] * 4
    suspects.died(["a", "b"])
    assert [suspects.width(request) for request in "abcd"] == [1, 1, None, None]
    suspects.died(["c", "d", "e"])
    assert [suspects.width(request) for request in "cde"] == [1, 1, None]


def test_a_process_that_loses_results_makes_each_of_them_suspect() -> None:
    """A lost result is tried again alone, and then blamed: nobody else can have caused it."""
    suspects = Suspects[str](SearchRules())
    assert suspects.died(["a", "b"], Cause.LOSS) == (["a", "b"], None)
    assert not suspects.admits("b", 1, "a")
    assert suspects.died(["a"], Cause.LOSS) == ([], "a")
    assert suspects.died(["b"], Cause.LOSS) == ([], "b")


def test_a_proof_before_each_trial_counts_only_the_deaths_after_it() -> None:
    """A request that was alone by chance is not blamed for the deaths before its trial."""
    rules, trial, deaths = SearchRules(proves_first=True), Trial(), 0
    while not rules.blames(trial, Cause.KILL):
        trial, deaths = rules.after_death(trial, 1, is_alone=True), deaths + 1
    assert deaths == rules.together + rules.alone + 1
