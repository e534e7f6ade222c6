"""Properties of the prefill policies, whatever the queue, the outputs and the room (pure)."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from corun_pd.engine.policy import (
    Candidate,
    IsolatedPrefill,
    PackedPrefill,
    PrefillPolicy,
    Share,
    admit_in_order,
)

PATIENCE = 16

#: (chunk, prompts, slots, blocks of the pool, the step at which each prompt arrives).
Workload = tuple[int, list["Prompt"], int, int, list[int]]


@dataclass
class Prompt:
    """A prompt with its output length, and where it is."""

    key: str
    prompt: int
    output: int
    block: int
    computed: int = 0
    produced: int = 0
    borders: list[int] = field(default_factory=list)

    @property
    def blocks(self) -> int:
        return -(-(self.prompt + self.output) // self.block)

    def candidate(self, held: int) -> Candidate:
        return Candidate(self.key, self.prompt, self.computed, self.blocks - held)


@dataclass
class Step:
    """What the policy saw and gave. `head` is the queue's first, `late` how often the step was put off."""

    partial: Candidate | None
    waiting: list[Candidate]
    slots: int
    blocks: int
    shares: Sequence[Share]
    late: int


def simulate(
    policy: PrefillPolicy, sequences: list[Prompt], slots: int, pool: int, arrivals: list[int]
) -> list[Step]:
    """Runs all to their ends as the scheduler does; sequence i is there from step `arrivals[i]` on."""
    coming = sorted(zip(arrivals, range(len(sequences)), strict=True))
    waiting: list[Prompt] = []
    running: list[Prompt] = []
    steps: list[Step] = []
    late, left = 0, len(sequences)
    bound = 20 * sum(s.prompt + s.output + PATIENCE for s in sequences) + max(arrivals, default=0)
    for time in range(bound):
        while coming and coming[0][0] <= time:
            waiting.append(sequences[coming.pop(0)[1]])
        if not left:
            return steps
        started = next((s for s in running if s.computed < s.prompt), None)
        decoding = [s for s in running if s.computed == s.prompt]
        partial = None if started is None else started.candidate(started.blocks)
        queue = [s.candidate(0) for s in waiting]
        free = slots - len(running), pool - sum(s.blocks for s in running)
        shares = policy.next_step(partial, iter(queue), *free, patience=PATIENCE - late if decoding else 0)
        steps.append(Step(partial, queue, *free, shares, late))
        late = late + 1 if waiting and not shares else 0
        by_key = {s.key: s for s in [*waiting, *running]}
        for share in shares:
            one = by_key[share.key]
            one.borders.append(share.tokens)
            one.computed += share.tokens
            one.produced += one.computed == one.prompt
            if one in waiting:
                waiting.remove(one)
                running.append(one)
        for one in [] if shares else decoding:
            one.produced += 1
        ended = [s for s in running if s.produced == s.output]
        running = [s for s in running if s not in ended]
        left -= len(ended)
    raise AssertionError(f"{left} sequences have not ended after {bound} steps")


@st.composite
def workloads(draw: st.DrawFn) -> Workload:
    """Every prompt with its output fits the pool alone."""
    chunk = draw(st.integers(3, 40))
    block = draw(st.sampled_from([4, 16]))
    near = st.builds(lambda k, d: max(1, k * chunk + d), st.integers(0, 3), st.integers(-2, 2))
    prompts = draw(st.lists(st.one_of(near, st.integers(1, 120)), min_size=1, max_size=12))
    sequences = [
        Prompt(f"s{at}", prompt, draw(st.integers(1, 12)), block) for at, prompt in enumerate(prompts)
    ]
    slots = draw(st.integers(1, 6))
    pool = max(s.blocks for s in sequences) + draw(st.integers(0, 30))
    arrivals = draw(st.lists(st.integers(0, 30), min_size=len(prompts), max_size=len(prompts)))
    return chunk, sequences, slots, pool, arrivals


