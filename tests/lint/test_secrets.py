"""Secrets are found by format, by name and on command lines; and nothing that lint says repeats one."""

from __future__ import annotations

from pathlib import Path

import pytest

from runbook.lint.findings import REPORT_FORMATS, Report
from runbook.lint.run import lint
from runbook.model.secrets import is_secret_placeholder, is_secret_value, known_tokens, secret_kind

LETTERS = "AbCdEfGhIjKlMnOpQrStUvWxYz0123456789" * 2


def lint_text(text: str, tmp_path: Path) -> Report:
    file = tmp_path / "file.yml"
    file.write_text(text, encoding="utf-8")
    return lint([str(file)])


@pytest.mark.parametrize(
    "token",
    [
        "AKIA" + "ABCDEFGHIJKLMNOP",
        "ghp_" + LETTERS[:36],
        "github_pat_" + LETTERS[:60],
        "glpat-" + LETTERS[:20],
        "hf_" + LETTERS[:34],
        "sk-" + LETTERS[:48],
        "sk-proj-" + LETTERS[:48],
        "sk-ant-api03-" + LETTERS[:60],
        "xoxb-" + LETTERS[:30],
        "AIza" + LETTERS[:35],
        "nvapi-" + LETTERS[:60],
        "dckr_pat_" + LETTERS[:27],
        "glrt-" + LETTERS[:20],
        "tskey-auth-" + LETTERS[:17] + "-" + LETTERS[:32],
        ".".join(["eyJ" + LETTERS[:20], "eyJ" + LETTERS[:30], LETTERS[:40]]),
    ],
)
@pytest.mark.parametrize("place", ["env: {X: %s}", "# %s", "vars: {note: 'was %s, revoked'}"])
def test_a_token_is_known_by_its_format(token: str, place: str, tmp_path: Path) -> None:
    text = (place % token).replace("vars", "defaults: {vars").replace(
        "'}", "'}}"
    ) + "\nnodes: {node-a: {address: 10.0.0.1}}\n"
    report = lint_text(text, tmp_path)
    assert [finding.rule.id for finding in report.findings] == ["secret.token"]
    (span,) = [finding.span for finding in report.findings]
    assert text.splitlines()[span.line - 1][span.column - 1 :][: span.length] == token
    assert token not in report.findings[0].message + (report.findings[0].help or "")


@pytest.mark.parametrize(
    "text",
    [
        "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
        "task-0123456789-abcdefghijklmnopqrstuvwxyz",
        "sk-learn",
        "hf_hub",
        "hf_" + "models/bert",
        "/data/AKIA",
        "meta-llama/Llama-3.1-8B",
    ],
)
def test_other_words_are_no_tokens(text: str) -> None:
    assert list(known_tokens(text)) == []


@pytest.mark.parametrize(
    "name",
    ["DB_PASSWORD", "password", "dbPassword", "db-passwd", "SSH_PASSPHRASE", "ansible_become_pass", "PGPASSWORD"],
)
def test_a_password_may_be_any_word(name: str) -> None:
    assert is_secret_value(name, "hunter2")
    assert not is_secret_value(name, "$PASSWORD")


@pytest.mark.parametrize(
    "name", ["HF_TOKEN", "hfToken", "WANDB_API_KEY", "apiKey", "AWS_SECRET_ACCESS_KEY", "client-secret"]
)
def test_a_token_looks_like_one(name: str) -> None:
    assert is_secret_value(name, "a1b2c3d4e5f6a7b8c9d0")
    assert not is_secret_value(name, "/run/secrets/token")
    assert not is_secret_value(name, "<|endoftext|>")


@pytest.mark.parametrize(
    "name",
    [
        "TOKENIZERS_PARALLELISM",
        "max_tokens",
        "TOKEN_FILE",
        "PASSWORD_FILE",
        "NOPASSWD",
        "sort_key",
        "key",
        "PWD",
        "pass",
        "KEYRING",
        "",
        "_",
    ],
)
def test_names_of_something_else(name: str) -> None:
    assert secret_kind(name) is None


@pytest.mark.parametrize(
    "text", ["***", "xxx", "<token>", "$TOKEN", "${TOKEN}", "%TOKEN%", "{{ token }}", "changeme", "your-token", "none"]
)
def test_what_stands_for_a_secret(text: str) -> None:
    assert is_secret_placeholder(text)


