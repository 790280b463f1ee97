"""The programs people use, unchanged, in a real box: each trusts the gate, is let through, recorded, and refused."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest
from gate_rig import HEAD, Boxed, Rig
from http_rig import echo, hello
from origins import apt_archive, git_host, npm_registry, python_index, repository

WEB = HEAD + '[[allow]]\nid = "web"\nhosts = ["web.test"]\nports = [80, 443]\nmethods = ["GET", "POST"]\n'
INDEX = HEAD + '[[allow]]\nid = "index"\nhosts = ["index.test"]\nindex = "pypi"\n'
PIP = (
    "/usr/bin/python3 -m pip -q --no-cache-dir --disable-pip-version-check install"
    " --root-user-action ignore --index-url https://index.test/simple/"
)
VERSION = "PYTHONPATH=/tmp/t python3 -c 'import caissonthing; print(caissonthing.VERSION)'"


def need(program: str) -> str:
    """The path of a program of the host's own, which is in the box too."""
    found = shutil.which(program, path="/usr/bin:/bin")
    if found is None:
        pytest.skip(f"{program} is not installed here")
    return found


def allowed(boxed: Boxed) -> list[str]:
    return [one["url"] for one in boxed.events("http") if one["verdict"] == "allow"]


def refused(boxed: Boxed) -> list[tuple[str, str]]:
    return [(one["url"], one["reason_code"]) for one in boxed.events("http") if one["verdict"] == "deny"]


CLIENTS = {
    "curl": "curl -sS {url}",
    "wget": "wget -qO- {url}",
    "openssl": "printf 'GET {path} HTTP/1.1\\r\\nHost: web.test\\r\\nConnection: close\\r\\n\\r\\n'"
    " | openssl s_client -quiet -verify_return_error -connect web.test:443 -servername web.test 2>/dev/null",
    "python3": "python3 -c 'import urllib.request as r; print(r.urlopen(\"{url}\").read().decode())'",
    "node": "node -e 'fetch(\"{url}\").then(r => r.text()).then(t => console.log(t))'",
}


@pytest.mark.parametrize("client", CLIENTS)
async def test_common_clients_get_an_allowed_page_with_the_certificate_checked(
    local_rig: Rig, nonce: str, client: str
) -> None:
    need(client)
    async with local_rig.world.upstream("web.test", hello) as outside, local_rig.one(WEB) as boxed:
        path = f"/{nonce}"
        done = await boxed.sh(CLIENTS[client].format(url=f"https://web.test{path}", path=path))
        assert b"hello from outside" in done.stdout, done.stderr
        assert outside.heads[0].split()[1] == path.encode()
        assert allowed(boxed) == [f"https://web.test{path}"]


async def test_curl_speaks_http2_posts_and_is_told_why_it_is_refused(local_rig: Rig, nonce: str) -> None:
    need("curl")
    async with local_rig.world.upstream("web.test", echo) as outside, local_rig.one(WEB, record=True) as boxed:
        done = await boxed.sh(
            f"curl -sS --http2 -o /dev/null -w '%{{http_version}}' -d body-{nonce} https://web.test/p"
        )
        assert done.stdout == b"2", done.stderr
        assert f"body-{nonce}".encode() in outside.seen
        done = await boxed.sh("curl -sS -i -X DELETE https://web.test/p")
        assert b"403" in done.stdout.splitlines()[0] and b"method_not_allowed" in done.stdout
        sent = next(one for one in boxed.events("http-done") if one.get("req_len"))
        assert (boxed.folder / "bodies" / sent["req_sha256"]).read_bytes() == f"body-{nonce}".encode()


async def test_a_big_upload_to_a_refused_path_ends_early(local_rig: Rig) -> None:
    need("curl")
    async with local_rig.world.upstream("web.test", echo) as outside, local_rig.one(WEB) as boxed:
        line = "head -c 300000000 /dev/zero | curl -sS -T - -o /dev/null -w '%{http_code} %{size_upload}' https://web.test/"
        done = await boxed.sh(line)
        code, size = done.stdout.split()
        assert code == b"403" and int(size) < 100_000_000 and not outside.seen


