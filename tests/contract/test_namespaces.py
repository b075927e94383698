"""Settings of a namespace: its own policy, library, and review share."""

import shutil
from dataclasses import replace

import pytest

from court.events import ReviewOutcome, VerdictReviewed
from court.policy import DEFAULT_POLICY
from court.verdict import Label
from memecourt.v1.court_pb2 import Content, JudgeRequest
from retrieval.library.writer import LibraryWriter
from retrieval.open import open_writer
from serving.docket.review.corrections import Corrections, Overrulings, name_of
from serving.docket.review.projection import ReviewPriority, Rules
from serving.settings import Settings
from serving.wiring import forget_in_library, open_court, rules_of
from tests.support.desks import opened_desk, verdict
from tests.support.dockets import NOON, parse_place
from tests.support.fakes import H, findings
from tests.support.libraries import drawn_library
from tests.support.real_court import IMAGE, real_court
from tests.support.reception import ASK, Finder, other, town

__all__ = ["town"]

OWN = DEFAULT_POLICY.model_copy(update={"version": "shop"})


async def test_a_namespace_has_its_own_policy_library_and_reused_verdicts(town):
    async with town.server() as reception:
        executor = reception.executor
        library = town.finder.library.model_copy(update={"digest": "sha256:own"})
        finder = Finder(findings([H] * 5).model_copy(update={"library": library}), library)
        own = replace(executor.court, policy=OWN, finder=finder)
        object.__setattr__(executor, "courts", {"shop": own})
        common, shop = await reception.answer(ASK), await reception.answer(other(namespace="shop"))
        again = await reception.answer(other(namespace="shop", request_id="r3"))
        common = common.record
        shop = shop.record
        own_searches = len(finder.asked)
        searches = len(town.finder.asked)
    assert (common.opened.policy.version, shop.opened.policy.version) == (DEFAULT_POLICY.version, "shop")
    assert common.opened.versions.library != shop.opened.versions.library
    assert again.reused and again.record.trial_id == shop.trial_id
    assert (own_searches, searches) == (1, 1)


async def test_namespaces_with_different_policies_never_share_verdicts(town):
    town.settings = Settings(home=town.home, reuse="everywhere")
    async with town.server() as reception:
        own = replace(reception.executor.court, policy=OWN)
        object.__setattr__(reception.executor, "courts", {"shop": own})
        answers = [await reception.answer(ASK)]
        for number, namespace in enumerate(("shop", "forum", "shop")):
            answers.append(await reception.answer(other(namespace=namespace, request_id=f"q{number}")))
        first, shop, forum, shop_again = answers
    assert not first.reused and not shop.reused
    assert forum.record.trial_id == first.record.trial_id and shop_again.record.trial_id == shop.record.trial_id


async def test_the_random_review_share_is_the_namespace_s(docket_place):
    settings = Settings(review_share=0.0, namespaces={"shop": {"review_share": 1.0}, "forum": {}})
    assert rules_of(settings) == Rules(sure=0.6, sampled=0.0, sampled_in={"shop": 1.0})
    async with opened_desk(parse_place(docket_place), rules_of(settings)) as it:
        for namespace in ("shop", "forum", ""):
            await it.tried(f"in {namespace}", verdict(Label.HARMFUL), namespace=namespace)
        (case,) = await it.desk.queue("ada", limit=10)
    assert case.namespace == "shop" and case.reasons == (
        (ReviewPriority.SAMPLED, "Drawn by chance: 100.0% of all verdicts are."),
    )


async def test_an_overruled_verdict_changes_only_its_namespace_s_library(tmp_path):
    common, own = tmp_path / "common", tmp_path / "own"
    for number, place in enumerate((common, own)):
        drawn_library(place, number, 20)
    places = {"": common, "shop": own}
    settings = Settings(library=common, namespaces={"shop": {"library": own}})

    def has(place, trial_id):
        with open_writer(place) as writer:
            return writer.meme(name_of(trial_id)) is not None

    async with real_court(tmp_path) as it:
        rulings = Corrections(
            lambda: open_writer(common),
            lambda: it.finder.encoder,
            it.docket.trials,
            Overrulings.ALWAYS,
            own={"shop": lambda: open_writer(own)},
        )
        found = {}
        for namespace in places:
            request = JudgeRequest(image=IMAGE, text="a tame text", content=Content(namespace=namespace))
            answer = await it.judge.Judge(request, timeout=120)
            record = await it.docket.trials.record(answer.verdict_id)
            label = Label.NOT_HARMFUL if record.verdict.label is Label.HARMFUL else Label.HARMFUL
            review = await it.docket.reviews.review(
                record.trial_id,
                outcome=ReviewOutcome.OVERRULED,
                label=label,
                reason="r",
                clause="",
                reviewer="ada",
                at=NOON,
            )
            assert isinstance(review, VerdictReviewed)
            await rulings.follow(await it.docket.trials.record(record.trial_id), review, chosen=False)
            assert (await rulings.of(record.trial_id)).label is label
            found[namespace] = record.trial_id
        stored_in = {name: {key: has(place, found[name]) for key, place in places.items()} for name in found}
        await rulings.take_back(found["shop"], who="ada", why="after all")
        assert not has(own, found["shop"])
        gone = await forget_in_library(settings, name_of(found["shop"]), who="ada", why="erased")
    assert stored_in == {"": {"": True, "shop": False}, "shop": {"": False, "shop": True}}
    # The withdrawn precedent was still in the history, and its change could be revoked.
    assert gone


@pytest.mark.slow
async def test_a_court_opens_with_the_libraries_and_policies_of_namespaces(starter_home):
    from serving.judging.request import TrialRequest

    policy = starter_home / "policy.toml"
    policy.write_text(
        'id = "shop"\nversion = "1"\npreamble = "Own words."\ntargets = ["individual"]\n'
        '[[clauses]]\nnumber = "1"\ncategory = "c"\ntext = "t"\n'
    )

    (starter,) = (starter_home / "libraries").iterdir()
    own = shutil.copytree(starter, starter_home / "own")
    writer = LibraryWriter.open(own)
    writer.remove(next(iter(writer.library.ids())), who="ada", why="so that it differs")
    settings = Settings(home=starter_home, reader="none", namespaces={"shop": {"policy": policy, "library": own}})
    async with open_court(settings, read_text=False) as executor:
        records = {}
        for namespace in ("", "shop"):
            ask = TrialRequest(image=b"", text="people from Blueland are late", namespace=namespace)
            records[namespace] = (await executor.run(ask)).record
    assert records["shop"].opened.policy.id == "shop" != records[""].opened.policy.id
    assert records["shop"].opened.versions.library != records[""].opened.versions.library
