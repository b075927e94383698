"""Settings of the service: what is not about a trial but about where and how trials are held."""

from __future__ import annotations

import json
import os
import re
import tomllib
from contextlib import suppress
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Annotated, Any, Literal, Self, get_args
from urllib.parse import urlsplit

from platformdirs import user_data_path
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    InstanceOf,
    PlainSerializer,
    SecretStr,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic_settings import (
    BaseSettings,
    NoDecode,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)
from typing_extensions import override

from court.errors import BadRequest
from court.events import Procedure, Role
from court.guard import GuardAdapter
from court.roles import fewest_tokens
from court.settings import TrialSettings
from retrieval.library.postgres.address import Address, place_of

CONFIG = "MEMECOURT_CONFIG"
"""Names the TOML file. Not a setting itself: it says where they are."""


def _cores() -> int:
    """Processors that this process may use; fewer than the machine's in a container."""
    # macOS can't say which of them a process may use.
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


RoleName = Literal["proposer", "accuser", "defender", "judge", "expert"]
# In small letters too: as --procedure has it.
ProcedureName = Annotated[Procedure, BeforeValidator(lambda name: name.upper() if isinstance(name, str) else name)]


def _split(value: Any) -> Any:
    """One address, or several with commas between them or as JSON, as options and the environment give them."""
    if not isinstance(value, str):
        return value
    # No address begins so. What is no JSON after all is refused as an address.
    if value.lstrip().startswith("["):
        with suppress(ValueError):
            return json.loads(value)
    return tuple(part.strip() for part in value.split(","))


def _addresses(urls: tuple[str, ...]) -> tuple[str, ...]:
    """Refuses what is no address of a server, or holds what must not stand in a record."""
    for url in urls:
        try:
            # urlsplit() and .port raise ValueError for what can't be an address.
            parts = urlsplit(url)
            whole = (
                parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port is None or parts.port > 0)
            )
        except ValueError:
            whole = False
        if not whole:
            raise ValueError("an address of a model server is http://HOST:PORT/v1, or https")
        if "@" in parts.netloc or parts.query or parts.fragment:
            raise ValueError("an address stands in records: give the key as api_key, not in it")
    # With and without a slash at the end it is the same server, which would count as two.
    if not urls or len({url.rstrip("/") for url in urls}) < len(urls):
        raise ValueError("each model server is named once, and at least one")
    return urls


Urls = Annotated[
    tuple[str, ...],
    BeforeValidator(_split),
    AfterValidator(_addresses),
    PlainSerializer(lambda urls: urls[0] if len(urls) == 1 else list(urls), return_type=str | list[str]),
]
"""One server, or several of the same model and key; written as one address where it is one."""


def _hosts(names: tuple[str, ...]) -> tuple[str, ...]:
    """Refuses what is no name of a host."""
    for name in names:
        if not re.fullmatch(r"[a-z0-9]([a-z0-9.\-]*[a-z0-9])?", name):
            raise ValueError("a host is its name in lower case, cdn.example.org: no address, port, path or wildcard")
    return names


def _home() -> Path:
    """The user's data folder."""
    try:
        return user_data_path("memecourt")
    except RuntimeError:
        # A user that the system does not know, as in a container, without HOME.
        raise BadRequest(
            "This user has no home folder: name a folder for records in MEMECOURT_HOME.",
            reason="HOME_UNKNOWN",
            field="home",
        ) from None


def _named_path(value: Any) -> Any:
    """Refuses an empty path, which would be the current folder."""
    if value == "":
        raise ValueError("it is empty: give the path, or leave the setting out")
    return value


OwnPath = Annotated[Path, BeforeValidator(_named_path)]
"""A path that a setting names."""


def _place(value: Any, info: ValidationInfo) -> Any:
    """The address of a database, where that is what it looks like."""
    if not isinstance(value, str):
        return value
    try:
        return place_of(_named_path(value))
    except BadRequest as error:
        # No ValueError, of which pydantic would show the value, and so a password.
        raise BadRequest(f"{info.field_name}: {error.message}", reason=error.reason, field=info.field_name) from None


