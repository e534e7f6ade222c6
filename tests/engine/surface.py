"""Requests drawn over everything that can be asked for, and the oracle that they go through.

The oracle: colocated in a crowd, colocated alone, apart (whole and streamed), and by batch file give one
answer, or one refusal.
"""

import asyncio
import json
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from hypothesis import strategies as st

from corun_pd.batch import run_job
from corun_pd.bench.compare import first_difference
from corun_pd.client import AsyncClient, GenerationRequest, GenerationResult, Prompt, Route, build_request
from corun_pd.errors import CorunError
from tests.engine.lines import as_line, in_answer, in_file
from tests.engine.workload import EDGES, EOS, VOCABULARY, make_prompt

SCHEMA: Final = {
    "type": "object",
    "properties": {"a": {"type": "integer"}, "b": {"enum": ["x", "yy"]}},
    "required": ["a", "b"],
    "additionalProperties": False,
}
TEXTS: Final = ("The river ran", "I see", "e", "河 and ñ 😀", "a a a a a a a a a a", "{")


@dataclass(frozen=True)
class Drawn:
    """A request as it is written: its `repr` is what a test of its own needs."""

    prompt: Prompt
    options: dict[str, Any]

    def with_seed(self, seed: int) -> "Drawn":
        """The same with that seed."""
        return Drawn(self.prompt, {**self.options, "seed": seed})

    @property
    def request(self) -> GenerationRequest:
        return build_request(self.prompt, self.options)  # type: ignore[arg-type]


tokens = st.integers(0, VOCABULARY - 1)
penalties = st.sampled_from((-2.0, -0.5, 0.0, 0.3, 1.0, 2.0))
counts = st.sampled_from((0, 1, 5, 20))

#: Each option with values where a difference would show.
OPTIONS: Final[dict[str, st.SearchStrategy[Any]]] = {
    "temperature": st.sampled_from((0.0, 0.005, 0.3, 1.0, 1.5, 2.0)),
    "top_p": st.sampled_from((1e-6, 0.05, 0.5, 0.9, 0.999, 1.0)),
    "top_k": st.sampled_from((-1, 0, 1, 2, 40, VOCABULARY - 1, VOCABULARY, 10**6)),
    "min_p": st.sampled_from((0.0, 0.01, 0.2, 1.0)),
    "presence_penalty": penalties,
    "frequency_penalty": penalties,
    "repetition_penalty": st.sampled_from((0.5, 1.0, 1.1, 1.8)),
    "logit_bias": st.dictionaries(tokens, st.sampled_from((-100.0, -3.0, 0.5, 6.0, 100.0)), max_size=4),
    "allowed_token_ids": st.lists(tokens, min_size=1, max_size=6)
    | st.just(list(range(100, 300)))
    | st.just([EOS, 5]),
    "bad_words": st.lists(st.sampled_from(("e", "the", "r", "河", "zz", " a")), max_size=3),
    "structured_output": st.sampled_from(
        (
            {"regex": "[a-c]{2,6}z?"},
            {"regex": "(😀|河|é)+"},
            {"choices": ["alpha", "alphabet", "b", "gamma ray"]},
            {"json_schema": SCHEMA},
            {"json_schema": {"type": "object"}},
            {"grammar": 'root ::= "x" [0-9]* root | "!"'},
        )
    ),
    "max_tokens": st.integers(1, 14),
    "min_tokens": st.integers(1, 14),
    "stop": st.lists(st.sampled_from(("e", " th", "zz", "!", "河", "\n", "\ufffd")), min_size=1, max_size=3),
    "include_stop": st.booleans(),
    "stop_token_ids": st.just(list(range(1, VOCABULARY, 7))) | st.lists(tokens, min_size=1, max_size=5),
    "ignore_eos": st.booleans(),
    "eos_bias": st.sampled_from((4.0, 9.0, 100.0)),
    "logprobs": counts,
    "prompt_logprobs": counts,
    "n": st.integers(2, 3),
    "echo": st.just(True),
}


lengths = st.sampled_from(EDGES) | st.integers(1, 70)
prompts = st.sampled_from(TEXTS) | st.builds(make_prompt, lengths, st.integers(0, 9999))
seeds = st.integers(0, 2**63 - 4)


