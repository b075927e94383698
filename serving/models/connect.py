"""Connects the chat models of a full trial to the servers that the settings name, and probes each once."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Collection
from contextlib import AsyncExitStack
from functools import partial
from typing import TYPE_CHECKING

from court.errors import BadRequest, ModelRefused, NotLoaded, Unavailable
from court.guard import GuardAdapter
from court.meme import LIMITS
from court.roles import GuardModel, RoleModel, RoleModels
from court.settings import TrialSettings
from serving.settings import GuardSettings, RoleName, RoleSettings, Settings

if TYPE_CHECKING:
    import httpx2

    from court.backends.chat.capabilities import Probed
    from court.backends.chat.client import ChatCompletions
    from court.backends.http import Load

_SEES = ("proposer", "judge")
_GUARD_S = 10.0
"""For a guard's server to list its models at start, in seconds."""
_AGAIN_S = 1.0
"""Between two tries to reach a model server that is waited for, in seconds."""
_LOG_EVERY = 30
"""Of those tries one is told of, so that who reads the log sees what is waited for, and not only that."""


def pictures_per_prompt(trial: TrialSettings) -> int:
    """Returns the largest number of pictures that one prompt of a trial shows: frames of the meme, and exhibits."""
    return LIMITS.representative_frames + trial.exhibits


async def connect_models(
    settings: Settings,
    stack: AsyncExitStack,
    tell: Callable[[str], None],
    *,
    patient: bool = False,
    may_be_blind: Collection[RoleName] = (),
) -> RoleModels | None:
    """Connects to the model servers; None where the settings name none.

    Args:
        settings: Which servers and models.
        stack: Closes the connections when it is closed.
        tell: Is told what a server can't do, and how the court gets along without it.
        patient: True to wait for a server that does not answer.
        may_be_blind: Roles that will be shown no picture, although they are in a trial.

    Raises:
        BadRequest: A role has a server without a model, or the other way round.
        NotLoaded: The client for model servers is not installed.
        ModelRefused: A server does not have the model, wants another key, or takes no pictures and is to see some; or
            the model is to think and can't be made to.
        Unavailable: None of a model's servers answers, and none is waited for.
    """
    further = settings.llm.further_judges
    wanted = {role: settings.llm.of_role(role) for role in settings.roles} | further
    if not any(role.url or role.model for role in wanted.values()):
        return None
    try:
        from court.backends.chat.capabilities import probe_replicas
        from court.backends.chat.client import ChatCompletions, http_client
        from court.backends.chat.features import THOUGHT_TOKENS, Thinking
        from court.backends.http import Load
    except ModuleNotFoundError as error:
        raise NotLoaded(
            "Full trials need the client for model servers, which is not installed. "
            "Install it with: pip install 'memecourt[full]'",
            reason="FULL_NOT_INSTALLED",
        ) from error

    http = http_client()
    # At once: a probe that fails must not leave connections open.
    stack.push_async_callback(http.aclose)
    # By server and not by role: the bound is on what all roles together send to the same server.
    loads: defaultdict[str, Load] = defaultdict(lambda: Load(settings.llm.concurrency))
    models: dict[tuple[tuple[str, ...], str, str], ChatCompletions] = {}
    chairs: dict[str, RoleModel] = {}
    pictures = pictures_per_prompt(settings.trial)
    for role, own in wanted.items():
        urls, name = _both(role, own)
        key = own.api_key.get_secret_value() if own.api_key else ""
        # Roles that share servers, model and key share a client: it is probed once.
        model = models.get((urls, name, key))
        if model is None:
            # The probe serves every role of this model, so it looks for thoughts where any of them is to think.
            thoughts = any(_both(other, its) == (urls, name) and its.thinking != "off" for other, its in wanted.items())
            model = await probe_replicas(
                [
                    ChatCompletions(base_url=url, model=name, api_key=key or None, http=http, load=loads[url])
                    for url in urls
                ],
                pictures=pictures,
                tell=tell,
                reach=partial(_reached, tell, thoughts=thoughts) if patient else None,
                thoughts=thoughts,
            )
            models[urls, name, key] = model
        seeing = role.partition(" ")[0]
        # Found out at start: later it would be a failed step in every trial.
        if seeing in _SEES and seeing not in may_be_blind and not model.capabilities.pictures:
            raise ModelRefused(f"The {role} must see pictures, and {name} takes none. Name another model for it.")
        found = model.capabilities
        tokens = own.thinking if isinstance(own.thinking, int) else THOUGHT_TOKENS * (own.thinking == "on")
        if tokens and found.thinks_by is Thinking.NONE:
            raise ModelRefused(
                f"The {role} is to think before it replies, and {name} does not, whatever it is told. If it is a model "
                "that can, start its server with a reasoning parser (vLLM: --reasoning-parser): without one a JSON "
                "schema keeps thoughts out. Else set llm.thinking to off.",
                reason="THINKING_UNAVAILABLE",
            )
        if tokens and not found.thought_limit:
            tell(
                f"{name}: The server has no limit for thoughts: the {role} has one for thought and reply together, and "
                "a thought that leaves no room for a reply is asked for once more, then recorded as a failed step."
            )
        chairs[role] = RoleModel(
            model,
            # As it is sent, for the record: a server that takes one temperature alone is sent that.
            (own.temperature or 0.0) if found.temperatures else 1.0,
            own.max_tokens,
            servers=model,
            thinking="" if found.thinking is Thinking.NONE else found.thinking.value,
            thought_tokens=tokens,
            thoughts_by=(found.thinks_by.value, found.thought_limit or "max_tokens") if tokens else (),
            prefix_cache=found.prefix_cache,
        )
    guard = None
    if settings.llm.guard is not None:
        guard = await _connect_guard(settings.llm.guard, loads, http, tell)
    roles = RoleModels(
        proposer=chairs["proposer"],
        accuser=chairs["accuser"],
        defender=chairs["defender"],
        judge=chairs["judge"],
        judges=tuple(chairs[name] for name in further),
        guard=guard,
        expert=chairs.get("expert"),
    )
    if settings.trial.judges > 1 and any(model.temperature == 0 for model in (roles.judge, *roles.judges)):
        raise BadRequest(
            f"At temperature 0 a model gives {settings.trial.judges} times the same ruling (trial.judges). Give the "
            "Judge a temperature (llm.roles.judge.temperature), or name further models (llm.judges) and draw one each.",
            reason="PANEL_OF_ONE",
            field="trial.judges",
        )
    return roles