Place = Annotated[
    Path | InstanceOf[Address],
    BeforeValidator(_place),
    PlainSerializer(str, return_type=str, when_used="json"),
]
"""A file, a directory or the address of a database; written without the password."""


def _reader(name: str) -> str:
    """Refuses what names no text reader."""
    # Whoever writes a wrong name is told at the start, and not by the first picture.
    from court.backends.ocr.reader import check_reader_name  # lazy: few set it, and it imports an HTTP client

    return check_reader_name(name)


def _no_switch(value: Any) -> Any:
    """Refuses true and false, which would pass for 1 and 0 tokens."""
    if isinstance(value, bool):
        raise ValueError('thinking is "off", "on" or a number of tokens')
    return value


Thinking = Annotated[
    Literal["off", "on"] | Annotated[int, Field(ge=1, le=1_000_000)],
    BeforeValidator(_no_switch),
]
"""Thoughts of a model before its replies: none, of the usual length, or of so many tokens at most."""


class RoleSettings(BaseModel):
    """Settings of one role; absent ones are those of all roles."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    url: Urls | None = None
    """Of a server; of several (a list, or commas between them) each trial keeps to one."""
    model: str | None = None
    """Name of the model, as its server knows it."""
    api_key: SecretStr | None = None
    """Key that the server wants."""
    temperature: float | None = Field(default=None, ge=0, le=2)
    """Sampling temperature; 0 if not given."""
    max_tokens: int | None = Field(default=None, ge=1, le=1_000_000)
    """Of a reply, at most. Without it, as many as the longest that is asked for may take in any script."""
    thinking: Thinking | None = None
    """Whether a model that can think before a reply does: ``off``, ``on`` (4,096 tokens at most), or a number of
    tokens, beside those of the reply. ``off`` if not given."""


class GuardSettings(BaseModel):
    """A guard model that is heard in full trials as a further witness (:mod:`court.guard`)."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    # Read as it stands in the environment: what is neither optional nor marked so has to be JSON there.
    url: Annotated[Urls, NoDecode]
    """Of its server, or of several."""
    model: str = Field(min_length=1)
    """Its name there."""
    adapter: GuardAdapter
    """Its family, which says how it is asked and how its answer is read."""
    api_key: SecretStr | None = None
    """Key of its server: those of the other models are not sent there."""


class ModelSettings(RoleSettings):
    """The chat models of the full procedure: any server that speaks OpenAI's chat completions."""

    concurrency: int = Field(default=64, ge=1, le=100_000)
    """Calls in flight at a server from which on nothing is asked ahead there: at saturation a superfluous call costs a
    needed one."""
    roles: dict[RoleName, RoleSettings] = Field(default_factory=dict)
    guard: GuardSettings | None = None
    """A guard model; none is heard if not given."""
    judges: tuple[RoleSettings, ...] = Field(default=(), max_length=8)
    """Further models that judge beside the Judge's: with them, or with ``trial.judges``, a panel rules. What one does
    not name is as the Judge's; a key is sent to no other server than it was given for."""

    @property
    def further_judges(self) -> dict[str, RoleSettings]:
        """The settings of each further judge, by ``judge 2`` and so on."""
        judge = self.of_role("judge")
        found = {}
        for number, own in enumerate(self.judges, 2):
            values = {name: getattr(own, name) for name in own.model_fields_set}
            # A further judge on another server does not inherit the key: it would be sent to a stranger.
            found[f"judge {number}"] = judge.model_copy(update=({"api_key": None} if own.url else {}) | values)
        return found

    def of_role(self, role: RoleName) -> RoleSettings:
        """Returns the settings of a role: its own where present, else those of all roles."""
        own = self.roles.get(role, RoleSettings())
        return RoleSettings(
            url=own.url or self.url,
            model=own.model or self.model,
            api_key=own.api_key or self.api_key,
            # Not `or`, which would pass over a temperature of 0.
            temperature=next((t for t in (own.temperature, self.temperature) if t is not None), 0.0),
            max_tokens=own.max_tokens or self.max_tokens,
            thinking=own.thinking or self.thinking or "off",
        )