@st.composite
def requests(draw: st.DrawFn) -> Drawn:
    """A request with two to ten options, six as a rule, so that each meets every other."""
    prompt: Prompt = draw(prompts)
    names = draw(st.sets(st.sampled_from(sorted(OPTIONS)), min_size=2, max_size=10))
    if {"structured_output", "allowed_token_ids"} <= names and draw(st.integers(0, 9)):
        names.remove("allowed_token_ids")  # Together they leave no token most of the time.
    options = {name: draw(OPTIONS[name]) for name in sorted(names)}
    if "eos_bias" in options:
        options["logit_bias"] = {**options.get("logit_bias", {}), EOS: options.pop("eos_bias")}
    options.setdefault("max_tokens", 8)
    options["min_tokens"] = min(options.get("min_tokens", 0), options["max_tokens"])
    if "echo" in options and "logprobs" in options:  # what a batch line asks for then, by itself
        options["prompt_logprobs"] = max(options["logprobs"], options.get("prompt_logprobs", 0))
    if options.get("temperature") == 0.0:
        options.pop("n", None)
    if draw(st.integers(0, 7)):
        options["seed"] = draw(seeds)
    return Drawn(prompt, options)


def request_sets(size: int) -> st.SearchStrategy[list[Drawn]]:
    """Requests that run beside each other, no two of them alike."""
    return st.lists(requests(), min_size=size, max_size=size, unique_by=repr)


Outcome = GenerationResult | CorunError


async def ask(client: AsyncClient, drawn: Drawn, route: Route, stream: bool = False) -> Outcome:
    """The answer or the refusal."""
    try:
        if not stream:
            return await client.generate(drawn.prompt, route=route, **drawn.options)
        async with client.stream(drawn.prompt, route=route, **drawn.options) as deltas:
            async for _ in deltas:
                pass
            return deltas.result
    except CorunError as error:
        return error


async def one_answer(
    client: AsyncClient, drawn: Sequence[Drawn], model: str, folder: Path
) -> tuple[list[Outcome], list[str]]:
    """The outcomes colocated in a crowd, and every difference between them and those of the other ways."""
    crowd = await asyncio.gather(*(ask(client, one, Route.COLOCATED) for one in drawn))
    drawn = list(drawn)
    for at, (one, outcome) in enumerate(zip(drawn, crowd, strict=True)):
        if "seed" in one.options:
            continue
        if isinstance(outcome, GenerationResult):
            drawn[at] = one.with_seed(outcome.seed)
        else:  # What was drawn may have been why, and a refusal does not tell its seed.
            drawn[at] = one.with_seed(at)
            crowd[at] = await ask(client, drawn[at], Route.COLOCATED)
    backwards = reversed(list(enumerate(drawn)))
    apart = await asyncio.gather(
        *(ask(client, one, Route.DISAGGREGATED, stream=at % 2 == 0) for at, one in backwards)
    )
    alone = [await ask(client, one, Route.COLOCATED, stream=at % 3 == 0) for at, one in enumerate(drawn)]
    found = differences("apart", drawn, crowd, apart[::-1]) + differences("alone", drawn, crowd, alone)
    return crowd, found + await file_differences(client, drawn, crowd, model, folder)


def differences(
    name: str, drawn: Sequence[Drawn], expected: Sequence[Outcome], found: Sequence[Outcome]
) -> list[str]:
    """What differs, each with its request."""
    rows = []
    for at, (one, a, b) in enumerate(zip(drawn, expected, found, strict=True)):
        if isinstance(a, GenerationResult) and isinstance(b, GenerationResult):
            difference = first_difference(at, a, b)
            if difference is not None:
                rows.append(f"{name}: {difference}: {one!r}")
        elif str(a) != str(b) or type(a) is not type(b):
            rows.append(f"{name}: request {at}: {b!s:.200} != {a!s:.200}: {one!r}")
    return rows


async def file_differences(
    client: AsyncClient, drawn: Sequence[Drawn], expected: Sequence[Outcome], model: str, folder: Path
) -> list[str]:
    """The same against the answers' lines of a batch file."""
    path = folder / "in.jsonl"
    lines = [as_line(at, one.request, model) for at, one in enumerate(drawn)]
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    async with aclosing(run_job(path, client, concurrency=len(drawn))) as answers:
        found = {answer.index: json.loads(answer.data) async for answer in answers}
    rows = []
    for at, (one, outcome) in enumerate(zip(drawn, expected, strict=True)):
        body = found[at]["response"]["body"]
        if isinstance(outcome, CorunError):
            if body.get("error", {}).get("code") != outcome.reason.lower():
                rows.append(f"file: request {at}: {body!s:.200} != {outcome}: {one!r}")
        elif "error" in body or in_file(body) != in_answer(one.request, outcome):
            rows.append(f"file: request {at}: {body!s:.400} != {outcome!s:.400}: {one!r}")
    return rows