@pytest.mark.parametrize(
    ("stage", "secrets"),
    [
        ("{launch: {command: [train.py, --db-password, hunter2]}}", ["hunter2"]),
        ("{launch: {command: [train.py, --password=hunter2]}}", ["--password=hunter2"]),
        ("{launch: {command: [train.py, --password, --verbose]}}", []),
        ("{launch: {command: [train.py, --password-file, hunter2, --max-tokens, 4096, --tokenizer, gpt2]}}", []),
        ("{launch: {command: [train.py], env: {DB_PASSWORD: hunter2}}}", ["hunter2"]),
        ("{shell: curl --password hunter2 -O x.example}", ["hunter2"]),
        ("{shell: DB_PASSWORD=hunter2 ./fetch}", ["hunter2"]),
        ("{shell: ./fetch --password $PASSWORD --token-file ~/.token}", []),
        ("{shell: sshpass -p hunter2 ssh node-b true}", ["hunter2"]),
        ("{shell: sshpass -e ssh node-b true}", []),
        ("{shell: sshpass -p <password> ssh node-b true && sshpass -p '<password>' ssh node-c true}", []),
        ("{shell: 'sshpass -p \"$PASSWORD\" ssh node-b true && sshpass -p $PASSWORD ssh node-c true'}", []),
        ("{shell: docker login -u ada -p hunter2 nvcr.io}", ["hunter2"]),
        ("{shell: docker login -u ada --password-stdin nvcr.io < /run/key}", []),
        ("{shell: docker login -u ada -p $KEY nvcr.io && docker run -p 8080:80 x}", []),
        ("{shell: wandb login 0123456789abcdef0123456789abcdef01234567}", ["0123456789abcdef0123456789abcdef01234567"]),
        ("{shell: curl -s -u ada:hunter2 https://git.example}", ["hunter2"]),
        ("{shell: curl -u $LOGIN https://git.example -u ada:$PASSWORD}", []),
        ("{shell: \"curl -H 'Authorization: Bearer hunter2hunter2' x.example\"}", ["hunter2hunter2"]),
        ("{shell: \"curl -H 'Authorization: Bearer $TOKEN' x.example\"}", []),
        ("{launch: {command: [train.py, --password hunter2]}}", ["hunter2"]),
        ("{shell: git clone https://ada:hunter2@git.example/x}", ["hunter2"]),
        ("{shell: git clone https://ada@git.example/x && git clone ssh://git@git.example:22/a:b@c}", []),
    ],
)
def test_commands(stage: str, secrets: list[str], tmp_path: Path) -> None:
    text = f"stages:\n  - {stage}\n"
    report = lint_text(text, tmp_path)
    spans = [finding.span for finding in report.findings if finding.rule.id.startswith("secret.")]
    assert [text.splitlines()[span.line - 1][span.column - 1 :][: span.length] for span in spans] == secrets


def test_nothing_that_is_printed_shows_a_secret(tmp_path: Path) -> None:
    token = "hf_" + LETTERS[:34]
    report = lint_text(
        f"""# {token}
env: {{DB_PASSWORD: hunter2, HF_TOKEN: {token}, NCCL_DEBG: INFO}}
nodes: {{node-a: {{address: 10.0.0.1}}}}
""",
        tmp_path,
    )
    ids = [finding.rule.id for finding in report.findings if finding.rule.id.startswith("secret.")]
    assert ids == ["secret.token", "secret.value", "secret.token"]
    for name, write in REPORT_FORMATS.items():
        shown = write(report)
        assert "NCCL_DEBG" in shown, name
        assert "hunter2" not in shown, name
        assert token not in shown, name


@pytest.mark.parametrize(
    "text",
    [
        "env: {{NCCL_DEBUG: {token}}}\nnodes: {{node-a: {{}}}}\n",
        "env: {{NCCL_SOCKET_IFNAME: '{token} '}}\nnodes: {{node-a: {{}}}}\n",
        "env: {{NCCL_ALGO: {token}{token}}}\nnodes: {{node-a: {{}}}}\n",
        "nodes: {{{token}: {{adress: 10.0.0.1}}}}\n",
        "nodes: {{node-a: {{address: 'http://bob:{token}@10.0.0.1'}}}}\n",
        "stages:\n  - check: {token}\n",
        "stages:\n  - {{check: ping, timeout: {token}}}\n",
        "stages:\n  - {{shell: 'watch --token {token}'}}\n",
        "stages:\n  - {{shell: 'watch --password={token}'}}\n",
        "stages:\n  - {{launch: {{command: ['python x.py --token {token}']}}}}\n",
        "stages:\n  - {{launch: {{command: [x.py, '--password {token}']}}}}\n",
        "vars: {{x: '{{{{ {token} }}}}'}}\nstages:\n  - {{check: ping}}\n",
        "nodes: {{node-a: {{}}\nenv: {{HF_TOKEN: {token}}}\n",
    ],
)
def test_no_other_rule_quotes_a_secret(text: str, tmp_path: Path) -> None:
    """Whoever finds fault with a value names it; some values are secrets, whatever else is wrong with them."""
    token = "hf_" + LETTERS[:34]
    report = lint_text(text.format(token=token), tmp_path)
    assert any(finding.rule.id.startswith("secret.") for finding in report.findings)
    assert any(not finding.rule.id.startswith("secret.") for finding in report.findings)
    for name, write in REPORT_FORMATS.items():
        assert token[:12] not in write(report), name