WebhookEvent = Literal[
    "memecourt.verdict.given",
    "memecourt.review.wanted",
    "memecourt.review.decided",
    "memecourt.trial.failed",
    "memecourt.record.erased",
    "memecourt.precedent.changed",
]
"""Types of the messages that receivers of webhooks may be sent."""

HTTPS = 443


class WebhookSettings(BaseModel):
    """A receiver of webhooks."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9_-]{0,63}$")
    """Names it in commands, metrics and the docket: how far it has been told is stored under it."""
    url: str = Field(max_length=2000)
    """Where messages are sent: ``https://HOST/PATH``."""
    events: tuple[WebhookEvent, ...] = Field(default=get_args(WebhookEvent), min_length=1)
    """Types of messages that it is sent; all if not given."""
    namespaces: tuple[str, ...] | None = Field(default=None, min_length=1)
    """Namespaces of the content that it is told of; all if not given. Where some are given it is told of no precedents,
    which have none."""
    secret_file: OwnPath
    """File of the secret that messages are signed with: ``whsec_…`` (HMAC, ``v1``) or ``whsk_…`` (Ed25519, ``v1a``)."""
    old_secret_file: OwnPath | None = None
    """File of the secret before it, with which messages are signed as well while receivers go over."""
    allow_private: bool = False
    """Whether it may be an address inside a network, be reached by http, or at any port."""
    ca_file: OwnPath | None = None
    """Certificate authorities of its certificate, PEM; the usual ones if not given."""
    timeout: float = Field(default=15.0, ge=1, le=30)
    """Seconds in which it must have answered."""

    @model_validator(mode="after")
    def _leads_outside(self) -> Self:
        try:
            parts = urlsplit(self.url)
            whole = parts.scheme in ("http", "https") and bool(parts.hostname)
            # Without a port it is that of https, so that plain http fails by its scheme.
            port = parts.port or HTTPS
        except ValueError:
            raise ValueError("url is no address: give https://HOST/PATH") from None
        if not whole or "@" in parts.netloc or parts.fragment:
            raise ValueError("url is https://HOST/PATH, without a user, a password or a fragment")
        # BO-8: what the address itself shows is refused at the start; where its name leads is checked with each
        # connection.
        if not self.allow_private and (parts.scheme != "https" or port != HTTPS):
            raise ValueError(f"url is https and port {HTTPS}; allow_private = true allows others, inside a network")
        return self


