"""`caisson-run doctor`."""

from __future__ import annotations

import asyncio

from caisson_runner.commands.common import emit
from caisson_runner.report.text import printable


def doctor_command(as_json: bool) -> int:
    """`caisson-run doctor`."""
    from caisson_runner import gate
    from caisson_runner.boxes.probe import probe
    from caisson_runner.witness import choose

    requirements = asyncio.run(asyncio.to_thread(probe))
    witness = choose("auto")
    usable = all(r.ok for r in requirements)
    gated, detail = gate.probe() if usable else (False, "boxes cannot run here")
    if as_json:
        emit(
            {
                "usable": usable,
                "requirements": [
                    {"name": r.name, "ok": r.ok, "detail": r.detail, "remedy": r.remedy} for r in requirements
                ],
                "witness": {"name": witness.name, "reason": witness.reason},
                "gate": {"ok": gated, "detail": detail},
            }
        )
        return 0 if usable else 3
    from caisson_runner.report.terminal import grid

    rows = [(r.name, "ok" if r.ok else "missing", r.detail, "" if r.ok else r.remedy) for r in requirements]
    grid("This host", ("what", "state", "found", "what to do"), rows)
    print(f"witness: {witness.name} ({printable(witness.reason)})")
    print(f"gate: {printable(detail) if gated else f'no: {printable(detail)}'}")
    print("boxes can run here" if usable else "boxes cannot run here; see above")
    return 0 if usable else 3