async def test_the_proxy_variables_lead_to_the_same_rules(local_rig: Rig, nonce: str) -> None:
    need("curl")
    async with local_rig.world.upstream("web.test", hello), local_rig.one(WEB) as boxed:
        for proxy in ("", "-x http://127.0.0.1:3128 "):
            done = await boxed.sh(
                f"curl -sS {proxy}https://web.test/{nonce}; curl -sS {proxy}https://other.test/; true"
            )
            assert b"hello from outside" in done.stdout, done.stderr
        rules = [one["rule"] for one in boxed.events("http") if one["url"].endswith(nonce)]
        assert rules == ["web", "web"]


async def test_pip_installs_an_old_version_under_a_cut_off(local_rig: Rig) -> None:
    need("pip3")
    versions = {"1.0": "2024-01-01T00:00:00Z", "2.0": "2026-01-01T00:00:00Z"}
    policy = INDEX + "[time]\ncutoff = 2025-03-01T00:00:00Z\n"
    async with local_rig.world.upstream("index.test", python_index("index.test", versions)):
        async with local_rig.one(policy, record=True) as boxed:
            done = await boxed.sh(f"{PIP} --target /tmp/t caissonthing && {VERSION}")
            assert done.stdout == b"1.0\n", done.stderr
            newer = "https://index.test/files/caissonthing-2.0-py3-none-any.whl"
            assert b"undated" in (await boxed.sh(f"curl -sS {newer}")).stdout
            assert any("/files/caissonthing-1.0" in url for url in allowed(boxed))


async def test_uv_installs_too(local_rig: Rig) -> None:
    uv = Path(sys.executable).with_name("uv")
    if not uv.exists():
        pytest.skip("uv is not in this environment")
    versions = {"1.0": "2024-01-01T00:00:00Z"}
    async with local_rig.world.upstream("index.test", python_index("index.test", versions)):
        async with local_rig.one(INDEX, files={"/opt/uv": uv}) as boxed:
            done = await boxed.sh(
                "/opt/uv -q pip install --no-cache --python /usr/bin/python3 --target /tmp/t"
                f" --index-url https://index.test/simple/ caissonthing && {VERSION}"
            )
            assert done.stdout == b"1.0\n", done.stderr


async def test_requests_uses_the_whole_store_and_not_its_own(local_rig: Rig) -> None:
    import certifi
    import charset_normalizer
    import idna
    import requests
    import urllib3

    modules = (certifi, charset_normalizer, idna, requests, urllib3)
    files = {f"/opt/lib/{module.__name__}": Path(module.__file__ or "").parent for module in modules}
    async with local_rig.world.upstream("web.test", hello), local_rig.one(WEB, files=files) as boxed:
        source = "import requests; print(requests.get('https://web.test/r').text)"
        done = await boxed.sh(f'PYTHONPATH=/opt/lib python3 -c "{source}"')
        assert b"hello from outside" in done.stdout, done.stderr


async def test_npm_installs_from_its_registry(local_rig: Rig) -> None:
    need("npm")
    policy = HEAD + '[[allow]]\nid = "npm"\nhosts = ["registry.test"]\nindex = "npm"\n'
    async with local_rig.world.upstream("registry.test", npm_registry("registry.test")):
        async with local_rig.one(policy) as boxed:
            done = await boxed.sh(
                "mkdir -p /tmp/n && cd /tmp/n && npm install --silent --no-audit --no-fund --no-update-notifier"
                " --registry https://registry.test caisson-thing && node -e 'console.log(require(\"caisson-thing\"))'"
            )
            assert b"thing 1.0.0" in done.stdout, (done.stdout, done.stderr)
            assert any(url.endswith(".tgz") for url in allowed(boxed))


async def test_git_clones_over_https_and_may_not_push(local_rig: Rig, tmp_path: Path) -> None:
    need("git")
    policy = HEAD + '[[allow]]\nid = "code"\nhosts = ["git.test"]\npaths = ["/good.git/**"]\ngit = "fetch"\n'
    (tmp_path / "repositories").mkdir()
    repository(tmp_path / "repositories", "good.git")
    shutil.copytree(tmp_path / "repositories/good.git", tmp_path / "repositories/fix.git")
    async with local_rig.world.upstream("git.test", git_host(tmp_path / "repositories")) as outside:
        async with local_rig.one(policy, record=True) as boxed:
            done = await boxed.sh(
                "git clone -q https://git.test/good.git /tmp/good && git -C /tmp/good log --format=%s"
            )
            assert done.stdout == b"the first commit\n", done.stderr
            before = len(outside.heads)
            push = (
                "cd /tmp/good && git -c user.name=t -c user.email=t@caisson.test commit -q --allow-empty -m x"
                " && git push -q origin HEAD:refs/heads/x"
            )
            assert not (await boxed.sh(push)).ok
            assert not (await boxed.sh("git clone -q https://git.test/fix.git /tmp/fix")).ok
            assert len(outside.heads) == before
            assert {reason for _, reason in refused(boxed)} == {"denied_rule", "path_not_allowed"}


