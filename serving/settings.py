"""Settings of the service: where and how trials are run, as opposed to the settings of a trial itself."""

from __future__ import annotations

import json
import os
import re
import tomllib
from contextlib import suppress
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Annotated, Any, Literal, Self, get_args
from urllib.parse import SplitResult, urlsplit

from platformdirs import user_data_path
from pydantic import (
    AfterValidator,
    BeforeValidator,
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
from court.values import Value
from retrieval.library.postgres.address import Address, place_of

CONFIG = "MEMECOURT_CONFIG"
"""Environment variable with the path of the TOML file. Not itself a setting: it says where the settings are."""


def _cores() -> int:
    """Returns the number of CPUs that this process may use; in a container, fewer than the machine has."""
    # macOS has no per-process CPU affinity.
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


RoleName = Literal["proposer", "accuser", "defender", "judge", "expert"]
# Lower case is accepted too, as with --procedure.
ProcedureName = Annotated[Procedure, BeforeValidator(lambda name: name.upper() if isinstance(name, str) else name)]


def _parse_list(value: Any) -> Any:
    """Parses one or several addresses, separated by commas or as a JSON list, from options or the environment."""
    if not isinstance(value, str):
        return value
    # No address begins with a bracket. Invalid JSON is refused as an address later.
    if value.lstrip().startswith("["):
        with suppress(ValueError):
            return json.loads(value)
    return tuple(part.strip() for part in value.split(","))


def _parts_of(url: str, otherwise: str) -> SplitResult:
    """Returns the parts of an address of http or https; raises ValueError, with these words, for any other."""
    try:
        # urlsplit() and .port raise ValueError for invalid addresses.
        parts = urlsplit(url)
        if parts.scheme in ("http", "https") and parts.hostname and parts.port != 0:
            return parts
    except ValueError:
        raise ValueError(f"that is no address: {otherwise}") from None
    raise ValueError(otherwise)


def _check_text(name: str | None) -> str | None:
    """Refuses bytes of a command line that are no text: neither a request nor a record could hold them."""
    if name is not None and not name.isprintable():
        raise ValueError("a name of a model is text in UTF-8, without control characters")
    return name


def _check_addresses(urls: tuple[str, ...]) -> tuple[str, ...]:
    """Refuses invalid server addresses, and those containing a key or password, which must not appear in records."""
    for url in urls:
        parts = _parts_of(url, "an address of a model server is http://HOST:PORT/v1, or https")
        if "@" in parts.netloc or parts.query or parts.fragment:
            raise ValueError("an address stands in records: give the key as api_key, not in it")
    # With and without a trailing slash it is the same server, which would otherwise count as two.
    if not urls or len({url.rstrip("/") for url in urls}) < len(urls):
        raise ValueError("each model server is named once, and at least one")
    return urls


Urls = Annotated[
    tuple[str, ...],
    BeforeValidator(_parse_list),
    AfterValidator(_check_addresses),
    PlainSerializer(lambda urls: urls[0] if len(urls) == 1 else list(urls), return_type=str | list[str]),
]
"""One server, or several with the same model and key; serialised as a plain string if there is only one."""


def _check_host_names(names: tuple[str, ...]) -> tuple[str, ...]:
    """Refuses invalid host names."""
    for name in names:
        if not re.fullmatch(r"[a-z0-9]([a-z0-9.\-]*[a-z0-9])?", name):
            raise ValueError("a host is its name in lower case, cdn.example.org: no address, port, path or wildcard")
    return names


def _home() -> Path:
    """Returns the user's data folder."""
    try:
        return user_data_path("memecourt")
    except RuntimeError:
        # The user is unknown to the system and HOME is not set, as may happen in a container.
        raise BadRequest(
            "This user has no home folder: name a folder for records in MEMECOURT_HOME.",
            reason="HOME_UNKNOWN",
            field="home",
        ) from None


def _named_path(value: Any) -> Any:
    """Refuses an empty path, which would mean the current folder."""
    if value == "":
        raise ValueError("it is empty: give the path, or leave the setting out")
    return value


OwnPath = Annotated[Path, BeforeValidator(_named_path)]
"""A non-empty path given in a setting."""


def _parse_place(value: Any, info: ValidationInfo) -> Any:
    """Parses a database address if the value looks like one; otherwise it is a path."""
    if not isinstance(value, str):
        return value
    try:
        return place_of(_named_path(value))
    except BadRequest as error:
        # Not a ValueError: pydantic would print the value, which may contain a password.
        raise BadRequest(f"{info.field_name}: {error.message}", reason=error.reason, field=info.field_name) from None


Place = Annotated[
    Path | InstanceOf[Address], BeforeValidator(_parse_place), PlainSerializer(str, return_type=str, when_used="json")
]
"""A file, a directory or the address of a database; serialised without the password."""


def _check_reader(name: str) -> str:
    """Refuses unknown text readers."""
    # A wrong name is reported at startup, not with the first picture.
    from court.backends.ocr.reader import check_reader_name  # lazy: few set it, and it imports an HTTP client

    return check_reader_name(name)


def _refuse_bool(value: Any) -> Any:
    """Refuses true and false, which would be read as 1 and 0 tokens."""
    if isinstance(value, bool):
        raise ValueError('thinking is "off", "on" or a number of tokens')
    return value


Thinking = Annotated[Literal["off", "on"] | Annotated[int, Field(ge=1, le=1_000_000)], BeforeValidator(_refuse_bool)]
"""Reasoning of a model before it replies: none, of the default length, or at most this many tokens."""


class RoleSettings(Value):
    """Settings of one role; those not given are taken from the settings of all roles."""

    url: Urls | None = None
    """Address of a model server, or of several (a list, or separated by commas): each trial then keeps to one."""
    model: Annotated[str | None, AfterValidator(_check_text)] = None
    """Name of the model on its server."""
    api_key: SecretStr | None = None
    """API key that the server requires."""
    temperature: float | None = Field(default=None, ge=0, le=2)
    """Sampling temperature; 0 if not given."""
    max_tokens: int | None = Field(default=None, ge=1, le=1_000_000)
    """Maximum tokens of a reply. If not given, enough for the longest requested reply in any script."""
    thinking: Thinking | None = None
    """Reasoning before a reply, for models that can: ``off``, ``on`` (at most 4,096 tokens), or a number of tokens, not
    counting those of the reply. ``off`` if not given."""


class FindingSettings(Value):
    """Rules for what follows from the findings of people."""

    contested: Literal["review", "keep"] = "review"
    """Decision on content that was allowed while its case is open again (an appeal, a second opinion, reviewers who
    disagree): ``review``, or ``keep`` for the allow. A block always stays one."""
    acquit_by: Literal[1, 2] = 1
    """Number of people who must find content not harmful before it is allowed."""
    older_policy: Literal["keep", "review"] = "keep"
    """Content that a person allowed under an older version of the policy: ``keep`` allows it and says so, ``review``
    has a person look again."""
    days: Days | None = None
    """Days for which a finding about content rules after its trial has expired, counted from the finding; it ends with
    its trial if not given. It always ends when the trial is erased."""


class GuardSettings(Value):
    """A guard model that serves as an additional witness in full trials (:mod:`court.guard`)."""

    # NoDecode: a required field would otherwise have to be JSON in the environment.
    url: Annotated[Urls, NoDecode]
    """Address of its server, or of several."""
    model: Annotated[str, AfterValidator(_check_text)] = Field(min_length=1)
    """Name of the model on its server."""
    adapter: GuardAdapter
    """Model family, which determines the format of its prompt and answer."""
    api_key: SecretStr | None = None
    """API key of its server: keys of the other models are never sent there."""


class ModelSettings(RoleSettings):
    """The chat models of the full procedure, on any server with OpenAI's chat completions API."""

    concurrency: int = Field(default=64, ge=1, le=100_000)
    """Calls in flight per server at which speculative calls stop: on a saturated server, a superfluous call delays a
    needed one."""
    roles: dict[RoleName, RoleSettings] = Field(default_factory=dict)
    guard: GuardSettings | None = None
    """A guard model; none is used if not given."""
    judges: tuple[RoleSettings, ...] = Field(default=(), max_length=8)
    """Further models that judge alongside the Judge's: with them, or with ``trial.judges``, a panel rules. Settings not
    given are the Judge's; a key is only ever sent to the server it was given for."""

    @property
    def further_judges(self) -> dict[str, RoleSettings]:
        """Settings of each further judge, by name: ``judge 2`` and so on."""
        judge = self.of_role("judge")
        found = {}
        for number, own in enumerate(self.judges, 2):
            values = {name: getattr(own, name) for name in own.model_fields_set}
            # A further judge on another server does not inherit the key: it would be sent to a third party.
            found[f"judge {number}"] = judge.model_copy(update=({"api_key": None} if own.url else {}) | values)
        return found

    def of_role(self, role: RoleName) -> RoleSettings:
        """Returns the settings of a role: its own where present, else those of all roles."""
        own = self.roles.get(role, RoleSettings())
        return RoleSettings(
            url=own.url or self.url,
            model=own.model or self.model,
            api_key=own.api_key or self.api_key,
            # Not `or`, which would skip a temperature of 0.
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
"""Types of webhook messages."""

HTTPS = 443


class WebhookSettings(Value):
    """A receiver of webhooks."""

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9_-]{0,63}$")
    """Name of the receiver in commands, metrics and the docket, which stores under it how far messages were
    delivered."""
    url: str = Field(max_length=2000)
    """Address that messages are sent to: ``https://HOST/PATH``."""
    events: tuple[WebhookEvent, ...] = Field(default=get_args(WebhookEvent), min_length=1)
    """Types of messages that the receiver gets; all if not given."""
    namespaces: tuple[str, ...] | None = Field(default=None, min_length=1)
    """Namespaces whose content it gets messages about; all if not given. If some are given, it gets no messages about
    precedents, which belong to no namespace."""
    secret_file: OwnPath
    """File with the secret that signs messages: ``whsec_…`` (HMAC, ``v1``) or ``whsk_…`` (Ed25519, ``v1a``)."""
    old_secret_file: OwnPath | None = None
    """File with the previous secret, which also signs messages until receivers have switched over."""
    allow_private: bool = False
    """True to allow private network addresses, plain http, and any port."""
    ca_file: OwnPath | None = None
    """Certificate authorities that its certificate is checked against, PEM; the system's if not given."""
    timeout: float = Field(default=15.0, ge=1, le=30)
    """Seconds within which it must answer."""

    @model_validator(mode="after")
    def _leads_outside(self) -> Self:
        wanted = "url is https://HOST/PATH, without a user, a password or a fragment"
        parts = _parts_of(self.url, wanted)
        if "@" in parts.netloc or parts.fragment:
            raise ValueError(wanted)
        # BO-8: what the address itself shows is refused at startup; the address it resolves to is checked on each
        # connection. The port defaults to that of https, so that plain http is refused for its scheme.
        if not self.allow_private and (parts.scheme != "https" or (parts.port or HTTPS) != HTTPS):
            raise ValueError(f"url is https and port {HTTPS}; allow_private = true allows others, inside a network")
        return self


class ResultPathSettings(Value):
    """Paths of the fields in a ``json`` search endpoint's answer: names separated by dots."""

    results: str = "results"
    """Path of the list of results; empty if the answer itself is the list."""
    url: str = Field(default="url", min_length=1)
    """Path of the address within a result."""
    title: str = "title"
    """Path of the title within a result."""
    snippet: str = "snippet"
    """Path of the matching passage within a result."""
    date: str = ""
    """Path of the date within a result; empty for none."""


_THIS_MACHINE = ("localhost", "127.0.0.1", "::1")


class EvidenceSettings(Value):
    """The source of evidence for the expert witness: a corpus on disk, or a search endpoint."""

    corpus: OwnPath | None = None
    """Folder of a corpus built by ``memecourt facts build``."""
    encoder: str | None = None
    """Encoder that the corpus was built with, if not the built-in one: ``onnx:FOLDER``."""
    url: str | None = Field(default=None, max_length=2000)
    """Address of a search endpoint. It is sent words of the meme on trial."""
    key_env: str | None = Field(default=None, pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")
    """Name of the environment variable that holds the endpoint's key."""
    shape: Literal["searxng", "serper", "json"] = "searxng"
    """API of the endpoint: that of SearXNG, that of Serper, or any JSON (``paths``)."""
    query: str = Field(default="q", min_length=1)
    """Name of the query parameter, for the shape ``json``."""
    paths: ResultPathSettings = Field(default_factory=ResultPathSettings)
    """Paths of the fields in an answer, for the shape ``json``."""
    fetch: bool = False
    """True to fetch the pages that the endpoint finds, from public addresses over https; otherwise only their snippets
    are evidence."""

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if self.corpus is not None and self.url is not None:
            raise ValueError("name a corpus or a url, not both")
        if self.url is None:
            if self.key_env is not None or self.fetch:
                raise ValueError("key_env and fetch are of a search endpoint: name its url")
            return self
        wanted = "url is https://HOST/PATH, or http, without a password or a query: give a key by key_env"
        parts = _parts_of(self.url, wanted)
        if "@" in parts.netloc or parts.query or parts.fragment:
            raise ValueError(wanted)
        # The one exception is this machine, where nobody else can read the connection.
        if self.key_env is not None and parts.scheme != "https" and parts.hostname not in _THIS_MACHINE:
            raise ValueError("a key is sent by https, or to this machine: give url as https://HOST/PATH")
        return self


Days = Annotated[int, Field(ge=1, le=36_500)]


class NamespaceSettings(Value):
    """Settings for the content of one namespace; those not given are as for all content."""

    policy: OwnPath | None = None
    """File of the policy that its content is judged by."""
    library: Place | None = None
    """Library of the precedents cited for its content, built with the same encoder as the court's."""
    review_share: float | None = Field(default=None, ge=0, le=1)
    """Share of its verdicts that are randomly sampled for review."""
    retention_days: Days | Literal["unlimited"] | None = None
    """Days after which its trials are erased; ``unlimited`` to keep them."""


class _SettingsFile(TomlConfigSettingsSource):
    """A settings file, which may begin with a byte order mark, as some editors on Windows write it."""

    @override
    def _read_file(self, file_path: Path | Traversable) -> dict[str, Any]:
        return tomllib.loads(file_path.read_text("utf-8-sig"))


_PUBLIC = r"^https?://[A-Za-z0-9.\-\[\]:]+(/[A-Za-z0-9_~\-][A-Za-z0-9._~\-]*)*$"
"""Address of a site or of a path below it, without a slash at its end."""


class Settings(BaseSettings):
    """All settings. Options override the environment (``MEMECOURT_…``, nested ``MEMECOURT_TRIAL__…``), which overrides
    the TOML file that ``MEMECOURT_CONFIG`` or ``--config`` names."""  # noqa: D205, D209

    # extra="forbid": a misspelled setting must not be ignored silently.
    model_config = SettingsConfigDict(env_prefix="MEMECOURT_", env_nested_delimiter="__", frozen=True, extra="forbid")

    home: OwnPath = Field(default_factory=_home)
    """Folder of the docket and the libraries unless they are given separately."""
    docket: Place | None = None
    """File of the docket, or address of a PostgreSQL database that several servers share; ``home/docket.sqlite`` if not
    given."""
    docket_key: OwnPath | None = None
    """File of the private key that signs the docket's checkpoints, created with the first signature. If not given, it
    is next to a docket that is a file (``docket.key`` next to ``docket.sqlite``), and in ``home`` for one in a
    database: servers that share a docket need the same key."""
    pictures: str | None = None
    """Storage of the docket's pictures: a directory, or an address such as ``s3://BUCKET/FOLDER``. If not given, next
    to a docket that is a file (``docket.sqlite-pictures``), and otherwise in its database."""
    anchor: str | None = None
    """Witness that stores signed checkpoints outside of the docket: an append-only file, or an http or https address
    that they are sent to. None if not given."""
    library: Place | None = None
    """Precedent library, a directory or the address of a database; if not given, the starter library, which is built in
    ``home`` on first use."""
    encoder: str | None = None
    """Encoder of texts and pictures: ``builtin``, ``open_clip:MODEL/TAG``, ``hf-hub:ORG/NAME`` and others
    (:mod:`retrieval.embed.clip_names`). If not given, that of the library, or ``builtin`` if there is no library
    yet."""
    reader: Annotated[str, AfterValidator(_check_reader)] = "rapidocr"
    """Text reader (OCR): ``rapidocr``, ``rapidocr:LANGUAGE``, the address of a server, or ``none`` if callers send the
    text (:mod:`court.backends.ocr.reader`)."""
    picture_workers: int = Field(default_factory=lambda: min(4, _cores()), ge=1, le=64)
    """Number of processes that decode pictures."""
    text_workers: int = Field(default_factory=lambda: min(4, _cores()), ge=1, le=64)
    """Number of processes, of one thread each, that read text off pictures with a local reader."""
    concurrent_trials: int = Field(default=32, ge=1, le=10_000)
    """Maximum number of concurrent trials; further callers wait."""
    waiting_trials: int = Field(default=256, ge=0, le=100_000)
    """Maximum number of waiting callers; further ones are asked to retry later."""
    picture_memory: int = Field(default=512 * 1024 * 1024, ge=64 * 1024 * 1024)
    """Maximum bytes of requests in memory, waiting or being tried; further requests are not read until there is
    room."""
    idle: float = Field(default=60.0, gt=0, le=86_400)
    """Seconds within which a caller must send the next request of an open call."""
    keep_alive: float = Field(default=75.0, ge=1, le=86_400)
    """Seconds for which an HTTP connection stays open between requests; more than the proxy in front keeps it."""
    reuse: Literal["off", "namespace", "everywhere"] = "namespace"
    """Verdicts on the same meme that are reused without a trial: none, those on content of the same namespace, or
    all."""
    reuse_near: bool = False
    """True to reuse verdicts for near-duplicates too: similar picture, equivalent text, and no tile that differs."""
    text_alone: bool = True
    """True to try texts that come without a picture. Set to false if all content has pictures: a request whose picture
    was lost is then refused, instead of judging its caption alone."""
    tls_certificate: OwnPath | None = None
    """Certificate chain of the server, PEM; with it and its key, callers must use TLS."""
    tls_key: OwnPath | None = None
    """Private key of the certificate, PEM."""
    tls_client_ca: OwnPath | None = None
    """Certificate authorities of callers, PEM: if given, each caller must present a certificate issued by one
    (mTLS)."""
    insecure: tuple[Literal["tls", "auth"], ...] = ()
    """Requirements lifted for listeners that other machines can reach: ``tls`` (a proxy in front encrypts), ``auth`` (a
    proxy in front authenticates callers)."""
    tokens: OwnPath | None = None
    """File with the hashes of callers' tokens and what each may do; without it, anybody who can connect may do
    anything."""
    http: str | None = None
    """``host:port`` of the HTTP and JSON API; not served if not given."""
    http_origin: str | None = Field(default=None, pattern=_PUBLIC)
    """Public address of the HTTP API (``https://example.org/court``), if it differs from where it listens."""
    notice_link_days: Days | None = None
    """Days for which the link of a notice takes one objection from somebody without an account, over the HTTP API; no
    notice has a link if not given."""
    http_fetch_hosts: Annotated[
        tuple[str, ...], NoDecode, BeforeValidator(_parse_list), AfterValidator(_check_host_names)
    ] = ()
    """Hosts that pictures are fetched from when an HTTP request gives an https address instead of a picture."""
    console: str | None = None
    """``host:port`` of the web console; not served if not given."""
    console_origin: str | None = Field(default=None, pattern=_PUBLIC)
    """Public address of the console (``https://console.example.org``, or with a path ``https://example.org/court``),
    if it differs from where it listens."""
    blind_first: bool = True
    """True if reviewers must decide before the verdict is shown to them."""
    overrulings: Literal["never", "chosen", "always"] = "chosen"
    """Overruled verdicts that become precedents: none, those that the reviewer chooses, or all."""
    review_below: float = Field(default=0.6, ge=0.5, le=1)
    """Probability of a verdict's own label, according to its score, below which it goes to review."""
    review_share: float = Field(default=0.01, ge=0, le=1)
    """Share of all verdicts that are randomly sampled for review: they measure how good verdicts are."""
    flip_share: float = Field(default=0.0, ge=0, le=1)
    """Share of full trials, drawn by their ids, whose Judge is asked again with pieces left out, within the caller's
    time and before the answer."""
    binding: Literal["exact", "off"] = "exact"
    """Which memes are settled by a precedent whose label a named person answers for: ``exact`` copies of it, or none
    (``off``)."""
    findings: FindingSettings = FindingSettings()
    """Rules for what follows from the findings of people (``[findings]``)."""
    retention_days: Days | None = None
    """Days after its opening until a trial is erased; never if not given."""
    reflection: bool = True
    """True to enable gRPC reflection."""
    metrics: str | None = None
    """``host:port`` of the metrics endpoint for Prometheus, or a port for this machine alone; not served if not
    given."""
    traces: bool = False
    """True to export OpenTelemetry traces, as configured by the ``OTEL_EXPORTER_OTLP_…`` variables."""
    log_format: Literal["text", "json"] = "text"
    """Format of the log's lines."""
    grace: float = Field(default=20.0, ge=0, le=3600)
    """Grace period in seconds for running trials to finish when the server is told to stop."""
    drain_delay: float = Field(default=0.0, ge=0, le=3600)
    """Seconds for which new requests are still accepted when the server is told to stop, until load balancers have
    noticed."""
    procedure: ProcedureName = Procedure.SUMMARY
    """Procedure of trials whose request names none."""
    policy: OwnPath | None = None
    """File of the policy; MemeCourt's own if not given."""
    audition: OwnPath | None = None
    """Calibration of full verdicts, written by ``memecourt-eval audition --calibrate``; none if not given. It turns
    ``trial.probes`` on unless that is set."""
    llm: ModelSettings = Field(default_factory=ModelSettings)
    trial: TrialSettings = Field(default_factory=TrialSettings)
    expert: EvidenceSettings = Field(default_factory=EvidenceSettings)
    """Source of evidence for the expert witness; ``trial.expert`` says when it is called."""
    webhooks: tuple[WebhookSettings, ...] = ()
    """Webhook receivers, each in a table ``[[webhooks]]`` of the file (docs/webhooks.md)."""
    namespaces: dict[str, NamespaceSettings] = Field(default_factory=dict)
    """Settings that differ for some content, in a table ``[namespaces.NAME]`` for each namespace."""

    @field_validator("webhooks")
    @classmethod
    def _named_once(cls, hooks: tuple[WebhookSettings, ...]) -> tuple[WebhookSettings, ...]:
        # The docket stores delivery progress by name: two receivers of one name would skip each other's messages.
        if len({hook.name for hook in hooks}) < len(hooks):
            raise ValueError("each webhook has a name of its own")
        return hooks

    @property
    def roles(self) -> tuple[RoleName, ...]:
        """Roles that need a model in full trials."""
        # A witness that is never called needs no model.
        return tuple(name for name in get_args(RoleName) if name != "expert" or self.trial.expert != "off")

    @model_validator(mode="after")
    def _room_for_replies(self) -> Self:
        roles: dict[str, RoleSettings] = {name: self.llm.of_role(name) for name in self.roles}
        for name, own in {**roles, **self.llm.further_judges}.items():
            role = Role(name.partition(" ")[0].upper())
            # At startup: a reply that is cut off at the limit would fail in every trial, after all earlier calls were
            # paid for.
            limit, fewest = own.max_tokens, fewest_tokens(role, self.trial.reply_chars)
            if limit is not None and limit < fewest:
                raise ValueError(
                    f"max_tokens of the {name} is {limit}: the longest reply that is asked of it takes {fewest} "
                    f"tokens in English. Allow those, or lower trial.reply_chars, which is {self.trial.reply_chars}."
                )
        return self

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Returns the sources in order of precedence: options, environment, file; a file that is named must exist."""
        for name, field in settings_cls.model_fields.items():
            # An empty path would mean the current folder. Ignoring it could disable a safeguard, such as the
            # certificate authorities of callers.
            is_path = name in ("pictures", "anchor") or "Path" in str(field.annotation)
            if is_path and os.environ.get(variable := f"MEMECOURT_{name.upper()}") == "":
                raise BadRequest(f"{variable} is empty. Unset it, or give the path.", reason="PATH_EMPTY", field=name)
        # Only from the environment, which --config sets too: the file can't say where it is itself.
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
        """Number of requests of one caller that are processed concurrently; more would only wait while their time runs.

        Trials with models wait for the models. Those without saturate the CPUs with a few trials each; most of their
        time goes into reading text.
        """
        if self.procedure is not Procedure.SUMMARY:
            return self.concurrent_trials
        # Four per worker keep the workers busy while other trials are decoded, searched and recorded.
        return min(self.concurrent_trials, max(8, 4 * self.text_workers))

    @property
    def docket_place(self) -> Path | Address:
        """File or address of the docket."""
        return self.docket or self.home / "docket.sqlite"

    @property
    def docket_key_place(self) -> Path | None:
        """File of the docket's key; None for next to the docket."""
        return self.docket_key or (self.home / "docket.key" if isinstance(self.docket, Address) else None)

    @property
    def pictures_place(self) -> Path | str | None:
        """Storage of the docket's pictures; None for next to the docket, or in its database."""
        return Path(self.pictures) if self.pictures and "://" not in self.pictures else self.pictures or None
