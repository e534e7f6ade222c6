"""The experiments on one engine: the paper's Figures 8 to 13 for one mode.

Each gives rows for the result's JSON. Rows of one experiment have the same fields in every mode, so that
tables and plots set modes side by side.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from corun_pd.bench import figures
from corun_pd.bench.bits import check_company
from corun_pd.bench.records import Run
from corun_pd.bench.station import Station
from corun_pd.bench.workloads import Workload, mixed_requests
from corun_pd.engine.base import EngineInfo

__all__ = ["EXPERIMENTS", "TOTAL", "Experiment", "Plan", "Row"]

Row = dict[str, object]

#: The workload of the row that aggregates all.
TOTAL: Final = "total"

#: Steps in which `decode-step` has all rows decode.
STEPS: Final = 48


@dataclass(frozen=True, slots=True)
class Plan:
    """What the experiments run. `workloads` are those of `throughput`; the others take one of their own.

    `rates_per_s` are request rates of `latency`, which also runs a closed loop; `in_flight` are those of
    `concurrency`; `kv_tokens` are lengths at which `decode-step` compares steps. `bits` requests are
    compared by `ablation`.
    """

    workloads: Sequence[Workload]
    loop: Workload
    ragged: Workload
    rates_per_s: Sequence[float] = ()
    in_flight: Sequence[int] = (1, 16, 64, 256)
    kv_tokens: Sequence[int] = (1024,)
    repeats: int = 1
    bits: int = 128


Experiment = Callable[[Station, Plan], Iterator[Row]]


def throughput(station: Station, plan: Plan) -> Iterator[Row]:
    """Output tokens a second of each workload, and the time-weighted aggregate (Fig. 8)."""
    weights = []
    for workload in plan.workloads:
        runs = [station.offline(workload, repeat) for repeat in range(plan.repeats)]
        run = sorted(runs, key=lambda one: one.tokens_per_s)[len(runs) // 2]
        weights.append((run.tokens_per_s, run.wall_s))
        yield _row(station, workload, run) | {"repeats": plan.repeats}
    rate, wall_s = figures.aggregate(weights), sum(seconds for _, seconds in weights)
    yield {"workload": TOTAL, "output_tokens_per_s": rate, "wall_s": wall_s}


def timeline(station: Station, plan: Plan) -> Iterator[Row]:
    """Prefill and decode tokens a second over the time of a closed loop of N requests (Fig. 9)."""
    run = station.closed_loop(plan.loop, station.info.slots)
    prompts = [prompt for prompt, _ in plan.loop.lengths]
    yield {"workload": plan.loop.name, "wall_s": run.wall_s} | figures.timeline(run, prompts)


def latency(station: Station, plan: Plan) -> Iterator[Row]:
    """TTFT and TPOT of a closed loop of N requests, and at request rates (Fig. 10)."""
    for rate in (None, *plan.rates_per_s):
        if rate is None:
            run = station.closed_loop(plan.loop, station.info.slots)
        else:
            run = station.at_rate(plan.loop, rate)
        yield _row(station, plan.loop, run) | {"requests_per_s": rate}


def concurrency(station: Station, plan: Plan) -> Iterator[Row]:
    """Throughput against the requests in flight, N unchanged (Fig. 11)."""
    for count in plan.in_flight:
        lengths = plan.loop.lengths
        some = Workload(plan.loop.name, lengths[: max(4, min(2 * count, len(lengths)))])
        yield _row(station, some, station.closed_loop(some, count)) | {"in_flight": count}


def padding(station: Station, plan: Plan) -> Iterator[Row]:
    """Padded rows of each workload, and a request alone on N rows: the worst case (Fig. 12)."""
    for workload in plan.workloads:
        yield _row(station, workload, station.offline(workload))
    alone = Workload("one request, 64/128", ((64, 128),) * 2)
    yield _row(station, alone, station.closed_loop(alone, 1))


def decode_step(station: Station, plan: Plan) -> Iterator[Row]:
    """A decode step of N rows: KV caches of one length, and of lengths that differ by much.

    Each row's KV cache grows from its prompt's length while the others are prefilled and decode.
    """
    info, longest = station.info, 4 * max(plan.kv_tokens)
    uneven = _ragged(info.slots, min(longest, info.max_model_tokens))
    uneven = _ragged(info.slots, min(longest, info.max_model_tokens - _output(uneven, info)))
    mean = sum(uneven) // info.slots
    shapes = {f"{kv} KV tokens a row": (kv,) * info.slots for kv in plan.kv_tokens}
    shapes[f"{uneven[0]} to {uneven[-1]} KV tokens a row, mean {mean}"] = uneven
    for name, prompts in shapes.items():
        output = _output(prompts, info)
        workload = Workload(name, tuple((prompt, output) for prompt in prompts))
        yield _row(station, workload, station.offline(workload))


def ablation(station: Station, plan: Plan) -> Iterator[Row]:
    """Throughput on prompts of one length and of many, and what stays equal in other company (Fig. 13)."""
    rows = [
        _row(station, workload, station.offline(workload))
        for workload in dict.fromkeys((plan.loop, plan.ragged))
    ]
    info = station.info
    longest = min(4 * info.prefill_tokens, info.max_model_tokens - 32)
    sizes = (info.prefill_tokens, info.block_tokens, info.vocabulary, longest, 32)
    requests, others = mixed_requests(plan.bits, *sizes), mixed_requests(plan.bits, *sizes, seed=11)
    found, _ = check_company(station.engine, requests, others, alone=8)
    same: Row = {}
    for one in found:
        same |= {
            f"{one.run}_requests": one.requests,
            f"{one.run}_same_tokens": one.same_tokens,
            f"{one.run}_same_bits": one.same_bits,
        }
    station.say(f"{station.mode.name}: equal bits " + ", ".join(f"{o.run} {o.same_bits}" for o in found))
    for row in rows:
        yield row | same


def _ragged(slots: int, longest: int) -> tuple[int, ...]:
    """Lengths from 16 tokens to `longest`, evenly in their logarithms."""
    ratio = longest / 16
    return tuple(round(16 * ratio ** (at / max(1, slots - 1))) for at in range(slots))


def _output(prompts: Sequence[int], info: EngineInfo) -> int:
    """Output tokens such that no row ends while others are prefilled, beside decode rows at that.

    vLLM's own scheduling decodes in every prefill step and has less than all of a step for prompts.
    """
    room = max(1, info.prefill_tokens - info.slots)
    return STEPS + -(-sum(prompts) // room)


def _row(station: Station, workload: Workload, run: Run) -> Row:
    """Everything that a run says, in the fields of every experiment."""
    steps = figures.decode_steps(run)
    return {
        "workload": workload.name,
        **figures.rates(run, sum(prompt for prompt, _ in workload.lengths)),
        **figures.latencies(run),
        **figures.padding(run, station.info.slots, is_fixed=station.is_fixed),
        "decode_step_s": steps.step_s if steps else None,
        "decode_step_rows": steps.rows if steps else None,
        "decode_step_samples": steps.count if steps else 0,
    }


#: By the name of the command.
EXPERIMENTS: Final[dict[str, Experiment]] = {
    "throughput": throughput,
    "timeline": timeline,
    "latency": latency,
    "concurrency": concurrency,
    "padding": padding,
    "decode-step": decode_step,
    "ablation": ablation,
}
