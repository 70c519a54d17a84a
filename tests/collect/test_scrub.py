"""No secret and no name gets through, however it is written; what is neither stays; JSON stays JSON, YAML stays YAML."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import cast
from urllib.parse import quote

import pytest
import yaml
from hypothesis import assume, example, given
from hypothesis import strategies as st
from profiles import examples

from runbook.collect.archive import Absent, ArchiveFile
from runbook.collect.local_files import CollectedRun, run_entries
from runbook.collect.pseudonyms import is_technical_word
from runbook.collect.scrub import REDACTED_TEXT, Scrubber
from runbook.model.decoded_text import View, decoded_views, fully_decoded_text

LETTERS = "AbCdEfGhIjKlMnOpQrStUvWxYz0123456789" * 2
SECRET = "s3cr3t/0815"


def scrub(text: str, *secrets: str) -> str:
    scrubber = Scrubber(secrets)
    scrubber.learn(text)
    return scrubber.text(text)


# Secrets that are known.

printable = st.text(st.characters(codec="utf-8", exclude_categories=("Cc", "Cs", "Zl", "Zp")), min_size=4, max_size=24)
secrets = printable.filter(lambda text: len(text.strip()) >= 4 and len(set(text) - set("\"'\\` ")) >= 4)


def escaped(text: str) -> str:
    return "".join(f"\\u{ord(char):04x}" if ord(char) < 0x10000 else json.dumps(char)[1:-1] for char in text)


WRITTEN: Mapping[str, Callable[[str], str]] = {
    "plain": lambda text: text,
    "json": lambda text: json.dumps(text),
    "json of json": lambda text: json.dumps(json.dumps(text)),
    "json, every character": lambda text: f'"{escaped(text)}"',
    "json, every second character": lambda text: "".join(
        escaped(c) if i % 2 else json.dumps(c)[1:-1] for i, c in enumerate(text)
    ),
    "json, slashes": lambda text: json.dumps(text).replace("/", "\\/"),
    "percent": lambda text: "https://example.org/?q=" + quote(text, safe=""),
    "percent in json": lambda text: json.dumps({"url": "https://example.org/" + quote(text, safe="")}),
    "shell": shlex.quote,
    "shell in shell": lambda text: shlex.join(["sh", "-c", shlex.join(["echo", text])]),
    "shell in json": lambda text: json.dumps(["sh", "-c", shlex.join(["echo", text])]),
    "shell, the other way": lambda text: "'" + text.replace("'", "'\\''") + "'",
    "python": repr,
    "bytes": lambda text: repr(text.encode()),
}


@pytest.mark.parametrize("form", WRITTEN)
@examples(80)
@given(secret=secrets)
@example(secret=SECRET)
@example(secret='it\'s "x" \\n %41 a')
@example(secret="C:\\new\\table")
def test_a_known_secret_is_gone_however_it_is_written(form: str, secret: str) -> None:
    assume(
        secret not in REDACTED_TEXT and secret not in "before after"
    )  # what takes its place, and what stands around it
    text = f"before {WRITTEN[form](secret)} after"
    scrubbed = scrub(text, secret)
    assert REDACTED_TEXT in scrubbed
    for view in decoded_views(scrubbed):
        assert secret not in view.text, scrubbed
    assert fully_decoded_text(secret) not in fully_decoded_text(scrubbed)
    assert scrubbed.startswith("before ")


@pytest.mark.parametrize(
    "text", ["s3c'r3t'/0815", 's3c""r3t/0815', "s3c\\r3t/0815", "s3c\x1b[1mr3t\x1b[0m/0815", "$'s3cr3t\\x2f0815'"]
)
def test_a_known_secret_in_pieces(text: str) -> None:
    assert "0815" not in scrub(text, SECRET)


@examples(200)
@given(text=st.text(st.sampled_from("ab\\u0041%2'\"x&;lt\n"), max_size=40))
def test_places_in_a_view_lead_back_to_the_text(text: str) -> None:
    for view in decoded_views(text):
        for at in range(len(view.text)):
            start, end = view.raw(at, at + 1)
            assert 0 <= start < end <= len(text)
        if view.text:
            assert view.raw(0, len(view.text))[1] <= len(text)
    assert next(decoded_views(text)).text == text
    assert View(text).raw(0, max(1, len(text))) == (0, max(1, len(text)))


# What looks like one.

LOOKS = {
    "aws": f"key AKIA{LETTERS[:16].upper()} x",
    "aws secret": "aws_secret_access_key = wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
    "github": f"remote: ghp_{LETTERS[:36]}",
    "hugging face": f"HF_TOKEN=hf_{LETTERS[:34]} python train.py",
    "w&b": 'export WANDB_API_KEY="0123456789abcdef0123456789abcdef01234567"',
    "short token": "API_TOKEN: abcdefg1",
    "url": "pip install --index-url https://bob:PLANTED@pypi.corp/simple",
    "url with an at": "postgres://u:PLANT@ED/PLANTED@db:5432/x",
    "url with a token": f"git clone https://{LETTERS[:30]}@host/x",
    "bearer": "curl -H 'Authorization: Bearer PLANTED.PLANTED'",
    "header in json": '{"headers": {"Authorization": "Basic UExBTlRFRA=="}}',
    "cookie": "Set-Cookie: session=PLANTED; Path=/; id=PLANTED",
    "x-api-key": "X-Api-Key: PLANTED1234",
    "flag": "train.py --password PLANTED --epochs 3",
    "flag with =": "train.py --db-password=PLANTED --epochs 3",
    "flag in json": '["train.py", "--api-key", "PLANTED"]',
    "sentence": "password: PLANTED PLANTED PLANTED",
    "python dict": "{'user': 'x', 'password': 'PLANTED, PLANTED'}",
    "netrc": "machine h login me password PLANTED",
    "setenv": "setenv SECRET_TOKEN PLANTED",
    "curl": "curl -u me:PLANTED https://h",
    "sshpass": "sshpass -p PLANTED ssh h",
    "postgres": "PGPASSWORD=PLANTED psql -h db",
    "docker login": "docker login -u me -p PLANTED nvcr.io",
    "podman login": "podman login nvcr.io -pPLANTED -u me",
    "wandb login": "wandb login --relogin 0123456789abcdef0123456789abcdef01234567",
    "aws configure": "aws configure set aws_secret_access_key wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
    "setx": "setx WANDB_API_KEY 0123456789abcdef0123456789abcdef01234567",
    "sudo": "echo PLANTED | sudo -S ls",
    "signed url": "https://s3/x?X-Amz-Signature=PLANTEDPLANTED01&y=1",
    "nested": "args=--token=PLANTED99 ok",
    "escaped json": '{"msg": "{\\"password\\": \\"PLANTED\\"}"}',
    "key": "-----BEGIN OPENSSH PRIVATE KEY-----\nPLANTED\nPLANTED\n-----END OPENSSH PRIVATE KEY-----",
    "key on one line": '"-----BEGIN RSA PRIVATE KEY-----\\nPLANTED\\nPLANTED\\n-----END RSA PRIVATE KEY-----\\n"',
    "key without an end": "-----BEGIN PRIVATE KEY-----\nPLANTED\nPLANTED\n",
    "end of a key": "PLANTEDPLANTEDPLANTED\nPLANTEDPLANTED00\n-----END PRIVATE KEY-----\n",
    "putty": "PuTTY-User-Key-File-3: ssh-ed25519\nPrivate-Lines: 1\nPLANTED\nPrivate-MAC: PLANTED\n",
}  # fmt: skip


@pytest.mark.parametrize("name", LOOKS)
@pytest.mark.parametrize("around", ["%s", "[rank0]: %s\nnext line", "\x1b[31m%s\x1b[0m"])
def test_what_looks_like_a_secret_is_gone(name: str, around: str) -> None:
    scrubbed = scrub(around % LOOKS[name])
    for planted in (
        "PLANTED",
        "PLANT@",
        LETTERS[:16].upper(),
        LETTERS[:30],
        "wJalr",
        "0123456789abcdef",
        "abcdefg1",
        "UExB",
    ):
        assert planted not in scrubbed, scrubbed
    assert REDACTED_TEXT in scrubbed
    if name != "key without an end":  # whose end nobody can tell from words that follow it
        assert ("next line" in scrubbed) == ("next line" in around)


@pytest.mark.parametrize(
    "text",
    [
        "NCCL INFO NET/Socket : Using [0]eth0:10.0.0.1<0>",
        "tokens: 4096, max_token=2048 next_token=17 pad_token='<pad>'",
        "PasswordAuthentication no",
        "sudo: a password is required",
        "ada ALL=(ALL) NOPASSWD: ALL",
        "docker login -u me --password-stdin nvcr.io; docker run -p 8080:80 x; docker login -p $NGC_KEY nvcr.io",
        "wandb login --relogin; wandb: Currently logged in as: x",
        "PWD=/tmp KEY=1 keyboard=us monkey=12",
        "http://10.0.0.1:29500/path and tcp://node-a:29500 user@host",
        "auth: none, method publickey, WANDB_API_KEY=$WANDB_API_KEY --token ${TOKEN} {{ token }} TOKEN: {env: HF_TOKEN}",
        "commit 0123456789abcdef0123456789abcdef01234567",
        "GPU-5f6b1c9e-8a51-5d0e-9f1a-0c3f6f1e2a01 0000:3b:00.0",
        "chacha20-poly1305@openssh.com getty@tty1.service",
        "password: REDACTED",
    ],
)
def test_what_is_no_secret_stays(text: str) -> None:
    assert scrub(text, SECRET) == text


# People.


def test_one_person_has_one_name_everywhere() -> None:
    scrubber = Scrubber()
    scrubber.people.add("jdoe", "Jane Doe", home="/data/home/jane.doe")
    scrubber.people.add("mallory")
    text = "jdoe /home/jdoe/x /data/home/jane.doe JDOE Jane Doe jdoe@node-a jdoes xjdoe mallory_run mallory's C:\\Users\\mallory"
    scrubber.learn(text)
    assert scrubber.text(text) == (
        "user1 /home/user1/x /data/home/user1 user1 user1 user1@node-a jdoes xjdoe user2_run user2's C:\\Users\\user2"
    )


def test_names_are_learnt_from_paths_and_found_in_other_texts() -> None:
    scrubber = Scrubber()
    scrubber.learn('{"path": "\\/home\\/zoe\\/x"}')
    scrubber.learn("/home/data/imagenet /home/ubuntu/x /home/runner/work")
    assert scrubber.text("zoe started it; data of ubuntu") == "user1 started it; data of ubuntu"
    assert scrubber.text("/home/data/imagenet") == "/home/user2/imagenet"
    assert scrubber.text("/home/ubuntu/x") == "/home/ubuntu/x"


@pytest.mark.parametrize(
    ("path", "name", "hidden"),
    [
        (r"C:\Users\Jane Doe\x.py", "Jane Doe", r"C:\Users\user1\x.py"),
        (r"D:/Users/Jane van der Berg/x", "Jane van der Berg", r"D:/Users/user1/x"),
        (r"C:\Users\Émile\x.py", "Émile", r"C:\Users\user1\x.py"),
        ("/home/örjan/x", "örjan", "/home/user1/x"),
        ("/home/张伟/x", "用户张伟登录", "/home/user1/x"),
        (r"C:\Users\zoe C:\x", "zoe", r"C:\Users\user1 C:\x"),
    ],
)
def test_homes_of_any_letters_and_of_whole_names(path: str, name: str, hidden: str) -> None:
    scrubber = Scrubber()
    scrubber.learn(path)
    assert scrubber.text(path) == hidden
    assert scrubber.text(name) in ("user1", "用户user1登录")
    assert scrubber.json(json.dumps({"x": path})) == json.dumps({"x": hidden})


def test_mail_addresses() -> None:
    text = "From Jane.Doe+x@corp.example.net to a@b.io, again jane.doe+x@corp.example.net"
    assert scrub(text) == "From mail1@example.org to mail2@example.org, again mail1@example.org"


names = st.from_regex(r"[a-z][a-z0-9]{5,10}", fullmatch=True).map(lambda name: f"q{name}")


@examples(100)
@given(name=names, form=st.sampled_from(sorted(WRITTEN)))
def test_no_user_name_survives_as_a_word(name: str, form: str) -> None:
    assume(not is_technical_word(name))  # such as `qp00000`: found as a login only
    scrubber = Scrubber()
    scrubber.people.add(name)
    text = f"x {WRITTEN[form](name)} /home/{name}/y {name}@h \\n{name} uid=1({name})"
    for view in decoded_views(scrubber.text(text)):
        assert name not in view.text


# Structures.

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=12) | st.just(SECRET) | st.just(f"x{SECRET}y"),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8) | st.just(SECRET) | st.just("password"), inner, max_size=4),
    max_leaves=12,
)  # fmt: skip


@examples(200)
@given(value=values, ascii_only=st.booleans())
def test_json_stays_json_without_the_secret(value: object, ascii_only: bool) -> None:
    scrubbed = Scrubber([SECRET]).json(json.dumps(value, ensure_ascii=ascii_only))
    json.loads(scrubbed)
    assert SECRET not in fully_decoded_text(scrubbed)


def test_json_lines_of_which_one_is_broken_off() -> None:
    text = json.dumps({"token": "abcdefg", "n": 1}) + "\n" + '{"text": "s3cr3t\\/0815", "and'
    first, second = Scrubber([SECRET]).json_lines(text).splitlines()
    assert json.loads(first) == {"token": REDACTED_TEXT, "n": 1}
    assert second == '{"text": "REDACTED", "and'


def test_what_a_name_does_to_keys_of_ours() -> None:
    """Somebody called `verdict` must not make a result unreadable."""
    scrubber = Scrubber(["fail"])
    scrubber.people.add("verdict")
    scrubbed = scrubber.json('{"verdict": "pass", "x": "verdict", "user": "verdict", "y": "/home/verdict/x"}')
    assert json.loads(scrubbed) == {"verdict": "pass", "x": "verdict", "user": "user1", "y": "/home/user1/x"}


INVENTORY = """\
# of jdoe; password: hunter2 hunter3
name: mine
defaults: {ssh: {user: jdoe, key: /home/jdoe/.ssh/id}, env: {NCCL_DEBUG: INFO, TOKEN: {env: HF_TOKEN}}}
env:
  DB_PASSWORD: it*s mine, really
  API_KEY: "abc\\x64efg"  # kept
  SIGNING_KEY: |
    line one
    line two
  OTHER: s3cr3t/0815
