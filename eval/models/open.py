"""The models of an arena or a probe, as listed in a TOML file.

::

    [models.alpha]
    url = "http://127.0.0.1:8000/v1"
    model = "Qwen/Qwen2.5-VL-7B-Instruct"
    family = "qwen"
    api_key_env = "ALPHA_KEY"       # the name of an environment variable: the file contains no key
    usd_in = 0.2                    # per million tokens
    usd_out = 0.6
    most_calls = 5000               # maximum number in one session

A model without ``url`` is served here: ``--vllm`` starts a vLLM with it, in turn with others without one.

All other tables in the file are for the command that reads it.
"""

import os
import tomllib
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from court.errors import BadRequest
from court.meme import LIMITS
from eval.models.call_cache import SqliteCallCache
from eval.models.metered import MeteredModel, ModelSpec
from eval.models.vllm_session import SERVER, VllmTurns


@dataclass(frozen=True, slots=True)
class ModelsFile:
    """Content of the models file."""

    models: Mapping[str, ModelSpec]
    rest: Mapping[str, Any]


def read_models(path: Path) -> ModelsFile:
    """Reads the file. Raises BadRequest if it cannot be read or is invalid."""
    try:
        content = tomllib.loads(path.read_text("utf-8-sig"))
    except FileNotFoundError:
        raise BadRequest(f"There is no file {path}.", reason="MODELS_MISSING") from None
    except (OSError, ValueError) as error:
        raise BadRequest(f"{path.name} can't be read as TOML: {error}.", reason="MODELS_UNREADABLE") from None
    # The remaining content is for the arena or the probe.
    tables = content.pop("models", None)
    if not isinstance(tables, dict) or not tables:
        raise BadRequest(f"{path.name} names no model: write a table [models.NAME] for each.", reason="MODELS_NONE")
    models = {}
    for name, table in tables.items():
        try:
            models[name] = ModelSpec.model_validate(table)
        except ValidationError as error:
            what = "; ".join(f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}" for fault in error.errors())
            # The message names the table, because a file may have many models.
            raise BadRequest(f"{path.name}, [models.{name}]: {what}.", reason="MODELS_UNREADABLE") from None
    return ModelsFile(models, content)


@asynccontextmanager
async def opened_models(
    specs: Mapping[str, ModelSpec],
    calls: Path,
    tell: Callable[[str], None],
    *,
    pictures: int = LIMITS.representative_frames,
    run_seed: int = 0,
    vllm: Sequence[str] = (),
    vllm_flags: Sequence[str] = (),
) -> AsyncIterator[dict[str, MeteredModel]]:
    """Opens a store of calls, connects to the models behind it, and probes their capabilities.

    Raises:
        BadRequest: A key is not in the environment, or a model has no address and is not to be started.
        ModelRefused: A server does not have the model, requires another key, or accepts no pictures.
        Unavailable: None of a model's servers answers, or a vLLM did not start.
    """
    # Before any connection, so that errors in the file do not cost the start of a server.
    require_servers(specs, vllm)
    # Not above: the client alone takes half as long as all else that `arena --help` imports.
    from court.backends.chat.capabilities import probe_replicas, require_sight
    from court.backends.chat.client import ChatCompletions, http_client
    from court.backends.http import Load

    async with AsyncExitStack() as stack:
        store = SqliteCallCache(calls)
        # Registered before the models are opened, so that it is closed after them: they use it.
        stack.push_async_callback(store.close)
        http = http_client()
        # Registered at once: an error with a later model must still close the client.
        stack.push_async_callback(http.aclose)
        loads: dict[str, Load] = {}
        opened = {}
        turns = None
        if vllm:
            turns = await stack.enter_async_context(VllmTurns(tell, pictures=pictures, flags=vllm_flags))

        async def connected(urls: Sequence[str], model: str, key: str | None, most: int) -> ChatCompletions:
            # Models at one address share one limit of calls in flight, because the limit protects the server.
            # The first model at an address sets the limit.
            replicas = [
                ChatCompletions(
                    base_url=url, model=model, api_key=key, http=http, load=loads.setdefault(url, Load(most))
                )
                for url in urls
            ]
            return await probe_replicas(replicas, pictures=pictures, tell=tell)

        for name, spec in specs.items():
            served: Callable[[], AbstractAsyncContextManager[object]] = nullcontext
            if spec.url is None:
                assert turns is not None, "require_servers has seen to it"
                served = partial(turns.turn, spec.model)
                # Only for the probe. Later starts have the same address and key, so the client stays valid.
                async with turns.turn(spec.model) as own:
                    key = own.api_key.get_secret_value()
                    model = await connected((own.url,), own.name, key, spec.concurrency)
            else:
                model = await connected(spec.url, spec.model, _key(name, spec), spec.concurrency)
            # If no picture is shown, any model will do.
            if pictures:
                require_sight(model, name)
            # Everything besides the request that determines a reply: its origin, and the form of the call. Sorted,
            # because the order of the addresses does not affect a reply.
            origin = spec.server or (SERVER if spec.url is None else sorted(model.urls))
            opened[name] = MeteredModel(
                name,
                model,
                store=store,
                spec=spec,
                server={"name": origin, "json_schema": model.capabilities.json_schema},
                run_seed=run_seed,
                served=served,
            )
        yield opened


def require_servers(specs: Mapping[str, ModelSpec], vllm: Sequence[str]) -> None:
    """Raises BadRequest if a model has no address and is not to be started, or a started one is not used."""
    # Compared by model name, which several entries of the file may share.
    to_start = {spec.model for spec in specs.values() if spec.url is None}
    for name, spec in specs.items():
        if spec.url is None and spec.model not in vllm:
            raise BadRequest(
                f"[models.{name}] has no url. Name its server, or have one started: --vllm {spec.model}.",
                reason="SERVER_UNNAMED",
            )
    for model in vllm:
        if model not in to_start:
            raise BadRequest(
                f"--vllm {model} is for nobody: no model of the run is called {model} and has no url.",
                reason="SERVER_UNNAMED",
            )


def _key(name: str, spec: ModelSpec) -> str | None:
    if not spec.api_key_env:
        return None
    key = os.environ.get(spec.api_key_env)
    # Empty counts as unset: sent as a key, it would be refused by the server much later.
    if not key:
        raise BadRequest(
            f"The key of {name} is to be in the environment variable {spec.api_key_env}, which is not set.",
            reason="KEY_MISSING",
        )
    return key
