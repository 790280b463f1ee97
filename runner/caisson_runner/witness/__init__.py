"""The witness seam: who saw what a box did, and how sure that is.

Three witnesses give the same records (`caisson_proto.record`): ``ebpf`` (a client of tracerd), ``strace`` (no root
needed) and ``none``. `choose` takes the best one this user can have and says why::

    witness = await choose("auto")
    async with witness.watch(box_id, Limits(pids=256)) as watch:
        async with engine.fork(snapshot, cgroup=watch.cgroup) as box:
            process = await box.start(command, admit=watch.admit, wrap=watch.wrap)
            await process.wait()
            await box.freeze()
            evidence = await watch.seal()
            ...  # evidence.events_path goes with the watch: copy it into the bundle before
"""

from caisson_runner.witness.choose import choose
from caisson_runner.witness.coverage import Counts, Coverage
from caisson_runner.witness.errors import DaemonDown, DaemonMismatch, WitnessError, WitnessLost, WitnessUnavailable
from caisson_runner.witness.seam import Evidence, Limits, Watch, Witness, read_events

__all__ = [
    "Counts",
    "Coverage",
    "DaemonDown",
    "DaemonMismatch",
    "Evidence",
    "Limits",
    "Watch",
    "Witness",
    "WitnessError",
    "WitnessLost",
    "WitnessUnavailable",
    "choose",
    "read_events",
]
