"""tracerd as a service in a real systemd: installed from the package, watched, killed, upgraded, stopped, removed.

The tests share one machine and run in this order; each leaves the service running.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from service_machine import Machine, cgroup_roots
from service_package import repacked

pytestmark = [pytest.mark.root, pytest.mark.bpf, pytest.mark.nspawn]

PYTHON = "/usr/lib/caisson/bin/python"
QUICK = "uses-no-compression-for-control-tarball,uses-no-compression-for-data-tarball"


def story(machine: Machine, box: str, meanwhile: Callable[[], object]) -> dict[str, object]:
    """Alice's box runs before, while and after something happens to the service; what its record says."""
    process = machine.start_unit([PYTHON, "-I", "/host/service_story.py", box], "alice", stdin=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"running\n", process.communicate()[0].decode()
    meanwhile()
    time.sleep(0.3)
    text = process.communicate(timeout=90)[0].decode()
    assert process.returncode == 0, text
    found: dict[str, object] = json.loads(text.splitlines()[-1])
    return found


def assert_whole(found: dict[str, object]) -> None:
    assert found["ran"], found
    assert found == {**found, "named": True, "gapless": True, "left_over": 0, "dropped": 0, "conserved": True}


def wait(condition: Callable[[], bool], seconds: float = 30) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.1)


def journal(machine: Machine, *options: str) -> str:
    return machine.run("journalctl", "--no-pager", "--unit=tracerd", *options)


def scrape(machine: Machine) -> dict[str, float]:
    code = "import urllib.request as r; print(r.urlopen('http://127.0.0.1:9477/metrics').read().decode())"
    lines = machine.run("python3", "-c", code, user="bob").splitlines()
    return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines if line and line[0] != "#"}


def test_enabling_it_is_all_an_operator_types_and_it_is_ready_when_systemd_says_so(machine: Machine) -> None:
    found = machine.show("ActiveState", "SubState", "Type", "WatchdogUSec", "UnitFileState", "StatusText")
    assert found["ActiveState"] == "active"
    assert found["SubState"] == "running"
    assert found["Type"] == "notify"
    assert found["WatchdogUSec"] == "30s"
    assert found["UnitFileState"] == "enabled"
    assert machine.run("stat", "-c", "%a %U", "/run/caisson/0/tracerd.sock", "/run/caisson/1000/tracerd.sock") == (
        "600 root\n600 alice\n"
    )
    assert machine.run("stat", "-c", "%a %U", "/run/caisson", "/var/lib/caisson/tracerd") == "755 root\n700 root\n"
    assert "answers at" in machine.run("tracerd", "status")
    assert "answers at" in machine.run("tracerd", "status", user="alice")


def test_a_plain_user_runs_an_agent_and_the_service_records_it(machine: Machine) -> None:
    words = ["caisson-run", "run", "-p", "add-mul", "-a", "honest-fix", "--witness", "ebpf", "-o", "/home/alice/bundle"]
    told = machine.run(*words, user="alice")
    assert re.search(r"^verdict +pass", told, re.MULTILINE), told
    shown = machine.run("caisson-run", "bundle", "show", "/home/alice/bundle", user="alice")
    assert re.search(r"Witness +ebpf \(\w+\), [1-9]\d* records, complete", shown), shown


def test_a_user_who_is_not_allowed_gets_no_socket_and_one_line(machine: Machine) -> None:
    words = ["caisson-run", "run", "-p", "add-mul", "-a", "honest-fix", "--witness", "ebpf", "-o", "/home/bob/bundle"]
    told = machine.run(*words, user="bob", check=False)
    assert told.count("\n") == 1
    assert "no tracerd answers on /run/caisson/1001/tracerd.sock" in told
    assert "Permission denied" in machine.run(
        "sh", "-c", "echo > /run/caisson/1000/tracerd.sock", user="bob", check=False
    )


