"""Tests of signatures, secrets and settings of webhooks, and of the commands that manage them."""

import asyncio
import base64
import json
import os
import shutil
import subprocess
from datetime import UTC, datetime

import pytest
from click.testing import CliRunner
from pydantic import ValidationError
from standardwebhooks import Webhook

from court.errors import BadRequest
from serving.cli.main import cli
from serving.docket.open import Docket
from serving.settings import Settings
from serving.webhooks.attempts import AFTER_S, Receiver
from serving.webhooks.signing import make_secret, signature_of, signers_of
from tests.support.dockets import append_all, events_of
from tests.support.receivers import hook_settings, running_receiver

BODY = b'{"type":"memecourt.verdict.given"}'
_OPENSSL = ("openssl", "pkeyutl", "-verify", "-pubin", "-rawin")


def headers_of(hook, body=BODY):
    now = int(datetime.now(UTC).timestamp())  # receivers reject messages older than five minutes
    return {
        "webhook-id": "msg_1",
        "webhook-timestamp": str(now),
        "webhook-signature": signature_of(signers_of(hook), "msg_1", now, body),
    }


def test_messages_verify_with_the_old_and_new_secret_during_rotation(tmp_path):
    make_secret(tmp_path / "old", ed25519=False)
    hook = hook_settings("http://a/", tmp_path, old_secret_file=tmp_path / "old")
    headers = headers_of(hook)
    assert headers["webhook-signature"].count("v1,") == 2
    for file in (hook.secret_file, hook.old_secret_file):
        assert Webhook(file.read_text().strip()).verify(BODY, headers)
    make_secret(tmp_path / "other", ed25519=False)
    with pytest.raises(Exception, match="No matching signature"):
        Webhook((tmp_path / "other").read_text().strip()).verify(BODY, headers)


@pytest.mark.skipif(shutil.which("openssl") is None, reason="there is no openssl here")
def test_openssl_verifies_ed25519_signatures(tmp_path):
    public = make_secret(tmp_path / "key", ed25519=True).public_key
    hook = hook_settings("http://a/", tmp_path, secret_file=tmp_path / "key")
    assert [signer.public_key for signer in signers_of(hook)] == [public] and public.startswith("whpk_")
    headers = headers_of(hook)
    scheme, _, signature = headers["webhook-signature"].partition(",")
    assert scheme == "v1a"
    # A public key in DER: a fixed header before its 32 bytes (RFC 8410).
    raw = base64.b64decode(public.removeprefix("whpk_"))
    der = bytes.fromhex("302a300506032b6570032100") + raw
    (tmp_path / "public.pem").write_bytes(
        b"-----BEGIN PUBLIC KEY-----\n" + base64.encodebytes(der) + b"-----END PUBLIC KEY-----\n"
    )
    (tmp_path / "signature").write_bytes(base64.b64decode(signature))

    def verify_with_openssl(body):
        (tmp_path / "message").write_bytes(f"msg_1.{headers['webhook-timestamp']}.".encode() + body)
        return subprocess.run(
            [*_OPENSSL, "-inkey", "public.pem", "-in", "message", "-sigfile", "signature"],
            cwd=tmp_path,
            capture_output=True,
        )

    done = verify_with_openssl(BODY)
    assert done.returncode == 0, done.stderr
    assert verify_with_openssl(BODY + b" ").returncode != 0


def test_header_has_both_schemes_while_a_receiver_migrates(tmp_path):
    make_secret(tmp_path / "key", ed25519=True)
    hook = hook_settings("http://a/", tmp_path)
    both = hook.model_copy(update={"secret_file": tmp_path / "key", "old_secret_file": hook.secret_file})
    headers = headers_of(both)
    assert [part.partition(",")[0] for part in headers["webhook-signature"].split()] == ["v1a", "v1"]
    assert Webhook(hook.secret_file.read_text().strip()).verify(BODY, headers)


def test_key_followed_by_its_public_half_is_the_same_key(tmp_path):
    public = make_secret(tmp_path / "key", ed25519=True).public_key
    seed = base64.b64decode((tmp_path / "key").read_text().strip().removeprefix("whsk_"))
    both_halves = seed + base64.b64decode(public.removeprefix("whpk_"))
    (tmp_path / "key").write_text("whsk_" + base64.b64encode(both_halves).decode())
    hook = hook_settings("http://a/", tmp_path, secret_file=tmp_path / "key")
    assert signers_of(hook)[0].public_key == public
    (tmp_path / "key").write_text("whsk_" + base64.b64encode(seed + seed).decode())
    with pytest.raises(BadRequest, match="belong to two"):
        signers_of(hook)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "begins with neither"),
        ("secret", "begins with neither"),
        ("whsec_%%%", "no base64"),
        ("whsec_c2hvcnQ=", "24 to 64 bytes"),
        ("whsk_c2hvcnQ=", "32 bytes"),
        ("whsec_ä", "holds no secret"),
    ],
)
def test_error_on_an_invalid_secret_does_not_quote_it(tmp_path, content, message):
    hook = hook_settings("http://a/", tmp_path)
    hook.secret_file.write_text(content)
    with pytest.raises(BadRequest, match=message) as refused:
        Receiver(hook)
    assert refused.value.reason == "WEBHOOK_SECRET"
    assert str(tmp_path) not in refused.value.message
    assert not content or content.removeprefix("whsec_") not in refused.value.message or content == "secret"


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604, 0o622, 0o660, 0o666])
def test_secret_readable_by_others_is_refused(tmp_path, mode):
    hook = hook_settings("http://a/", tmp_path)
    assert hook.secret_file.stat().st_mode & 0o777 == 0o600
    hook.secret_file.chmod(mode)
    with pytest.raises(BadRequest, match=r"chmod 600 queue\.secret"):
        Receiver(hook)
    hook.secret_file.chmod(0o400)
    Receiver(hook)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs to give a file to another user")
