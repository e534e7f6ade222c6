"""Rollouts for reinforcement learning: groups of samples of one prompt, and the logprobs they came with.

    corun-pd up --config examples/demo.yaml     # prints the router's address
    python examples/rollout.py --router 127.0.0.1:50051

Each sample is a line of a job, so it is there as soon as it is drawn, and the lines of a group share the
computation of their prompt. Given --seed again, the rollouts are the same to the last bit of their logprobs,
whatever the cluster is made of by then: a policy's update can be run again.
"""

import argparse
import asyncio
import statistics
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from corun_pd.batch import run_job
from corun_pd.client import AsyncClient, Choice

PROMPTS = ("2 + 2 =", "The capital of France is", "Once upon a time,")


@dataclass(frozen=True)
class Group:
    """The samples of one prompt, in the order of their seeds, and the advantage of each over the group."""

    prompt: str
    samples: tuple[Choice, ...]

    @property
    def advantages(self) -> list[float]:
        """Reward less the group's mean, by its deviation: what GRPO weighs a sample's logprobs with."""
        rewards = [reward(sample) for sample in self.samples]
        spread = statistics.pstdev(rewards) or 1.0
        return [(one - statistics.fmean(rewards)) / spread for one in rewards]


def reward(sample: Choice) -> float:
    """A stand-in for a verifier: the share of tokens that do not repeat one."""
    return len(set(sample.token_ids)) / len(sample.token_ids)


def lines(prompts: Sequence[str], size: int, model: str, max_tokens: int) -> Iterator[dict[str, Any]]:
    """`size` lines a prompt, one after the other; their seeds are made of the job's and of these names."""
    body = {
        "model": model,
        "max_tokens": max_tokens,
        "temperature": 1.0,
        "top_p": 1.0,
        "top_k": 0,
        "logprobs": 0,
    }
    for number, prompt in enumerate(prompts):
        for sample in range(size):
            yield {
                "custom_id": f"{number}/{sample}",
                "method": "POST",
                "url": "/v1/completions",
                "body": {**body, "prompt": prompt},
            }


async def rollouts(
    client: AsyncClient, prompts: Sequence[str], *, size: int, seed: int, max_tokens: int = 32
) -> AsyncIterator[Group]:
    """Groups, each as soon as its last sample is there. Raises the error of a sample that failed."""
    fleet = await client.describe()
    model = fleet.members[0].instance.model
    found: dict[int, dict[int, Choice]] = {}
    async with aclosing(run_job(lines(prompts, size, model, max_tokens), client, seed=seed)) as answers:
        async for answer in answers:
            if answer.result is None:
                raise answer.error or RuntimeError(f"line {answer.custom_id} has neither answer nor error")
            number, sample = divmod(answer.index, size)
            group = found.setdefault(number, {})
            group[sample] = answer.result.choices[0]
            if len(group) == size:
                del found[number]
                yield Group(prompts[number], tuple(group[at] for at in range(size)))


async def main() -> None:
    """Prints each group's advantages and the mean logprob of its samples."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--router", default="127.0.0.1:50051")
    parser.add_argument("--size", type=int, default=8, help="samples a prompt")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    async with AsyncClient(options.router) as client:
        async for group in rollouts(client, PROMPTS, size=options.size, seed=options.seed):
            print(group.prompt)
            for sample, advantage in zip(group.samples, group.advantages, strict=True):
                logprobs = [entry.sampled for entry in sample.logprobs or ()]
                print(f"  {advantage:+.2f}  {statistics.fmean(logprobs):.3f}  {sample.text!r:.60}")


if __name__ == "__main__":
    asyncio.run(main())