APT = """
mkdir -p /tmp/apt/lists/partial /tmp/apt/cache/archives/partial /tmp/apt/etc/preferences.d
cd /tmp/apt && touch status
echo 'deb [trusted=yes] https://archive.test/ ./' > sources.list
cat > apt.conf <<E
Dir::State "/tmp/apt"; Dir::State::lists "/tmp/apt/lists"; Dir::State::status "/tmp/apt/status";
Dir::Cache "/tmp/apt/cache"; Dir::Etc "/tmp/apt/etc";
Dir::Etc::sourcelist "/tmp/apt/sources.list"; Dir::Etc::sourceparts "-";
APT::Sandbox::User "root"; Acquire::Languages "none"; Debug::NoLocking "true";
E
export APT_CONFIG=/tmp/apt/apt.conf
apt-get update -q && apt-get download -q caisson-thing
dpkg-deb --fsys-tarfile caisson-thing_1.0_all.deb | tar xO ./usr/share/caisson-thing
"""


async def test_apt_updates_and_fetches(local_rig: Rig) -> None:
    need("apt-get")
    policy = HEAD + '[[allow]]\nid = "apt"\nhosts = ["archive.test"]\n'
    async with local_rig.world.upstream("archive.test", apt_archive()), local_rig.one(policy) as boxed:
        done = await boxed.sh(APT)
        assert done.stdout.endswith(b"thing 1.0\n"), (done.stdout, done.stderr)
        assert any(url.endswith(".deb") for url in allowed(boxed))


JAVA = """
import java.net.URI; import java.net.http.*;
class Get { public static void main(String[] a) throws Exception {
  var client = HttpClient.newHttpClient();
  var answer = client.send(HttpRequest.newBuilder(URI.create(a[0])).build(), HttpResponse.BodyHandlers.ofString());
  System.out.println(answer.version() + " " + answer.body());
} }
"""


async def test_java_trusts_the_gate_by_the_store_of_its_distribution(local_rig: Rig) -> None:
    need("javac")
    folders = sorted(Path("/etc").glob("java-*-openjdk"))
    files: dict[str, Path | bytes] = {str(folder): folder for folder in folders}
    files |= {"/app/Get.java": JAVA.encode(), "/etc/ssl/certs/java/none": b""}
    async with local_rig.world.upstream("web.test", hello), local_rig.one(WEB, files=files, java=True) as boxed:
        done = await boxed.sh("java /app/Get.java https://web.test/j")
        assert b"HTTP_2 hello from outside" in done.stdout, done.stderr[-2000:]


async def test_a_credential_is_used_from_the_box_and_never_seen_in_it(
    local_rig: Rig, monkeypatch: pytest.MonkeyPatch, nonce: str
) -> None:
    need("curl")
    secret = f"sk-canary-{nonce}"
    monkeypatch.setenv("MODEL_KEY", secret)
    policy = HEAD + '[[allow]]\nid = "model"\nhosts = ["api.test"]\nmethods = ["POST"]\ninject = "env:MODEL_KEY"\n'
    async with local_rig.world.upstream("api.test", echo) as outside, local_rig.one(policy, record=True) as boxed:
        look = "env; cat /proc/*/environ 2>/dev/null | tr '\\0' '\\n'; true"
        call = 'curl -sS -H "Authorization: Bearer $MODEL_KEY" -d question https://api.test/v1'
        done = await boxed.sh(f"{look}; {call}")
        assert f"authorization: Bearer {secret}".encode() in outside.seen
        assert secret.encode() not in done.stdout + done.stderr
        assert b"MODEL_KEY=caisson-placeholder-MODEL_KEY" in done.stdout and b"[masked MODEL_KEY]" in done.stdout
        await boxed.closed()
        held = [path for path in boxed.folder.rglob("*") if path.is_file() and secret.encode() in path.read_bytes()]
        assert held == []