class ResultPathSettings(BaseModel):
    """Places of results in the answer of a search endpoint of the shape ``json``: names with dots between them."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    results: str = "results"
    """Of the list of results; empty where the answer is the list."""
    url: str = Field(default="url", min_length=1)
    """Of the address, in a result."""
    title: str = "title"
    """Of the title, in a result."""
    snippet: str = "snippet"
    """Of the passage that was found, in a result."""
    date: str = ""
    """Of the date, in a result; empty for none."""


_THIS_MACHINE = ("localhost", "127.0.0.1", "::1")


class EvidenceSettings(BaseModel):
    """The source of evidence for the expert witness: a corpus on disk, or a search endpoint."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    corpus: OwnPath | None = None
    """The folder of a corpus that ``memecourt facts build`` made."""
    encoder: str | None = None
    """What the corpus was built with, where that is not the built-in encoder: ``onnx:FOLDER``."""
    url: str | None = Field(default=None, max_length=2000)
    """Of a search endpoint. It learns words of what is on trial."""
    key_env: str | None = Field(default=None, pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")
    """Name of the environment variable that holds the endpoint's key."""
    shape: Literal["searxng", "serper", "json"] = "searxng"
    """How the endpoint is asked, and how it answers: as SearXNG does, as Serper does, or any JSON (``paths``)."""
    query: str = Field(default="q", min_length=1)
    """Name of the parameter that holds the query, for the shape ``json``."""
    paths: ResultPathSettings = Field(default_factory=ResultPathSettings)
    """Places of results, for the shape ``json``."""
    fetch: bool = False
    """Whether pages that the endpoint finds are fetched, from public addresses by https; else their snippets are all
    the evidence."""

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if self.corpus is not None and self.url is not None:
            raise ValueError("name a corpus or a url, not both")
        if self.url is None:
            if self.key_env is not None or self.fetch:
                raise ValueError("key_env and fetch are of a search endpoint: name its url")
            return self
        try:
            parts = urlsplit(self.url)
            whole = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        except ValueError:
            whole = False
        if not whole or "@" in parts.netloc or parts.query or parts.fragment:
            raise ValueError("url is https://HOST/PATH, or http, without a password or a query: give a key by key_env")
        # The one exception: on this machine nobody else reads the connection.
        if self.key_env is not None and parts.scheme != "https" and parts.hostname not in _THIS_MACHINE:
            raise ValueError("a key is sent by https, or to this machine: give url as https://HOST/PATH")
        return self


class ShadowSettings(BaseModel):
    """A candidate that judges beside the court, without any effect: another library, prompts, models or policy."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    docket: Place | None = None
    """Where its trials are recorded; ``home/shadow.sqlite`` if not given."""
    share: float = Field(default=1.0, gt=0, le=1)
    """Share of the court's verdicts after which it tries the same meme."""
    waiting: int = Field(default=1000, ge=1, le=100_000)
    """Memes that wait for it; beyond, the oldest is passed over."""
    procedure: ProcedureName | None = None
    """How it tries; as the court did, if not given."""
    library: Place | None = None
    """Its library of precedents, made with the same encoder; the court's, if not given."""
    policy: OwnPath | None = None
    """The file of its policy; the court's, if not given."""
    prompts: str | None = Field(default=None, min_length=1, max_length=4096)
    """Words in which its models are asked; the court's, if not given."""
    llm: ModelSettings | None = None
    """Its chat models, a table ``[shadow.llm]`` like ``[llm]``; the court's, if not given."""


Days = Annotated[int, Field(ge=1, le=36_500)]


class NamespaceSettings(BaseModel):
    """Settings for the content of one namespace; those that are not given are as for all content."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    policy: OwnPath | None = None
    """The file of the policy that it is judged by."""
    library: Place | None = None
    """The library of precedents that are cited for it, made with the encoder of the court's own."""
    review_share: float | None = Field(default=None, ge=0, le=1)
    """Share of its verdicts that chance brings to the desk."""
    trials_per_minute: int | None = Field(default=None, ge=1)
    """Trials that are begun for it within any minute, at each server."""
    trials_per_day: int | None = Field(default=None, ge=1)
    """Trials that are begun for it within any 24 hours, at each server; those of before its start count too."""
    retention_days: Days | Literal["unlimited"] | None = None
    """Days after which its trials are erased; ``unlimited`` for never."""


class _SettingsFile(TomlConfigSettingsSource):
    """A settings file, which may begin with a byte order mark, as some editors on Windows write it."""

    @override
    def _read_file(self, file_path: Path | Traversable) -> dict[str, Any]:
        return tomllib.loads(file_path.read_text("utf-8-sig"))


class Settings(BaseSettings):
    """All of them: options go before the environment (``MEMECOURT_…``, nested ``MEMECOURT_TRIAL__…``), that before the
    TOML file which ``MEMECOURT_CONFIG`` or ``--config`` names."""  # noqa: D205, D209

    # extra="forbid": a setting with a typing error in its name must not pass without any effect.
    model_config = SettingsConfigDict(env_prefix="MEMECOURT_", env_nested_delimiter="__", frozen=True, extra="forbid")

    home: OwnPath = Field(default_factory=_home)
    """Where docket and libraries are kept unless they are named."""
    docket: Place | None = None
    """The file of the docket, or the address of a PostgreSQL database that several servers share;
    ``home/docket.sqlite`` if not given."""
    docket_key: OwnPath | None = None
    """The file of the private key that the docket's checkpoints are signed with, made when the first is signed. If not
    given, it lies beside a docket that is a file (``docket.key`` beside ``docket.sqlite``), and in ``home`` for one in
    a database: servers that share a docket need the same."""
    pictures: str | None = None
    """Where the docket's pictures lie: a directory, or an address such as ``s3://BUCKET/FOLDER``. If not given, beside
    a docket that is a file (``docket.sqlite-pictures``), and in the database of one that is not."""
    anchor: str | None = None
    """Where the server keeps signed checkpoints of the docket outside of it: a file that it can only add to, or an http
    or https address that it sends them to. Nowhere if not given."""
    library: Place | None = None
    """The library of precedents, a directory or the address of a database; the starter library, made at first use in
    ``home``, if not given."""
    encoder: str | None = None
    """What turns texts and pictures into vectors: ``builtin``, ``open_clip:MODEL/TAG``, ``hf-hub:ORG/NAME`` and others
    (:mod:`retrieval.embed.clip_names`). That of the library if not given, and ``builtin`` where there is no library
    yet."""
    reader: Annotated[str, AfterValidator(_reader)] = "rapidocr"
    """What reads text off pictures: ``rapidocr``, ``rapidocr:LANGUAGE``, ``tesseract``, ``tesseract:LANGUAGES``, the
    address of a server, or ``none``: then callers send the text (:mod:`court.backends.ocr.reader`)."""
    picture_workers: int = Field(default_factory=lambda: min(4, _cores()), ge=1, le=64)
    """Processes that decode pictures."""
    text_workers: int = Field(default_factory=lambda: min(4, _cores()), ge=1, le=64)
    """Processes that read text off pictures, each with one thread, where that happens here."""
    concurrent_trials: int = Field(default=32, ge=1, le=10_000)
    """Trials held at once; beyond, callers wait their turn."""
    waiting_trials: int = Field(default=256, ge=0, le=100_000)
    """Callers that wait their turn; beyond, one is asked to come again."""
    picture_memory: int = Field(default=512 * 1024 * 1024, ge=64 * 1024 * 1024)
    """Bytes of requests held in memory at once, waiting or being tried; beyond, a request is not read yet."""
    idle: float = Field(default=60.0, gt=0, le=86_400)
    """Seconds in which a caller that has opened a call must send the next request."""
    reuse: Literal["off", "namespace", "everywhere"] = "namespace"
    """Whose verdicts on the same meme are given again without a trial: nobody's, those on content of the same
    namespace, or everybody's."""
    reuse_near: bool = False
    """Whether a verdict is given again for a meme that is nearly the same too: picture near, texts alike, no tile
    different."""
    text_alone: bool = True
    """Whether a text is tried that comes without a picture. Off where all content has one: then a picture that got lost
    on its way is refused, and its caption not judged in its place."""
    tls_certificate: OwnPath | None = None
    """The server's certificate chain, PEM; with it and its key, callers must speak TLS."""
    tls_key: OwnPath | None = None
    """The private key of the certificate, PEM."""
    tls_client_ca: OwnPath | None = None
    """Certificate authorities of callers, PEM: with it, a caller must show a certificate of theirs (mTLS)."""
    insecure: tuple[Literal["tls", "auth"], ...] = ()
    """Lifted for listeners that others than this machine can reach: ``tls`` (something in front encrypts), ``auth``
    (something in front knows the callers)."""
    tokens: OwnPath | None = None
    """The file of the callers' tokens, by hash, with what each may do; without it, whoever can connect may do all."""
    http: str | None = None
    """``host:port`` where HTTP and JSON are served beside gRPC; not at all if not given."""
    http_fetch_hosts: Annotated[tuple[str, ...], NoDecode, BeforeValidator(_split), AfterValidator(_hosts)] = ()
    """Hosts whose pictures are fetched where a request over HTTP names an https address in place of a picture."""
    console: str | None = None
    """``host:port`` where the console is served beside gRPC; not at all if not given."""
    console_origin: str | None = Field(default=None, pattern=r"^https?://[A-Za-z0-9.\-\[\]:]+$")
    """How people reach the console (``https://console.example.org``), where that is not where it listens."""
    blind_first: bool = True
    """Whether reviewers decide before the verdict is shown to them."""
    overrulings: Literal["never", "chosen", "always"] = "chosen"
    """Which overruled verdicts become precedents: none, those of which the reviewer says so, or all."""
    review_below: float = Field(default=0.6, ge=0.5, le=1)
    """A verdict whose score puts the probability of its own label below this comes to the desk."""
    review_share: float = Field(default=0.01, ge=0, le=1)
    """Share of all verdicts that chance brings to the desk: by these it is known how good verdicts are."""
    retention_days: Days | None = None
    """Days after which a trial is erased, from when it was opened; never if not given."""
    fonts: tuple[OwnPath, ...] = ()
    """Font files for records as PDF, of scripts that the packaged fonts lack: Chinese, Japanese, Korean and others."""
    reflection: bool = True
    """Whether the server tells what calls there are."""
    metrics: str | None = None
    """``host:port`` where Prometheus finds metrics; none if not given."""
    traces: bool = False
    """Whether OpenTelemetry traces are exported, as the ``OTEL_EXPORTER_OTLP_…`` variables say."""
    trace_contents: bool = False
    """Whether traces hold what was said: texts of memes, messages to models and their replies; pictures as links to the
    console's veiled ones."""
    log_format: Literal["text", "json"] = "text"
    """How a line of the log is written."""
    grace: float = Field(default=20.0, ge=0, le=3600)
    """Seconds that running trials have to finish when the server is told to stop."""
    procedure: ProcedureName = Procedure.SUMMARY
    """How a meme is tried where nobody says."""
    entailment: str | None = Field(default=None, pattern=r"^onnx:.")
    """A model of natural-language inference, ``onnx:FOLDER``: by it the expert witness settles claims in the summary
    procedure, where no model is asked to write (docs/expert.md). Without one, it finds passages and settles nothing."""
    policy: OwnPath | None = None
    """The file of the policy; MemeCourt's own if not given."""
    llm: ModelSettings = Field(default_factory=ModelSettings)
    trial: TrialSettings = Field(default_factory=TrialSettings)
    expert: EvidenceSettings = Field(default_factory=EvidenceSettings)
    """Where the expert witness finds evidence; it is called as ``trial.expert`` says."""
    webhooks: tuple[WebhookSettings, ...] = ()
    """Receivers that are told what happens, each a table ``[[webhooks]]`` of the file (docs/webhooks.md)."""
    namespaces: dict[str, NamespaceSettings] = Field(default_factory=dict)
    """What is otherwise for some content: a table ``[namespaces.NAME]`` for each namespace."""
    shadow: ShadowSettings | None = None
    """A candidate that judges beside the court, without any effect: a table ``[shadow]``."""

    @field_validator("webhooks")
    @classmethod
    def _named_once(cls, hooks: tuple[WebhookSettings, ...]) -> tuple[WebhookSettings, ...]:
        # The docket stores by name how far each has been told: two of one name would skip each other's messages.
        if len({hook.name for hook in hooks}) < len(hooks):
            raise ValueError("each webhook has a name of its own")
        return hooks

    @property
    def roles(self) -> tuple[RoleName, ...]:
        """Roles that have a model in full trials."""
        # A witness that is never called needs no model.
        return tuple(name for name in get_args(RoleName) if name != "expert" or self.trial.expert != "off")

    @model_validator(mode="after")
    def _records_apart(self) -> Self:
        # As text, since a place is a path or an address. In one docket, a candidate's verdicts would pass for the
        # court's.
        if self.shadow is not None and str(self.shadow_docket_place) == str(self.docket_place):
            raise ValueError("shadow.docket is another docket than the court's: what the shadow says is recorded apart")
        return self

    @model_validator(mode="after")
    def _room_for_replies(self) -> Self:
        self._check_room(self.llm, "the ")
        if self.shadow is not None and self.shadow.llm is not None:
            self._check_room(self.shadow.llm, "the shadow's ")
        return self

    def _check_room(self, llm: ModelSettings, owner: str) -> None:
        roles: dict[str, RoleSettings] = {name: llm.of_role(name) for name in self.roles}
        for name, own in {**roles, **llm.further_judges}.items():
            role = Role(name.partition(" ")[0].upper())
            # At the start: a reply that is cut off at the limit would fail in every trial, after all calls before it
            # were paid for.
            limit, fewest = own.max_tokens, fewest_tokens(role, self.trial.reply_chars)
            if limit is not None and limit < fewest:
                raise ValueError(
                    f"max_tokens of {owner}{name} is {limit}: the longest reply that is asked of it takes {fewest} "
                    f"tokens in English. Allow those, or lower trial.reply_chars, which is {self.trial.reply_chars}."
                )

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Options, environment, file; a file that is named must be there."""
        for name, field in settings_cls.model_fields.items():
            # An empty path would be the current folder. To leave it out could take away what guards the court, such as
            # the authorities of its callers.
            is_path = name in ("pictures", "anchor") or "Path" in str(field.annotation)
            if is_path and os.environ.get(variable := f"MEMECOURT_{name.upper()}") == "":
                raise BadRequest(f"{variable} is empty. Unset it, or give the path.", reason="PATH_EMPTY", field=name)
        # From the environment alone, which --config sets as well: the file can't say where it is itself.
        named = os.environ.get(CONFIG)
        if not named:
            return init_settings, env_settings
        if not Path(named).is_file():
            raise BadRequest(f"There is no file of settings at {named}.", reason="CONFIG_MISSING", field="config")
        try:
            file = _SettingsFile(settings_cls, toml_file=named)
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) else f"it is no TOML ({error})"
            if isinstance(error, UnicodeDecodeError):
                why = "it is not in UTF-8"
            raise BadRequest(
                f"The file of settings {named} can't be read: {why}.", reason="CONFIG_DAMAGED", field="config"
            ) from None
        return init_settings, env_settings, file

    @property
    def worked_on_at_once(self) -> int:
        """Number of requests of one caller beyond which more only wait, and their time passes.

        Trials that ask models wait for these. Those that ask none have the processors busy as soon as there are a few
        for each; most of their time is for reading text.
        """
        if self.procedure is not Procedure.SUMMARY:
            return self.concurrent_trials
        # Four for each worker keep them busy while other trials are decoded, searched and recorded.
        return min(self.concurrent_trials, max(8, 4 * self.text_workers))

    @property
    def docket_place(self) -> Path | Address:
        """Place of the docket."""
        return self.docket or self.home / "docket.sqlite"

    @property
    def shadow_docket_place(self) -> Path | Address:
        """Place of the docket of the shadow."""
        return (self.shadow and self.shadow.docket) or self.home / "shadow.sqlite"

    @property
    def docket_key_place(self) -> Path | None:
        """Place of the docket's key; None for beside the docket."""
        return self.docket_key or (self.home / "docket.key" if isinstance(self.docket, Address) else None)

    @property
    def pictures_place(self) -> Path | str | None:
        """Place of the docket's pictures; None for beside the docket, or in its database."""
        return Path(self.pictures) if self.pictures and "://" not in self.pictures else self.pictures or None
