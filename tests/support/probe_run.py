"""Helpers of tests of probe run."""

import dataclasses

import pytest

from eval.datasets.known import find_card
from eval.models.samples import one_set
from eval.probe.refining import Limits
from eval.probe.run import ProbePlan, probe
from tests.support.fakes import FakeReader
from tests.support.probing import ProbeWorld, with_scripted_models, write_data_set


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_data_set(tmp_path_factory.mktemp("data"))


def a_plan(out, data, **changes):
    plan = ProbePlan(
        out=out,
        samples=one_set(find_card("fhm"), data, "dev_seen", limit=None),
        target="target",
        controllers=("c0",),
        limits=Limits(steps=3, seeds=1),
        batch=3,
        command="memecourt-eval probe",
    )
    return dataclasses.replace(plan, **changes)


def probed(plan, world=None, *, reader=None, **options):
    """Runs a probe, and returns the folder and the number of calls actually made."""
    world = world or ProbeWorld()

    async def scene(_, opened):
        return await probe(plan, opened, reader or FakeReader())

    plan.out.mkdir(exist_ok=True)
    return with_scripted_models(plan.out, world, scene, **options)