def test_the_log_has_a_line_with_a_priority_for_each_step_of_a_box(machine: Machine) -> None:
    assert_whole(story(machine, "logged", lambda: None))
    lines = [json.loads(line) for line in journal(machine, "--output=json").splitlines()]
    ours = [(line["PRIORITY"], line["MESSAGE"]) for line in lines if line["SYSLOG_IDENTIFIER"] == "tracerd"]
    for step in ("box created uid=1000 box=logged ring_bytes=", "box sealed uid=1000 box=logged delivered="):
        assert [priority for priority, text in ours if text.startswith(step)] == ["6"]
    assert ("6", "box dropped uid=1000 box=logged") in ours
    assert any(priority == "5" and text.startswith("ready: ") for priority, text in ours)
    assert all(text.isprintable() for _, text in ours)


def test_metrics_tell_what_was_recorded_without_naming_a_box(machine: Machine) -> None:
    found = scrape(machine)
    assert found['caisson_events_total{caller="1000",kind="exec",outcome="delivered"}'] > 3
    assert found['caisson_events_total{caller="1000",kind="exec",outcome="dropped_ring"}'] == 0
    assert found['caisson_boxes{caller="1000",state="open"}'] == 0
    assert found['caisson_box_steps_total{caller="1000",step="sealed"}'] >= 2
    assert found['caisson_journal_written_bytes_total{caller="1000"}'] > 1000
    assert 0 < found['caisson_ring_fill_peak_ratio{caller="1000"}'] < 1
    assert found["caisson_drain_seconds_count"] > 0
    assert found["process_cpu_seconds_total"] > 0
    assert 10e6 < found["process_resident_memory_bytes"] < 100e6
    assert not [name for name in found if "logged" in name]


def test_a_killed_daemon_is_started_again_and_not_one_record_is_lost(machine: Machine) -> None:
    before = int(machine.show("NRestarts")["NRestarts"])
    pid = machine.show("MainPID")["MainPID"]
    found = story(machine, "killed", lambda: machine.run("kill", "-KILL", pid))
    assert_whole(found)
    after = machine.show("NRestarts", "ActiveState", "MainPID")
    assert int(after["NRestarts"]) == before + 1
    assert after["ActiveState"] == "active"
    assert after["MainPID"] != pid
    assert "box adopted uid=1000 box=killed" in journal(machine)
    assert scrape(machine)["caisson_daemon_starts_total"] >= 2


def test_a_lossless_box_outlives_a_kill_of_the_daemon_and_its_brake_has_priority(machine: Machine) -> None:
    pid = machine.show("MainPID")["MainPID"]
    assert_whole(story(machine, "lossless", lambda: machine.run("kill", "-KILL", pid)))
    assert "without priority" not in journal(machine)


def test_a_restart_by_hand_loses_nothing_either(machine: Machine) -> None:
    assert_whole(story(machine, "restarted", lambda: machine.run("systemctl", "restart", "tracerd")))


def test_an_upgrade_while_a_box_runs_loses_nothing(machine: Machine, package: Path, scratch: Path) -> None:
    """Also with other programs, as long as they share the layout: the old ones stay until no box needs them."""
    change = "for file in $(find . -path '*/_bpf/open.h'); do echo '/* another build */' >> $file; done"
    newer = repacked(package, scratch / "host", "99.1", change)
    pid = machine.show("MainPID")["MainPID"]
    found = story(machine, "upgraded", lambda: machine.run("dpkg", "--install", f"/host/{newer.name}", timeout=60))
    newer.unlink()
    assert_whole(found)
    assert machine.show("MainPID")["MainPID"] != pid
    assert "version 99.1" in machine.run("tracerd", "status")
    assert machine.show("UnitFileState")["UnitFileState"] == "enabled"
    assert 'allow = ["alice"]' in machine.run("cat", "/etc/caisson/tracerd.toml")
    assert "programs of another build stay, boxes depend on them boxes=1" in journal(machine)
    machine.run("systemctl", "restart", "tracerd")
    assert "loaded anew" in journal(machine)