def test_mounted_secret_may_be_readable_by_its_group(tmp_path):
    hook = hook_settings("http://a/", tmp_path)
    os.chown(hook.secret_file, 10_001, -1)
    hook.secret_file.chmod(0o440)
    Receiver(hook)
    for mode in (0o444, 0o460):
        hook.secret_file.chmod(mode)
        with pytest.raises(BadRequest, match="may be read by others"):
            Receiver(hook)


def test_missing_secret_and_missing_authority_are_reported(tmp_path):
    hook = hook_settings("http://a/", tmp_path, ca_file=tmp_path / "none.pem")
    with pytest.raises(BadRequest, match="certificate authorities"):
        Receiver(hook)
    hook.secret_file.unlink()
    with pytest.raises(BadRequest, match="can't be read: No such file"):
        Receiver(hook)


def test_attempts_span_three_days_as_in_the_specification():
    assert AFTER_S == (5, 300, 1800, 7200, 18_000, 36_000, 50_400, 72_000, 86_400)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"name": "Queue"}, "name"),
        ({"events": ["verdict"]}, "memecourt.verdict.given"),
        ({"timeout": 60}, "30"),
        ({"events": []}, "at least 1"),
        ({"namespaces": []}, "at least 1"),
        ({"secret": "whsec_x"}, "secret"),
        ({"secret_file": None}, "secret_file"),
    ],
)
def test_invalid_webhook_settings_are_explained(tmp_path, wrong, message):
    with pytest.raises(ValidationError, match=message):
        hook_settings("https://hooks.example/", tmp_path, **wrong)


def test_names_of_receivers_must_be_unique(tmp_path):
    hook = hook_settings("http://a/", tmp_path)
    with pytest.raises(ValidationError, match="a name of its own"):
        Settings(webhooks=(hook, hook))


@pytest.fixture
def command_line(tmp_path, monkeypatch):
    """The webhooks command over a docket with one trial, with one configured receiver and one former one registered."""
    with running_receiver() as receiver:
        hook = hook_settings(receiver.url, tmp_path)
        lines = f'[[webhooks]]\nname = "queue"\nurl = "{hook.url}"\nsecret_file = "{hook.secret_file}"\n'
        (tmp_path / "memecourt.toml").write_text(lines + "allow_private = true\n")
        monkeypatch.setenv("MEMECOURT_CONFIG", str(tmp_path / "memecourt.toml"))
        monkeypatch.setenv("MEMECOURT_DOCKET", str(tmp_path / "docket.sqlite"))

        async def prepare():
            docket = Docket.open(tmp_path / "docket.sqlite")
            await docket.hooks.register(["queue", "former"])
            await append_all(docket, events_of("a"))
            await docket.close()

        asyncio.run(prepare())

        def run(*arguments, status=0):
            done = CliRunner().invoke(cli, ["webhooks", *arguments])
            assert done.exit_code == status, done.output
            return done.output

        yield run, receiver


def test_receivers_are_listed_with_state_and_position(command_line):
    run, receiver = command_line
    output = run("list")
    assert "queue  enabled  at entry 0 of " in output and receiver.url in output
    assert "former  not in the settings" in output
    lines = [json.loads(line) for line in run("list", "--json").splitlines()]
    assert [(line["name"], line["state"], line["waiting"]) for line in lines] == [
        ("queue", "enabled", 0),
        ("former", "not in the settings", 0),
    ]


def test_receivers_can_be_listed_despite_an_unusable_secret(command_line, tmp_path):
    run, _ = command_line
    (tmp_path / "queue.secret").chmod(0o644)
    assert "queue  enabled" in (output := run("list")) and "chmod 600" in output


def test_test_message_is_sent_at_once_and_its_result_is_printed(command_line):
    run, receiver = command_line
    assert "took it" in run("test", "queue")
    (message,) = receiver.messages()
    assert message["type"] == "memecourt.hook.test" and message["data"] == {}
    receiver.answer = lambda _: (500, {})
    assert "did not take it: status 500" in run("test", "queue", status=1)
    assert "There are: queue" in run("test", "nobody", status=1)


def test_receiver_can_be_enabled_and_replayed(command_line):
    run, _ = command_line
    assert "queue is enabled" in run("enable", "queue")
    run("replay", "queue", "--from", "3")
    assert "queue  enabled  at entry 3 of " in run("list")
    assert "at most" in run("replay", "queue", "--from", "9999", status=1)
    for command in (("enable", "nobody"), ("replay", "nobody", "--from", "0")):
        assert "knows no webhook nobody" in run(*command, status=1)
    run("replay", "queue", status=2)


def test_new_secret_is_private_and_never_overwritten(command_line, tmp_path):
    run, _ = command_line
    assert "holds the secret" in run("secret", str(tmp_path / "new"))
    assert (tmp_path / "new").stat().st_mode & 0o777 == 0o600
    assert "can't be made" in run("secret", str(tmp_path / "new"), status=1)
    assert run("secret", "--ed25519", str(tmp_path / "pair")).startswith("whpk_")
    assert (tmp_path / "pair").read_text().startswith("whsk_")
