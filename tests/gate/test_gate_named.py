"""pip, npm and apt: the rules are the indexes that the host's own clients use, and nothing else."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from caisson_gate.load import load
from caisson_gate.named import Client, named_rules
from caisson_gate.policy import PolicyError
from caisson_gate.rules import Rule
from hypothesis import given
from hypothesis import strategies as st


def client(
    root: Path, files: dict[str, str] | None = None, answers: dict[str, str] | None = None, **env: str
) -> Client:
    """A host with these files; ``answers`` are what its clients say, by program."""
    for name, text in (files or {}).items():
        path = root / name.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return Client({"HOME": "/home/me", **env}, root, lambda command: (answers or {}).get(command[0], ""))


def reached(rules: list[Rule] | None) -> list[tuple[str, tuple[int, ...], str, str]]:
    assert rules is not None
    return [
        (rule.hosts[0].text, tuple(sorted(rule.ports or ())), rule.paths[0].text, rule.index)
        for rule in rules
    ]  # fmt: skip


PYTHON = {"python3": "https://index.test/simple https://files.test/\n"}


def test_pip_without_settings_is_its_own_default_with_its_files(tmp_path: Path) -> None:
    assert reached(named_rules("pip", client=client(tmp_path, answers=PYTHON))) == [
        ("index.test", (443,), "/**", "pypi"),
        ("files.test", (443,), "/**", "files"),
    ]


def test_pip_with_an_index_of_its_own_reaches_that_and_no_default(tmp_path: Path) -> None:
    files = {"/etc/pip.conf": "[global]\nindex-url = https://me:secret@mirror.test:8443/python/simple/\n"}
    rules = named_rules("pip", client=client(tmp_path, files, PYTHON))
    assert reached(rules) == [("mirror.test", (8443,), "/python/**", "pypi")]
    assert "secret" not in repr(rules)


def test_pip_takes_user_files_extra_indexes_and_variables(tmp_path: Path) -> None:
    files = {
        "/home/me/.config/pip/pip.conf": "[install]\nextra-index-url =\n  https://extra.test/simple\n  file:///srv/x\n",
        "/etc/pip.conf": "broken [",
    }
    env = {"PIP_INDEX_URL": "http://plain.test/root/pypi/+simple/", "UV_INDEX": "own=https://uv.test/simple"}
    assert reached(named_rules("pip", client=client(tmp_path, files, PYTHON, **env))) == [
        ("plain.test", (80,), "/root/pypi/+simple/**", "pypi"),
        ("extra.test", (443,), "/**", "pypi"),
        ("uv.test", (443,), "/**", "pypi"),
    ]


def test_an_index_set_to_the_default_keeps_its_files(tmp_path: Path) -> None:
    found = named_rules("pip", client=client(tmp_path, answers=PYTHON, PIP_INDEX_URL="https://index.test/simple"))
    assert [rule.index for rule in found or ()] == ["pypi", "files"]


def test_npm_is_what_it_says_it_uses_with_the_registries_of_scopes(tmp_path: Path) -> None:
    told = json.dumps({"registry": "https://registry.test/", "@team:registry": "https://team.test/npm/", "x": 1})
    files = {"/home/me/.npmrc": "@other:registry=https://other.test/\n//other.test/:_authToken=secret\n"}
    rules = named_rules("npm", client=client(tmp_path, files, {"npm": told}))
    assert reached(rules) == [
        ("registry.test", (443,), "/**", "npm"),
        ("team.test", (443,), "/npm/**", "npm"),
        ("other.test", (443,), "/**", "npm"),
    ]
    assert "secret" not in repr(rules)


def test_apt_is_every_enabled_source_in_either_form(tmp_path: Path) -> None:
    files = {
        "/etc/apt/sources.list": "# deb http://off.test/x s main\n"
        "deb [arch=amd64 signed-by=/k] http://one.test/debian s main\n",
        "/etc/apt/sources.list.d/two.list": "deb-src https://two.test/debian/ s main\ndeb cdrom:[x]/ s main\n",
        "/etc/apt/sources.list.d/three.sources": "Types: deb\nURIs: http://three.test/a\n https://four.test/b\n\n"
        "Enabled: no\nTypes: deb\nURIs: http://off.test/\n",
        "/etc/apt/sources.list.d/five.sources.disabled": "Types: deb\nURIs: http://off.test/\n",
        "/etc/apt/sources.list.d/six.list": "deb mirror+http://six.test/list s main\n",
    }
    assert reached(named_rules("apt", client=client(tmp_path, files))) == [
        ("one.test", (80,), "/debian/**", "apt"),
        ("six.test", (80,), "/list/**", "apt"),
        ("two.test", (443,), "/debian/**", "apt"),
        ("three.test", (80,), "/a/**", "apt"),
        ("four.test", (443,), "/b/**", "apt"),
    ]


@pytest.mark.parametrize("name", ["pip", "npm", "apt"])
def test_a_host_without_the_client_says_so(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match="write rules of your own"):
        named_rules(name, client=client(tmp_path))


@pytest.mark.parametrize(
    "url", ["https://localhost/simple", "https://[::1/simple", "https://a b/simple", "https://x.test/a%2fb/simple"]
)
def test_an_index_that_no_rule_can_be_for_is_named_without_its_credential(tmp_path: Path, url: str) -> None:
    with pytest.raises(ValueError, match="cannot be made") as caught:
        named_rules("pip", client=client(tmp_path, PIP_INDEX_URL=url.replace("https://", "https://u:secret@")))
    assert "secret" not in str(caught.value)


def test_another_name_is_no_named_bundle(tmp_path: Path) -> None:
    assert named_rules("docs-basic", client=client(tmp_path)) is None


@pytest.mark.parametrize("name", ["pip", "npm", "apt"])
def test_on_this_host_a_policy_with_it_loads_or_says_why_not(tmp_path: Path, name: str) -> None:
    if shutil.which({"pip": "python3", "npm": "npm", "apt": "apt-get"}[name]) is None:
        pytest.skip(f"{name} is not installed here")
    path = tmp_path / "p.toml"
    path.write_text(f'schema = "caisson.gate/v1"\nnetwork_mode = "allowlist"\nbundles = ["{name}"]')
    try:
        assert load(path).allow
    except PolicyError as error:
        assert f"'{name}'" in str(error)


@given(st.text(max_size=80), st.text(max_size=80))
def test_any_settings_make_rules_or_an_error_that_says_so(one: str, two: str) -> None:
    for answers in ({"python3": one, "npm": two}, {"npm": json.dumps({"registry": one})}):
        odd = Client(
            {"PIP_EXTRA_INDEX_URL": two}, Path("/nonexistent"), lambda command, told=answers: told.get(command[0], "")
        )  # type: ignore[misc]
        for name in ("pip", "npm", "apt"):
            try:
                named_rules(name, client=odd)
            except ValueError:
                pass
