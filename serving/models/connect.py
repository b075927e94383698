"""Connects to the servers of the chat models of full trials, and probes each once."""

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
"""Timeout in seconds for a guard's server to list its models at startup."""
_AGAIN_S = 1.0
"""Seconds between two attempts to reach a model server."""
_SLOW_TRIAL_S = 30.0
"""Expected duration of a trial in seconds, from which on it is told at start."""
_LOG_EVERY = 30
"""One in this many failed attempts is logged with its reason."""


def pictures_per_prompt(trial: TrialSettings) -> int:
    """Returns the maximum number of pictures in a prompt of a trial: frames of the meme, and exhibits."""
    return LIMITS.representative_frames + trial.exhibits


async def connect_models(
    settings: Settings,
    stack: AsyncExitStack,
    tell: Callable[[str], None],
    *,
    patient: bool = False,
    may_be_blind: Collection[RoleName] = (),
) -> RoleModels | None:
    """Connects to the model servers; None if the settings name none.

    Raises:
        BadRequest: A role has a server without a model, or a model without a server.
        NotLoaded: The client for model servers is not installed.
        ModelRefused: A server does not have the model, refuses the key, does not accept required pictures, or can't
            make the model think as configured.
        Unavailable: None of a model's servers answers, and ``patient`` is False.
    """
    further = settings.llm.further_judges
    wanted = {role: settings.llm.of_role(role) for role in settings.roles} | further
    if not any(role.url or role.model for role in wanted.values()):
        return None
    try:
        from court.backends.chat.capabilities import probe_replicas, require_sight
        from court.backends.chat.client import ChatCompletions, http_client
        from court.backends.chat.wire import THOUGHT_TOKENS, Thinking
        from court.backends.http import Load
    except ModuleNotFoundError as error:
        raise NotLoaded(
            "Full trials need the client for model servers, which is not installed. "
            "Install it with: pip install 'memecourt[full]'",
            reason="FULL_NOT_INSTALLED",
        ) from error

    http = http_client()
    # Registered at once, since a failing probe must not leave connections open.
    stack.push_async_callback(http.aclose)
    # By server rather than by role: the limit applies to everything sent to the same server.
    loads: defaultdict[str, Load] = defaultdict(lambda: Load(settings.llm.concurrency))
    models: dict[tuple[tuple[str, ...], str, str], ChatCompletions] = {}
    role_models: dict[str, RoleModel] = {}
    pictures = pictures_per_prompt(settings.trial)
    for role, own in wanted.items():
        urls, name = _both(role, own)
        key = own.api_key.get_secret_value() if own.api_key else ""
        # Roles that share servers, model and key share a client, which is probed once.
        model = models.get((urls, name, key))
        if model is None:
            # The probe serves all roles of this model, so it tests thinking if any of them uses it.
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
        # Checked at startup: later it would fail a step of every trial.
        if seeing in _SEES and seeing not in may_be_blind and settings.trial.input == "memes":
            require_sight(model, f"The {role}")
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
        role_models[role] = RoleModel(
            model,
            # As sent, for the record: a server may accept only one temperature.
            (own.temperature or 0.0) if found.temperatures else 1.0,
            own.max_tokens,
            servers=model,
            thinking="" if found.thinking is Thinking.NONE else found.thinking.value,
            thought_tokens=tokens,
            thoughts_by=(found.thinks_by.value, found.thought_limit or "max_tokens") if tokens else (),
            prefix_cache=found.prefix_cache,
            speed=model.speed,
            weights=model.weights,
        )
    guard = None
    if settings.llm.guard is not None:
        guard = await _connect_guard(settings.llm.guard, loads, http, tell)
    roles = RoleModels(
        proposer=role_models["proposer"],
        accuser=role_models["accuser"],
        defender=role_models["defender"],
        judge=role_models["judge"],
        judges=tuple(role_models[name] for name in further),
        guard=guard,
        expert=role_models.get("expert"),
    )
    if settings.trial.judges > 1 and any(model.temperature == 0 for model in (roles.judge, *roles.judges)):
        raise BadRequest(
            f"At temperature 0 a model gives {settings.trial.judges} times the same ruling (trial.judges). Give the "
            "Judge a temperature (llm.roles.judge.temperature), or name further models (llm.judges) and draw one each.",
            reason="PANEL_OF_ONE",
            field="trial.judges",
        )
    # At usual speeds nothing needs to be said.
    if roles.trial_s > _SLOW_TRIAL_S:
        tell(expected_trial(roles))
    return roles


def expected_trial(roles: RoleModels) -> str:
    """Returns a sentence about the expected duration of a full trial; empty if no speed is known."""
    if roles.speed is None:
        return ""
    minutes = roles.trial_s / 60
    duration = f"{minutes:.0f} minutes" if minutes >= 2 else f"{roles.trial_s:.0f} seconds"
    # A model on a busy CPU writes less than one.
    read, written = (f"{speed:.{int(speed < 10)}f}" for speed in (roles.speed.read, roles.speed.write))
    return f"Expect about {duration} a trial: the slowest model reads {read} and writes {written} tokens a second."


async def _connect_guard(
    own: GuardSettings, loads: defaultdict[str, Load], http: httpx2.AsyncClient, tell: Callable[[str], None]
) -> GuardModel:
    """Connects to the guard and only checks its presence, since guards have a fixed answer format."""
    from court.backends.chat.client import ChatCompletions
    from court.backends.chat.wire import Capabilities, LogProbs, Thinking

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
            ChatCompletions(base_url=url, model=own.model, api_key=key, capabilities=able, http=http, load=loads[url])
            for url in own.url
        ]
    )
    try:
        listed = await model.listed(within_s=_GUARD_S)
    # A guard only gives an additional opinion, so the server also starts without it.
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
    """Probes a server, waiting for it if necessary: it may start later than this court, or be restarted."""
    from court.backends.chat.capabilities import probe

    tries = 0
    while True:
        try:
            return await probe(model, pictures=pictures, thoughts=thoughts, tell=tell)
        except Unavailable as error:
            # At the first failure, and then rarely, so that the log does not fill up while a model is loading.
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
