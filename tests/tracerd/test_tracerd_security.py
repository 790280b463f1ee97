"""Who may ask: what others try is refused, bounded and logged, and the record of a box beside it is unharmed."""

from __future__ import annotations

import socket
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc
import pytest
import tracerd_rig
from caisson_proto import tracerd_pb2 as pb
from caisson_proto import tracerd_pb2_grpc as rpc
from caisson_proto.record import Kind
from caisson_tracerd.cgroup import v2_root
from storm import assert_conserved, dropped
from tracerd_rig import NOBODY, Client

if TYPE_CHECKING:
    from tracerd_rig import Daemon

pytestmark = [pytest.mark.root, pytest.mark.bpf]
Code = grpc.StatusCode


def signed(folder: Path, name: str, authority: str, subject: str, extension: str = "") -> None:
    """``name.pem`` and ``name.key``, signed by an authority made before."""
    new = ["openssl", "req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    paths = ["-keyout", f"{folder}/{name}.key", "-subj", f"/CN={subject}"]
    if authority == name:
        subprocess.run(
            [*new, *paths, "-x509", "-days", "2", "-out", f"{folder}/{name}.pem"], check=True, capture_output=True
        )
        return
    request = subprocess.run([*new, *paths], check=True, capture_output=True).stdout
    (folder / "extension").write_text(extension or f"subjectAltName=DNS:{subject}")
    sign = ["openssl", "x509", "-req", "-CA", f"{folder}/{authority}.pem", "-CAkey", f"{folder}/{authority}.key"]
    subprocess.run(
        [*sign, "-days", "2", "-extfile", f"{folder}/extension", "-out", f"{folder}/{name}.pem"],
        input=request, check=True, capture_output=True,
    )  # fmt: skip


@pytest.fixture(scope="module")
def papers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("papers")
    signed(folder, "ca", "ca", "Test Authority")
    signed(folder, "stranger-ca", "stranger-ca", "Other Authority")
    signed(folder, "server", "ca", "tracerd.test", "subjectAltName=IP:127.0.0.1")
    signed(folder, "runner", "ca", "runner.test")
    signed(folder, "unknown", "ca", "unknown.test")
    signed(folder, "stranger", "stranger-ca", "runner.test")
    return folder


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture(scope="module")
def port() -> int:
    return free_port()


@pytest.fixture(scope="module")
def guarded(daemon: Daemon, papers: Path, port: int) -> Iterator[Daemon]:
    made = tracerd_rig.make_daemon(
        "guarded", "--allow=nobody", f"--listen=127.0.0.1:{port}", f"--tls-cert={papers}/server.pem",
        f"--tls-key={papers}/server.key", f"--tls-ca={papers}/ca.pem", "--tls-user=runner.test=nobody",
    )  # fmt: skip
    made.start()
    yield made
    made.remove()


@pytest.fixture
def witnessed(guarded: Daemon) -> Iterator[Client]:
    """A box of root's that works throughout the test; afterwards its record must be whole."""
    client = guarded.client()
    client.create("witnessed")
    process = client.start("witnessed", ["/bin/sh", "-c", "while :; do /bin/true; done"])
    try:
        yield client
        assert process.poll() is None
        deadline = time.monotonic() + 60
        while sum(one.kind == Kind.EXEC for one in client.records("witnessed")) < 2:  # it has begun by now
            assert time.monotonic() < deadline
            time.sleep(0.05)
        answer = client.seal("witnessed")
        process.kill()
        process.wait()
        assert_conserved(answer, client.journal("witnessed"))
        assert dropped(answer) == 0
    finally:
        process.kill()
        process.wait()
        for box in client.stub.ListBoxes(pb.ListBoxesRequest()).boxes:
            client.drop(box.id)
        client.channel.close()


@pytest.fixture
def nobody(guarded: Daemon) -> Iterator[Client]:
    client = guarded.client(NOBODY)
    yield client
    for box in client.stub.ListBoxes(pb.ListBoxesRequest(), timeout=30).boxes:
        client.drop(box.id)
    client.channel.close()


def code_of(call: Any, *args: Any, **options: Any) -> grpc.StatusCode:
    try:
        answer = call(*args, timeout=20, **options)
        if isinstance(answer, Iterator):
            list(answer)
    except grpc.RpcError as problem:
        return problem.code()  # type: ignore[attr-defined,no-any-return]
    return Code.OK


def test_every_call_about_another_users_box_knows_no_such_box(witnessed: Client, nobody: Client) -> None:
    stub, name = nobody.stub, "witnessed"
    assert code_of(stub.SealBox, pb.SealBoxRequest(id=name)) == Code.NOT_FOUND
    assert code_of(stub.Admit, pb.AdmitRequest(id=name, pid=1)) == Code.NOT_FOUND
    assert code_of(stub.ReadJournal, pb.ReadJournalRequest(id=name, follow=True)) == Code.NOT_FOUND
    assert code_of(stub.DropBox, pb.DropBoxRequest(id=name)) == Code.OK  # what is not there is dropped already
    assert list(stub.ListBoxes(pb.ListBoxesRequest()).boxes) == []
    assert [box.id for box in witnessed.stub.ListBoxes(pb.ListBoxesRequest()).boxes] == [name]


def test_foreign_and_impossible_processes_are_not_admitted_nor_taken_for_owners(
    witnessed: Client, nobody: Client, guarded: Daemon
) -> None:
    nobody.create("mine")
    assert guarded.process is not None
    for pid in (1, 2, guarded.process.pid, 0, -1, 2**31 - 1):
        assert code_of(nobody.stub.Admit, pb.AdmitRequest(id="mine", pid=pid)) in (
            Code.PERMISSION_DENIED,
            Code.INVALID_ARGUMENT,
        )
    namespace = Path("/proc/self/ns/pid").stat().st_ino
    owner = pb.Owner(pid=guarded.process.pid, start_ticks=1, pid_namespace=namespace)
    request = pb.CreateBoxRequest(id="owned", owner=owner)
    assert code_of(nobody.stub.CreateBox, request) == Code.PERMISSION_DENIED
    assert [box.id for box in nobody.stub.ListBoxes(pb.ListBoxesRequest()).boxes] == ["mine"]


def test_no_name_leads_out_of_the_cgroup_root(witnessed: Client, nobody: Client, guarded: Daemon) -> None:
    root = v2_root()
    assert root is not None
    before = {str(path) for path in (root / guarded.cgroup_parent).rglob("*") if path.is_dir()}
    for name in ("../x", "..", ".", "a/b", "user.0", "a\0b", "x" * 65, "\u202e", "-" * 65, " "):
        assert code_of(nobody.stub.CreateBox, pb.CreateBoxRequest(id=name)) == Code.INVALID_ARGUMENT
    for path in ("/etc", str(root), f"{root}/..", f"{root}/{guarded.cgroup_parent}/user.0/witnessed", "x", "/proc/1"):
        for extra in ("", "/../../../etc"):
            found = code_of(nobody.stub.Attach, pb.AttachRequest(id="x", cgroup_path=path + extra))
            assert found in (Code.INVALID_ARGUMENT, Code.PERMISSION_DENIED, Code.NOT_FOUND), path + extra
    assert {str(path) for path in (root / guarded.cgroup_parent).rglob("*") if path.is_dir()} == before


def raw(client: Client, method: str) -> Any:
    """A call with any bytes as its request."""
    return client.channel.unary_unary(
        f"/caisson.v1.Tracerd/{method}", request_serializer=bytes, response_deserializer=bytes
    )


def test_oversized_and_malformed_requests_are_refused(witnessed: Client, nobody: Client) -> None:
    assert code_of(raw(nobody, "CreateBox"), b"\n" + bytes(1 << 20)) == Code.RESOURCE_EXHAUSTED
    assert code_of(raw(nobody, "CreateBox"), b"\xff" * 300) in (Code.UNKNOWN, Code.INTERNAL)
    assert code_of(raw(nobody, "CreateBox"), b"\n\xff\xff\xff\xff\x0f") in (
        Code.UNKNOWN,
        Code.INTERNAL,
    )
    assert code_of(raw(nobody, "Nothing"), b"") == Code.UNIMPLEMENTED
    assert code_of(raw(nobody, "GetInfo"), b"", metadata=[("x", "y" * 60_000)]) != Code.OK
    assert code_of(nobody.stub.GetInfo, pb.GetInfoRequest()) == Code.OK


def test_what_is_no_grpc_at_all_is_cut_off(witnessed: Client, nobody: Client, guarded: Daemon) -> None:
    path = str(guarded.run_dir / str(NOBODY) / "tracerd.sock")
    for garbage in (b"GET / HTTP/1.1\r\n\r\n", b"\0" * 65536, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\xff" * 4096):
        with socket.socket(socket.AF_UNIX) as line:
            line.settimeout(10)
            line.connect(path)
            try:
                line.sendall(garbage)
                while line.recv(4096):
                    pass
            except (BrokenPipeError, ConnectionResetError):
                pass
    assert code_of(nobody.stub.GetInfo, pb.GetInfoRequest()) == Code.OK


def test_a_thousand_idle_streams_are_bounded_and_cost_others_nothing(
    witnessed: Client, nobody: Client, guarded: Daemon
) -> None:
    nobody.create("mine")
    assert guarded.process is not None
    pages = Path(f"/proc/{guarded.process.pid}/statm")
    before = int(pages.read_text().split()[1]) * 4096
    path = f"unix:{guarded.run_dir}/{NOBODY}/tracerd.sock"
    with ExitStack() as stack:
        streams = []
        for number in range(10):
            options = [("grpc.use_local_subchannel_pool", 1), ("x", number)]
            channel = stack.enter_context(grpc.insecure_channel(path, options=options))
            stub = rpc.TracerdStub(channel)
            streams += [stub.ReadJournal(pb.ReadJournalRequest(id="mine", follow=True)) for _ in range(100)]
        ended: Counter[grpc.StatusCode] = Counter()
        for stream in streams:
            stream.add_done_callback(lambda call: ended.update([call.code()]))
        deadline = time.monotonic() + 20
        while ended.total() < 1000 - 256 and time.monotonic() < deadline:
            time.sleep(0.05)
        assert set(ended) == {Code.RESOURCE_EXHAUSTED}
        assert ended.total() == 1000 - 256
        began = time.monotonic()
        witnessed.create("quick")
        witnessed.run("quick", ["/bin/true"])
        assert witnessed.seal("quick")["exec"].delivered == 1
        assert time.monotonic() - began < 5
        assert int(pages.read_text().split()[1]) * 4096 - before < 64 << 20
        for stream in streams:
            stream.cancel()
    nobody.run("mine", ["/bin/true"], user=NOBODY, group=NOBODY, extra_groups=[])
    nobody.seal("mine")
    assert [r.kind for r in nobody.records("mine") if r.kind == Kind.EXEC] == [Kind.EXEC]
    assert "you read 256 journals at once already" in guarded.log.read_text()


def test_a_slow_loris_is_cut_off_and_others_are_served(witnessed: Client, nobody: Client, guarded: Daemon) -> None:
    path = str(guarded.run_dir / str(NOBODY) / "tracerd.sock")
    preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
    with ExitStack() as stack:
        lines = []
        for number in range(400):
            line = stack.enter_context(socket.socket(socket.AF_UNIX))
            line.setblocking(False)
            try:
                line.connect(path)
                line.send(preface[: number % len(preface)])
            except OSError:
                continue
            lines.append(line)
        began = time.monotonic()
        assert code_of(witnessed.stub.GetInfo, pb.GetInfoRequest()) == Code.OK
        assert time.monotonic() - began < 2
        open_lines = set(lines)
        deadline = time.monotonic() + 20
        while open_lines and time.monotonic() < deadline:
            for line in list(open_lines):
                try:
                    if not line.recv(4096):
                        open_lines.discard(line)
                except BlockingIOError:
                    continue
                except OSError:
                    open_lines.discard(line)
            time.sleep(0.1)
        assert not open_lines
        assert code_of(nobody.stub.GetInfo, pb.GetInfoRequest(), wait_for_ready=True) == Code.OK


def test_one_caller_cannot_have_more_than_their_share(witnessed: Client, nobody: Client) -> None:
    found = Counter(
        code_of(nobody.stub.CreateBox, pb.CreateBoxRequest(id=f"b-{n}", ring_bytes=1 << 16)) for n in range(70)
    )
    assert found == {Code.OK: 64, Code.RESOURCE_EXHAUSTED: 6}
    assert code_of(nobody.stub.CreateBox, pb.CreateBoxRequest(id="x", ring_bytes=1 << 25)) == Code.RESOURCE_EXHAUSTED
    assert code_of(nobody.stub.CreateBox, pb.CreateBoxRequest(id="x", ring_bytes=3)) == Code.INVALID_ARGUMENT
    witnessed.create("others-still-may")


def test_refusals_are_logged_and_the_log_is_bounded(witnessed: Client, nobody: Client, guarded: Daemon) -> None:
    for number in range(300):
        code_of(nobody.stub.SealBox, pb.SealBoxRequest(id=f"no-{number}\n\x1b[31m"))
    lines = [line for line in guarded.log.read_text().splitlines() if "request refused" in line]
    assert 0 < len(lines) < 250
    assert all(line.isprintable() for line in lines)
    assert any(f"caller={NOBODY} code=NOT_FOUND" in line for line in lines)


def test_what_never_reaches_a_handler_is_logged_too(witnessed: Client, nobody: Client, guarded: Daemon) -> None:
    code_of(raw(nobody, "CreateBox"), b"\n" + bytes(1 << 20))
    code_of(raw(nobody, "SealBox"), b"\xff" * 300)
    code_of(raw(nobody, "Nothing\n"), b"")
    wanted = ("RESOURCE_EXHAUSTED", "CreateBox"), ("INTERNAL", "SealBox"), ("UNIMPLEMENTED", "Nothing")
    deadline = time.monotonic() + 30

    def missing() -> list[tuple[str, str]]:
        lines = [line for line in guarded.log.read_text().splitlines() if "request refused unread" in line]
        assert all(line.isprintable() for line in lines)
        mine = [line for line in lines if f"caller={NOBODY} " in line]
        return [(code, call) for code, call in wanted if not any(f"code={code} " in x and call in x for x in mine)]

    while missing():
        assert time.monotonic() < deadline, missing()
        time.sleep(0.1)


def over_tls(papers: Path, port: int, name: str | None) -> Client:
    ca = (papers / "ca.pem").read_bytes()
    own = (None, None) if name is None else tuple((papers / f"{name}.{kind}").read_bytes() for kind in ("key", "pem"))
    client = Client.__new__(Client)
    client.channel = grpc.secure_channel(f"127.0.0.1:{port}", grpc.ssl_channel_credentials(ca, *own))
    client.stub = rpc.TracerdStub(client.channel)
    return client


def test_a_certificates_name_says_who_speaks_over_tcp(
    witnessed: Client, nobody: Client, papers: Path, port: int
) -> None:
    nobody.create("mine")
    client = over_tls(papers, port, "runner")
    assert [box.id for box in client.stub.ListBoxes(pb.ListBoxesRequest(), timeout=20).boxes] == ["mine"]
    assert code_of(client.stub.SealBox, pb.SealBoxRequest(id="witnessed")) == Code.NOT_FOUND
    client.channel.close()


@pytest.mark.parametrize(
    ("name", "code"),
    [("unknown", Code.PERMISSION_DENIED), ("stranger", Code.UNAVAILABLE), (None, Code.UNAVAILABLE)],
)
def test_other_certificates_and_none_are_refused(
    witnessed: Client, papers: Path, port: int, name: str | None, code: grpc.StatusCode
) -> None:
    client = over_tls(papers, port, name)
    for call, request in (
        (client.stub.GetInfo, pb.GetInfoRequest()),
        (client.stub.ListBoxes, pb.ListBoxesRequest()),
        (client.stub.ReadJournal, pb.ReadJournalRequest(id="witnessed")),
    ):
        assert code_of(call, request) == code
    client.channel.close()


def test_plain_tcp_reaches_nothing(witnessed: Client, port: int) -> None:
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        assert code_of(rpc.TracerdStub(channel).GetInfo, pb.GetInfoRequest()) == Code.UNAVAILABLE


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--listen=0.0.0.0:4000"], "needs mutual TLS"),
        (["--listen=127.0.0.1:4000"], "needs mutual TLS"),
        (["--listen=nowhere"], "is not HOST:PORT"),
        (["--listen=127.0.0.1:4000", "--tls-cert=/x", "--tls-key=/x", "--tls-ca=/x"], "would serve nobody"),
        (["--listen=127.0.0.1:4000", "--tls-user=x"], "is not NAME=USER"),
    ],
)
def test_tcp_without_a_way_to_tell_who_speaks_is_refused(daemon: Daemon, options: list[str], says: str) -> None:
    done = subprocess.run(daemon.command("serve", *options), capture_output=True, text=True, timeout=30)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert says in done.stderr


def test_many_callers_at_once_are_served_in_turn(witnessed: Client, guarded: Daemon) -> None:
    found: list[grpc.StatusCode] = []

    def ask() -> None:
        client = guarded.client()
        found.extend(code_of(client.stub.ListBoxes, pb.ListBoxesRequest()) for _ in range(20))
        client.channel.close()

    threads = [threading.Thread(target=ask) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert found == [Code.OK] * 320
