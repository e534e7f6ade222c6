"""What is asked of Ray for an instance, without Ray."""

import pytest

from corun_pd.cluster.placement import bundles
from corun_pd.config import ClusterConfig


def asked_for(engine: dict[str, object], *, gpus: bool, **instance: object) -> list[dict[str, float]]:
    """The bundles of one colocated instance, or of as many as it counts."""
    config = ClusterConfig.model_validate(
        {"model": "m", "engine": engine, "instances": [{"role": "colocated", **instance}]}
    )
    return [dict(bundle) for bundle in bundles(config, gpus=gpus)]


@pytest.mark.parametrize(
    ("engine", "gpus", "instance", "bundle"),
    [
        ({"tensor_parallel_size": 4}, True, {}, {"CPU": 1, "GPU": 4}),
        ({}, True, {"cores": [0, 1, 2]}, {"CPU": 3, "GPU": 1}),
        ({"cpu_threads": 3, "tensor_parallel_size": 2}, False, {}, {"CPU": 6}),
        ({"cpu_threads": 3}, False, {"cores": [4, 5, 6, 7]}, {"CPU": 4}),
        ({"kind": "fake"}, True, {}, {"CPU": 1}),
        ({}, True, {"resources": {"GPU": 0.5, "fast": 1}}, {"GPU": 0.5, "fast": 1}),
    ],
)
def test_bundle_of_an_instance(
    engine: dict[str, object], gpus: bool, instance: dict[str, object], bundle: dict[str, float]
) -> None:
    """A GPU a rank where engines run on CUDA; else CPUs by cores or threads; the file's word is final."""
    assert asked_for(engine, gpus=gpus, **instance) == [bundle]


def test_every_instance_has_a_bundle() -> None:
    """`count` of a kind are as many bundles."""
    assert asked_for({"kind": "fake"}, gpus=False, count=3) == [{"CPU": 1}] * 3