vars: {auth_token: 'it''s'}
nodes: {node-a: {address: 10.0.0.1, activate: "login --password hunter2 {x}"}}
"""


def test_yaml_stays_yaml_with_its_comments() -> None:
    scrubber = Scrubber([SECRET])
    scrubber.people.add("jdoe")
    text = scrubber.yaml(INVENTORY, "inventory.yml")
    loaded = yaml.safe_load(text)
    assert loaded["env"] == {
        "DB_PASSWORD": REDACTED_TEXT,
        "API_KEY": REDACTED_TEXT,
        "SIGNING_KEY": REDACTED_TEXT,
        "OTHER": REDACTED_TEXT,
    }
    assert loaded["vars"] == {"auth_token": REDACTED_TEXT}
    assert loaded["defaults"]["env"] == {"NCCL_DEBUG": "INFO", "TOKEN": {"env": "HF_TOKEN"}}
    assert loaded["defaults"]["ssh"] == {"user": "user1", "key": "/home/user1/.ssh/id"}
    for planted in ("hunter", "jdoe", "abc", "line one", "mine, really", "s3cr3t"):
        assert planted not in text
    assert "# of user1" in text
    assert "# kept" in text


def test_yaml_that_would_not_load_any_more_is_written_anew() -> None:
    """`user` is a key of ours and here a name as well."""
    scrubber = Scrubber(["nodes"])
    text = scrubber.yaml("name: x # nodes\nnodes: {node-a: {address: nodes.lab}}\n", "inventory.yml")
    assert yaml.safe_load(text) == {"name": "x", "nodes": {"node-a": {"address": f"{REDACTED_TEXT}.lab"}}}


@examples(100)
@given(
    value=st.dictionaries(
        st.sampled_from(["name", "password", "x"]), st.text(max_size=20) | st.just(SECRET), min_size=1
    )
)
def test_yaml_of_anything_loads(value: dict[str, str]) -> None:
    source = yaml.safe_dump(value, allow_unicode=True)
    text = Scrubber([SECRET]).yaml(source, "x.yml")
    assert SECRET not in fully_decoded_text(text)
    assert set(yaml.safe_load(text)) == set(value)


def test_what_was_seen_of_ranks_that_hang_is_there_or_said_to_be_left_out(tmp_path: Path) -> None:
    (tmp_path / "hang").mkdir()
    (tmp_path / "hang" / "rank-00000.stack").write_text("train.py:7 in step")
    (tmp_path / "hang" / "look.json").write_text('{"state": "S"}')
    (tmp_path / "hang" / "record.pkl").write_bytes(b"\x80\x04\x00\x00")
    found = list(run_entries(cast(CollectedRun, SimpleNamespace(path=tmp_path))))
    entries = {one.path if isinstance(one, ArchiveFile) else one.what: one for one in found}
    assert {type(entries[f"run/hang/{name}"]) for name in ("rank-00000.stack", "look.json")} == {ArchiveFile}
    assert isinstance(entries["run/hang/record.pkl"], Absent)