def test_the_watchdog_ends_a_daemon_that_stands_still(machine: Machine) -> None:
    override = "/run/systemd/system/tracerd.service.d/test.conf"
    text = r"[Service]\nWatchdogSec=2\n"
    machine.run("sh", "-ec", f"mkdir -p $(dirname {override}); printf '{text}' > {override}; systemctl daemon-reload")
    machine.run("systemctl", "restart", "tracerd")
    time.sleep(3)  # it lives longer than the watchdog waits, so its own signs of life are heard
    before = machine.show("NRestarts", "MainPID", "StatusText")
    assert re.fullmatch(r"\w+ tier; 0 boxes record, 0 are sealed", before["StatusText"])
    machine.run("kill", "-STOP", before["MainPID"])
    wait(lambda: machine.show("ActiveState", "NRestarts") == {"ActiveState": "active", "NRestarts": "1"})
    assert "Watchdog timeout" in journal(machine)
    machine.run("sh", "-ec", f"rm {override}; systemctl daemon-reload; systemctl restart tracerd")


def test_a_mistake_in_the_configuration_is_one_line_in_the_log(machine: Machine) -> None:
    machine.run(
        "sh", "-ec", "cp /etc/caisson/tracerd.toml /var/tmp/kept; echo 'alow = []' >> /etc/caisson/tracerd.toml"
    )
    try:
        assert "failed" in machine.run("systemctl", "restart", "tracerd", check=False)
        lines = [json.loads(line) for line in journal(machine, "--output=json", "--priority=err").splitlines()]
        words = "configuration /etc/caisson/tracerd.toml: unknown key 'alow'; known are "
        assert [line["MESSAGE"] for line in lines if line["MESSAGE"].startswith(words)]
    finally:
        machine.run("sh", "-ec", "systemctl stop tracerd; cp /var/tmp/kept /etc/caisson/tracerd.toml")
        machine.run("sh", "-ec", "systemctl reset-failed tracerd; systemctl start tracerd")


def test_a_stop_leaves_the_pins_and_the_next_start_takes_them_over(machine: Machine) -> None:
    machine.run("systemctl", "stop", "tracerd")
    assert machine.show("Result", "ActiveState") == {"Result": "success", "ActiveState": "inactive"}
    assert "link_" in machine.run("ls", "/sys/fs/bpf/caisson")
    assert "the pins under /sys/fs/bpf/caisson stay" in journal(machine)
    loaded = machine.run("stat", "-c", "%y", "/run/caisson/manifest.json")
    machine.run("systemctl", "start", "tracerd")
    assert machine.run("stat", "-c", "%y", "/run/caisson/manifest.json") == loaded


def test_a_pin_that_is_taken_away_is_told_and_unload_mends_it(machine: Machine) -> None:
    machine.run("sh", "-ec", "cd /sys/fs/bpf/caisson; rm $(ls -d link_* | head -1)")
    wait(lambda: machine.show("StatusText")["StatusText"].endswith("is gone and nothing is recorded there"), 10)
    assert "not well reason=" in journal(machine)
    machine.run("systemctl", "stop", "tracerd")
    assert machine.run("tracerd", "unload") == "unloaded\n"
    assert "caisson" not in machine.run("ls", "/sys/fs/bpf")
    machine.run("systemctl", "start", "tracerd")
    assert_whole(story(machine, "mended", lambda: None))


def test_the_unit_holds_no_more_than_it_says(machine: Machine) -> None:
    status = machine.run("cat", f"/proc/{machine.show('MainPID')['MainPID']}/status")
    found = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    names = {"chown", "dac_override", "dac_read_search", "fowner", "kill", "net_admin", "sys_ptrace", "sys_admin"}
    names |= {"sys_nice", "sys_resource", "perfmon", "bpf"}
    numbers = (0, 1, 2, 3, 5, 12, 19, 21, 23, 24, 38, 39)
    assert len(numbers) == len(names)
    assert int(found["CapBnd"], 16) | sum(1 << number for number in numbers) == sum(1 << number for number in numbers)
    assert found["NoNewPrivs"] == "1"
    assert found["Seccomp"] == "2"
    told = machine.run("systemd-analyze", "security", "--no-pager", "tracerd")
    level = re.search(r"exposure level for tracerd.service: ([0-9.]+)", told)
    assert level is not None
    assert float(level[1]) < 4.0