async def _connect_guard(
    own: GuardSettings, loads: defaultdict[str, Load], http: httpx2.AsyncClient, tell: Callable[[str], None]
) -> GuardModel:
    """Connects to the guard. It is asked for no more than whether it is there: guards answer in one form only.

    Raises:
        ModelRefused: Its server does not have the model, or wants another key.
    """
    from court.backends.chat.client import ChatCompletions
    from court.backends.chat.features import Capabilities, LogProbs, Thinking

    thinks = own.adapter in (GuardAdapter.GUARDREASONER, GuardAdapter.GPT_OSS_SAFEGUARD)
    able = Capabilities(
        json_schema=False,
        pictures=LIMITS.representative_frames,
        log_probs=LogProbs.NONE,
        thinking=Thinking.ALWAYS if thinks else Thinking.NONE,
    )
    key = own.api_key.get_secret_value() if own.api_key else None
    model = ChatCompletions.joined(
        [
            ChatCompletions(
                base_url=url,
                model=own.model,
                api_key=key,
                capabilities=able,
                http=http,
                load=loads[url],
            )
            for url in own.url
        ]
    )
    try:
        listed = await model.listed(within_s=_GUARD_S)
    # A guard is an opinion beside the court: without it the server starts all the same.
    except Unavailable as error:
        tell(
            f"The guard model {own.model} does not answer: {error.message} Trials are held without its opinion "
            "meanwhile, and a person is asked to look at them."
        )
    else:
        if own.model not in listed.names:
            raise ModelRefused(
                f"The server of the guard does not list {own.model}. Start it with that model, or name another in "
                "llm.guard.model.",
                reason="MODEL_UNKNOWN",
                status=404,
            )
    return GuardModel(RoleModel(model, servers=model), own.adapter)


async def _reached(
    tell: Callable[[str], None], model: ChatCompletions, pictures: int, *, thoughts: bool = False
) -> Probed:
    """Probes a server, waiting for it if need be: it may start later than this court, or be started again."""
    from court.backends.chat.capabilities import probe

    tries = 0
    while True:
        try:
            return await probe(model, pictures=pictures, thoughts=thoughts)
        except Unavailable as error:
            # At the first failure, then seldom: the log is not to fill up while a model is being loaded.
            if tries % _LOG_EVERY == 0:
                tell(f"Waiting for the model server for {model.name}: {error.message}")
            tries += 1
        await asyncio.sleep(_AGAIN_S)


def _both(role: str, own: RoleSettings) -> tuple[tuple[str, ...], str]:
    if not own.url or not own.model:
        raise BadRequest(
            f"The {role} has {'a model but no server' if own.model else 'a server but no model'}. Give both, with "
            "--llm-url and --model, in the environment or in the file of settings.",
            reason="MODEL_HALF_NAMED",
            field="llm",
        )
    return own.url, own.model
