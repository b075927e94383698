"""``memecourt webhooks``: receivers that are told what happens, how far each is, and what to do about them."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path

import click

from court.errors import BadRequest
from serving.cli.common import NEW_FILE, awaited, docket_in, docket_option, printable, settings_of
from serving.docket.open import Docket
from serving.docket.store.hooks import NOTHING, HookStates
from serving.settings import Settings, WebhookSettings
from serving.webhooks.attempts import Outcome, Receiver
from serving.webhooks.messages import trial_run
from serving.webhooks.signing import make_secret, signers_of


@click.group()
def webhooks() -> None:
    """Receivers of webhooks: `[[webhooks]]` in the file of settings names them, `memecourt serve` sends to them."""


@webhooks.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line.")
@docket_option
@awaited
async def list_hooks(as_json: bool, docket: object) -> None:
    """Lists receivers: position in the log, waiting messages, and whether deliveries are enabled.

    For a receiver whose messages are signed with Ed25519 it also prints the public key to verify them with.
    """
    settings = settings_of(docket=docket)
    known = {hook.name: hook for hook in settings.webhooks}
    async with docket_in(settings) as open_docket:
        states = await open_docket.deliveries.states()
        # Also what only the docket knows: a receiver taken out of the settings still has its position, and what waits
        # for it.
        for name in dict.fromkeys((*known, *sorted(states.hooks))):
            line = _about(name, states, url=known[name].url if name in known else "")
            line["public_keys"] = _public_keys(known[name]) if name in known else []
            click.echo(json.dumps(line) if as_json else _shown(line))


@webhooks.command()
@click.argument("name")
@awaited
async def test(name: str) -> None:
    """Sends the receiver NAME one message of the type memecourt.hook.test.

    Exits with 1 and the reason if the receiver does not accept it. Nothing is recorded, and nothing else is sent.
    """
    receiver = Receiver(_named(settings_of(), name))
    try:
        # Not by way of the docket: a trial message must not take a place among those that are delivered in order.
        answer = await receiver.send(trial_run(datetime.now(UTC)))
    finally:
        await receiver.aclose()
    if answer.outcome is not Outcome.DELIVERED and answer.error:
        raise click.ClickException(f"{name} did not take it: {answer.error}.")
    click.echo(f"{name} took it.")


@webhooks.command()
@click.argument("name")
@click.option(
    "--from", "entry", type=click.IntRange(min=0), required=True, help="Number of the first log entry to send."
)
@docket_option
@awaited
async def replay(name: str, entry: int, docket: object) -> None:
    """Delivers everything from a log entry on to the receiver NAME again.

    Messages keep their ids, so that a receiver can recognise duplicates.
    """

    async def work(open_docket: Docket) -> bool:
        size = await open_docket.log.size()
        # The number after the last is taken: then what comes next is told, and nothing of what was.
        if entry > size:
            raise click.ClickException(f"The log has {size:,} entries: --from is at most {size}.")
        return await open_docket.hooks.replay(name, entry)

    await _change(docket, name, work)
    click.echo(f"{name} is told everything from entry {entry} on.")


@webhooks.command()
@click.argument("name")
@docket_option
@awaited
async def enable(name: str, docket: object) -> None:
    """Resumes deliveries to the receiver NAME where they stopped, including messages that were given up."""
    await _change(docket, name, lambda open_docket: open_docket.hooks.enable(name))
    click.echo(f"{name} is enabled.")


@webhooks.command()
@click.argument("path", metavar="FILE", type=NEW_FILE)
@click.option("--ed25519", is_flag=True, help="Make an Ed25519 key pair (v1a); receivers get only the public key.")
def secret(path: Path, ed25519: bool) -> None:
    """Makes a secret in a new FILE that only its owner can read, for the setting secret_file and for the receiver.

    With --ed25519 it prints the public key, which is all that the receiver needs.
    """
    signer = make_secret(path, ed25519=ed25519)
    click.echo(signer.public_key or f"{path} holds the secret, which the receiver needs too.")


def _public_keys(hook: WebhookSettings) -> list[str]:
    """Keys that signatures are verified with; none where the secrets are not for whoever asks."""
    try:
        return [signer.public_key for signer in signers_of(hook) if signer.public_key]
    except BadRequest as error:
        # The rest of the list is of use without the keys.
        click.echo(error.message, err=True)
        return []


def _named(settings: Settings, name: str) -> WebhookSettings:
    for hook in settings.webhooks:
        if hook.name == name:
            return hook
    known = ", ".join(hook.name for hook in settings.webhooks) or "none"
    raise click.ClickException(f"There is no webhook {printable(name)} in the settings. There are: {known}.")


async def _change(docket: object, name: str, change: Callable[[Docket], Awaitable[bool]]) -> None:
    async with docket_in(settings_of(docket=docket)) as open_docket:
        known = await change(open_docket)
    if not known:
        raise click.ClickException(
            f"The docket knows no webhook {printable(name)}. `memecourt webhooks list` shows those it does; a server "
            "enters those of its settings when it starts."
        )


def _about(name: str, states: HookStates, *, url: str) -> dict[str, object]:
    hook, backlog = states.hooks.get(name), states.backlogs.get(name, NOTHING)
    state = "new" if hook is None else "disabled" if hook.disabled_at else "enabled"
    # Enabled in the docket, and sent nothing: servers send to the receivers of their settings alone.
    if state == "enabled" and not url:
        state = "not in the settings"
    return {
        "name": name,
        "url": url,
        "state": state,
        "why": hook.why if hook else "",
        "next_entry": hook.next_entry if hook else None,
        "log_entries": states.log_size,
        "waiting": backlog.waiting,
        "given_up": backlog.given_up,
        "oldest": backlog.oldest.isoformat() if backlog.oldest else None,
        "failing_since": hook.failing_since.isoformat() if hook and hook.failing_since else None,
        "paused_until": hook.paused_until.isoformat() if hook and hook.paused_until else None,
    }


def _shown(line: dict[str, object]) -> str:
    position = "" if line["next_entry"] is None else f"  at entry {line['next_entry']} of {line['log_entries']}"
    text = f"{line['name']}  {line['state']}{position}  {line['waiting']} waiting, {line['given_up']} given up"
    for word in ("failing_since", "paused_until"):
        text += f"  {word.replace('_', ' ')} {line[word]}" if line[word] else ""
    also = [line["url"], line["why"], *(line["public_keys"] if isinstance(line["public_keys"], list) else ())]
    return "\n    ".join([text, *(printable(str(each)) for each in also if each)])