def isolated_borders(prompt: int, chunk: int) -> list[int]:
    """Whole chunks and a remainder; a remainder of one takes a token from the chunk before it."""
    borders = [chunk] * (prompt // chunk)
    if prompt % chunk == 1 and borders:
        return [*borders[:-1], chunk - 1, 2]
    return [*borders, prompt % chunk] if prompt % chunk else borders


def packed_borders(prompt: int, width: int) -> list[int]:
    """Cuts at multiples of the width."""
    return [width] * (prompt // width) + ([prompt % width] if prompt % width else [])


@given(workloads())
def test_isolated_borders_depend_on_the_prompt_alone(workload: Workload) -> None:
    """Whatever else waits, whenever it came, and however much room there is; every prompt ends."""
    chunk, sequences, *rest = workload
    simulate(IsolatedPrefill(chunk), sequences, *rest)
    for one in sequences:
        assert one.borders == isolated_borders(one.prompt, chunk)


@given(workloads())
def test_packed_borders_depend_on_the_prompt_alone(workload: Workload) -> None:
    """As isolated ones, at multiples of the width."""
    width, sequences, *rest = workload
    simulate(PackedPrefill(width), sequences, *rest)
    for one in sequences:
        assert one.borders == packed_borders(one.prompt, width)


@given(st.integers(3, 40), st.integers(1, 400), st.integers(0, 400), st.booleans())
def test_a_prompt_that_starts_behind_whole_chunks_is_cut_as_ever(
    chunk: int, prompt: int, hit: int, packed: bool
) -> None:
    """What the prefix cache may give ends where a full chunk does, and moves no border behind it."""
    policy: PrefillPolicy = PackedPrefill(chunk) if packed else IsolatedPrefill(chunk)
    borders = packed_borders(prompt, chunk) if packed else isolated_borders(prompt, chunk)
    whole = policy.whole_chunks(prompt)
    assert borders[: whole // chunk] == [chunk] * (whole // chunk)
    assert chunk not in borders[whole // chunk :]
    computed = min(hit, prompt - 1) // chunk * chunk
    computed = min(computed, whole)
    left = []
    while computed < prompt:
        (share,) = policy.next_step(Candidate("a", prompt, computed, 1), iter(()), 1, 1)
        left.append(share.tokens)
        computed += share.tokens
    assert left == borders[len(borders) - len(left) :]


@given(st.integers(3, 100), st.integers(2, 2000))
def test_no_isolated_chunk_looks_like_decode(chunk: int, prompt: int) -> None:
    """One token is a chunk only of a prompt of one token; none is above the limit, and all add up."""
    policy, computed, chunks = IsolatedPrefill(chunk), 0, []
    while computed < prompt:
        chunks.append(policy.chunk_of(prompt - computed))
        computed += chunks[-1]
    assert computed == prompt
    assert 1 < min(chunks) <= max(chunks) <= chunk


@given(workloads())
def test_isolated_steps_hold_one_prompt_and_nobody_is_overtaken(workload: Workload) -> None:
    """The started prompt goes on; else the head starts if it fits, and nobody does if it does not."""
    chunk, *rest = workload
    for step in simulate(IsolatedPrefill(chunk), *rest):
        if step.partial is not None:
            assert [share.key for share in step.shares] == [step.partial.key]
        elif step.waiting and step.slots and step.waiting[0].blocks <= step.blocks:
            assert [share.key for share in step.shares] == [step.waiting[0].key]
        else:
            assert step.shares == []


@given(workloads())
def test_packed_steps_never_exceed_the_width(workload: Workload) -> None:
    """What is left of the width is padding; nobody is in a step twice or with nothing."""
    width, *rest = workload
    for step in simulate(PackedPrefill(width), *rest):
        assert 0 <= sum(share.tokens for share in step.shares) <= width
        assert all(share.tokens > 0 for share in step.shares)
        assert len({share.key for share in step.shares}) == len(step.shares)


@given(workloads(), st.booleans())
def test_admission_never_exceeds_slots_and_blocks(workload: Workload, packed: bool) -> None:
    """A prompt starts only when its whole sequence fits beside all that started ones will need."""
    chunk, *rest = workload
    for step in simulate(PackedPrefill(chunk) if packed else IsolatedPrefill(chunk), *rest):
        blocks = {candidate.key: candidate.blocks for candidate in step.waiting}
        new = [share.key for share in step.shares if share.key in blocks]
        assert len(new) <= max(step.slots, 0)
        assert sum(blocks[key] for key in new) <= step.blocks or not new


@given(
    st.lists(st.tuples(st.integers(1, 20), st.integers(0, 9)), max_size=12),
    st.integers(0, 6),
    st.integers(0, 20),
)
def test_a_packed_step_stays_within_tight_room(needs: list[tuple[int, int]], slots: int, blocks: int) -> None:
    """Of what shares one step, each counts against the room of the others."""
    waiting = [Candidate(str(at), prompt, 0, need) for at, (prompt, need) in enumerate(needs)]
    taken = [int(share.key) for share in PackedPrefill(64).next_step(None, waiting, slots, blocks)]
    assert len(taken) <= slots
    assert sum(needs[at][1] for at in taken) <= blocks


@given(workloads())
def test_a_packed_head_that_fits_is_taken(workload: Workload) -> None:
    """Beside a started prompt's end or after it; a step that waits to be fuller waits a bounded time."""
    width, *rest = workload
    for step in simulate(PackedPrefill(width), *rest):
        assert step.late <= PATIENCE
        if not step.waiting or not step.slots or step.waiting[0].blocks > step.blocks:
            continue
        head = step.waiting[0]
        room = width - (0 if step.partial is None else min(step.partial.remaining, width))
        if min(head.remaining, width) <= room:
            assert not step.shares or head.key in {share.key for share in step.shares}
            assert step.shares or step.late < PATIENCE


@given(st.integers(3, 40), st.lists(st.integers(1, 100), min_size=1, max_size=20), st.integers(0, 100))
def test_a_packed_step_is_not_put_off_when_all_find_room(
    width: int, prompts: list[int], patience: int
) -> None:
    """Waiting for a fuller step is for queues that wait for slots or blocks anyway."""
    waiting = [Candidate(f"s{at}", prompt, 0, 1) for at, prompt in enumerate(prompts)]
    shares = PackedPrefill(width).next_step(None, waiting, len(prompts), len(prompts), patience)
    assert shares[0].key == "s0"


def test_a_packed_step_takes_the_first_that_fit_beyond_one_that_does_not() -> None:
    """Little is padding: 40 and 24 share a step of 64 although 50 came between; 50 is first in the next."""
    waiting = [Candidate(f"s{prompt}", prompt, 0, 1) for prompt in (40, 50, 24)]
    assert PackedPrefill(64).next_step(None, waiting, 8, 8) == [Share("s40", 40), Share("s24", 24)]
    assert PackedPrefill(64).next_step(None, [waiting[1]], 8, 8) == [Share("s50", 50)]


def test_a_packed_step_is_put_off_only_while_decode_has_patience() -> None:
    """Ten of 64 tokens, and a queue for slots: later, unless the patience is over."""
    waiting = [Candidate("a", 10, 0, 1), Candidate("b", 10, 0, 1)]
    assert PackedPrefill(64).next_step(None, waiting, 1, 8, patience=1) == []
    assert PackedPrefill(64).next_step(None, waiting, 1, 8, patience=0) == [Share("a", 10)]
    full = [Candidate("a", 60, 0, 1), Candidate("b", 10, 0, 1)]
    assert PackedPrefill(64).next_step(None, full, 1, 8, patience=1) == [Share("a", 60)]


@settings(max_examples=200)
@given(st.lists(st.integers(0, 20), max_size=20), st.integers(0, 10), st.integers(0, 60))
def test_admission_in_order_is_a_prefix(needs: list[int], slots: int, blocks: int) -> None:
    """The longest prefix of the queue that fits; the first that does not fit ends it."""
    queue = [Candidate(str(at), 1, 0, need) for at, need in enumerate(needs)]
    taken = list(admit_in_order(iter(queue), slots, blocks))
    assert taken == queue[: len(taken)]
    assert len(taken) <= slots
    assert sum(one.blocks for one in taken) <= blocks
    if len(taken) < min(len(queue), slots):
        assert sum(one.blocks for one in queue[: len(taken) + 1]) > blocks
