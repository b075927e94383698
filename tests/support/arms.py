"""Helpers of tests of arms."""

from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from court.backends.chat.scripted import ScriptedModel
from court.events import Procedure
from court.ports import ChatModel
from court.roles import RoleModel, RoleModels
from eval.datasets.items import Protocol
from eval.datasets.known import find_card
from eval.runs.plan import Plan
from eval.studies.arms import Study, arms_named
from eval.synthetic.make import Layout, make
from serving.settings import ModelSettings, Settings
from tests.support.encoders import WordEncoder
from tests.support.oracles import oracle

DATASET = find_card("synthetic-harmeme")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(tmp_path_factory.mktemp("synthetic") / "data", Layout.HARMEME, train=24, val=8, test=8, seed=1).root


def play_all_roles(monkeypatch: pytest.MonkeyPatch, played: ChatModel) -> None:
    """Has a scripted model play all roles in every court, and memes embedded cheaply."""

    async def bench(settings: Settings, stack: AsyncExitStack, tell: object, **_: object) -> RoleModels | None:
        if settings.llm.url is None:
            return None
        role_model = RoleModel(played, temperature=settings.llm.of_role("judge").temperature or 0.0)
        return RoleModels(role_model, role_model, role_model, role_model)

    monkeypatch.setattr("serving.wiring.connect_models", bench)
    monkeypatch.setattr("retrieval.embed.builtin.BuiltinEncoder", WordEncoder)


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> ScriptedModel:
    """A scripted model for all roles in every court."""
    played = oracle()
    play_all_roles(monkeypatch, played)
    return played


def settings(home: Path, **trial: object) -> Settings:
    return Settings(
        home=home, llm=ModelSettings(url=("http://nowhere/v1",), model="oracle"), trial=trial, picture_workers=1
    )


def study(root: Path, data: Path, *names: str, **changes: object) -> Study:
    arms = changes.pop("arms", None) or arms_named(names, (), Procedure.FULL)
    values = {
        "out": root / "study",
        "dataset": DATASET,
        "data": data,
        "split": "test",
        "procedure": Procedure.FULL,
        "protocols": (Protocol.MERGED,),
        "settings": settings(root / "home"),
        "concurrency": 4,
        **changes,
    }
    return Study("ablate", Plan(**values), arms)