def test_what_install_writes_is_what_the_package_brings_and_package_and_install_do_not_mix(machine: Machine) -> None:
    machine.run("tracerd", "install", "--root", "/var/tmp/staged", "--packaged", "--command", "/usr/sbin/tracerd")
    for name in ("usr/lib/systemd/system/tracerd.service", "usr/lib/tmpfiles.d/caisson.conf"):
        machine.run("cmp", f"/var/tmp/staged/{name}", f"/{name}")
    assert "belongs to the Debian package" in machine.run("tracerd", "install", check=False)
    machine.run("cp", "-a", "/usr/lib/caisson", "/var/tmp/kept-lib")
    machine.run("cp", "-a", "/usr/sbin/tracerd", "/var/tmp/kept-tracerd")


def test_removing_the_package_takes_the_programs_out_of_the_kernel_and_purging_leaves_nothing(machine: Machine) -> None:
    machine.run("dpkg", "--remove", "caisson")
    assert "caisson" not in machine.run("ls", "/sys/fs/bpf")
    assert machine.run("sh", "-c", "pgrep -x tracerd", check=False) == ""
    assert 'allow = ["alice"]' in machine.run("cat", "/etc/caisson/tracerd.toml")
    machine.run("dpkg", "--purge", "caisson")
    left = machine.run(
        "sh", "-c", "ls -d /etc/caisson /run/caisson /var/lib/caisson/tracerd /usr/lib/caisson", check=False
    )
    assert "No such file" in left
    assert not [line for line in left.splitlines() if line.startswith("/")]
    assert machine.run("sh", "-c", "systemctl list-unit-files | grep tracerd", check=False) == ""


def test_install_and_uninstall_without_the_package(machine: Machine) -> None:
    machine.run("sh", "-ec", "cp -a /var/tmp/kept-lib /usr/lib/caisson; cp -a /var/tmp/kept-tracerd /usr/sbin/tracerd")
    first = machine.run("tracerd", "install", "--command", "/usr/sbin/tracerd")
    assert first.count("written") == 3
    again = machine.run("tracerd", "install", "--command", "/usr/sbin/tracerd")
    assert (again.count("unchanged"), again.count("kept")) == (2, 1)
    machine.run("systemctl", "enable", "--now", "tracerd", timeout=120)
    assert machine.show("ActiveState")["ActiveState"] == "active"
    gone = machine.run("tracerd", "uninstall", "--purge")
    assert "removed   pins" in gone
    assert "caisson" not in machine.run("ls", "/sys/fs/bpf")
    left = machine.run(
        "sh", "-c", "ls -d /etc/caisson /etc/systemd/system/tracerd.service /var/lib/caisson", check=False
    )
    assert not [line for line in left.splitlines() if line.startswith("/")]


def test_install_refuses_a_command_that_others_could_change(machine: Machine) -> None:
    machine.run("install", "-o", "alice", "-m", "755", "/usr/sbin/tracerd", "/usr/local/sbin/tracerd")
    told = machine.run("tracerd", "install", "--command", "/usr/local/sbin/tracerd", check=False)
    assert "/usr/local/sbin/tracerd can be changed by uid 1000, who would be root through the service" in told


def test_lintian_finds_nothing_wrong_with_the_package(package: Path) -> None:
    """Overrides stand in the package, each with its reason; no compression is how this test's build saves time."""
    if shutil.which("lintian") is None:
        pytest.skip("lintian is not installed")
    command = ["lintian", "--no-cfg", "--allow-root", "--fail-on=none", "--suppress-tags=" + QUICK, str(package)]
    told = subprocess.run(command, capture_output=True, text=True).stdout
    assert not [line for line in told.splitlines() if line[:2] in ("E:", "W:")], told


def test_a_machine_leaves_nothing_on_its_host(bare: Machine) -> None:
    bare.stop()
    assert not [folder for root in cgroup_roots() for folder in root.glob(f"caisson-nspawn-{os.getpid()}")]
    mounts = Path("/proc/self/mountinfo").read_text()
    assert str(bare.scratch) not in mounts
    assert not subprocess.run(["pgrep", "-f", f"directory={bare.image}"], capture_output=True).stdout
