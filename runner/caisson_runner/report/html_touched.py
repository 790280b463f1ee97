"""What a run touched, as HTML: files and tests, places of graders, the network, and the state diff."""

from __future__ import annotations

from collections.abc import Iterator

from caisson_runner.bundle.activity import Activity, Changed, Identity, Touch
from caisson_runner.export.text import command_line, errno_name, shown
from caisson_runner.report.html_model import RunPage, many, table_of
from caisson_runner.report.html_tags import MAX_ROWS, Child, Html, code, joined, rest, spaced, tag, wide
from caisson_runner.report.text import size


def who(model: Activity, identity: Identity) -> Html:
    """A process by its pid and what it was."""
    process = model.processes.get(identity)
    if process is None:
        return joined(f"pid {identity[0]}")
    if not process.commands:
        return joined(f"pid {process.pid} ", code(f"({shown(process.comm, 20)})"))
    return joined(f"pid {process.pid} ", code(command_line(process.commands[-1].argv, 200), 90))


def files_of(page: RunPage) -> Html:
    """Which files and tests were touched, by whom, and at which events."""
    model = page.model
    groups: list[tuple[str, list[tuple[Child, ...]]]] = [
        ("Tests and test configuration", list(_group(page, {"test", "config"}, set()))),
        ("Written outside the workspace", list(_group(page, {"outside", "room"}, {"test", "config"}))),
        ("In the workspace", list(_group(page, set(), {"test", "config", "outside", "room", "scratch"}))),
        ("Places of answers and graders looked into", list(_rooms(page))),
    ]
    parts: list[Child] = []
    for title, rows in groups:
        if rows:
            parts.append(tag("h3", title, tag("span", f" {len(rows):,}", class_="quiet")))
            parts.append(wide(("what", "path", "by", "event"), rows[:MAX_ROWS]))
            parts.append(rest(len(rows)))
    if not parts:
        return tag("p", "No file of the task, no test and no place of a grader was touched.", class_="quiet")
    if model.missed:
        told = ", ".join(f"{count:,} {kind}" for kind, count in sorted(model.missed.items()))
        parts.append(tag("p", f"Beyond what this page holds: {told}. The record has them.", class_="quiet"))
    return joined(parts)


def _group(page: RunPage, needed: set[str], refused: set[str]) -> Iterator[tuple[Child, ...]]:
    """Paths of the state diff with one of the tags ``needed`` and none ``refused``; then writes that left nothing."""

    def fits(tags: tuple[str, ...]) -> bool:
        return (not needed or bool(needed & set(tags))) and not refused & set(tags) and "cache" not in tags

    final = {one.path for one in page.model.changes}
    for changed in page.model.changes:
        if fits(changed.tags) and (changed.kind != "dir" or changed.how == "removed"):
            yield _how(changed.how), code(shown(changed.path)), _by(page, changed), _events(page, changed.path)
    for touch in page.model.touched():
        if touch.writing and touch.path not in final and fits(touch.tags):
            how = "written, then gone" if touch.succeeded else "refused " + _errors(touch)
            yield how, code(shown(touch.path)), who(page.model, touch.process), page.event(touch.first_seq)
    if "test" in needed:
        for touch in page.model.touched():
            if not touch.writing and touch.succeeded and "test" in touch.tags and "cache" not in touch.tags:
                yield "read", code(shown(touch.path)), who(page.model, touch.process), page.event(touch.first_seq)


def _rooms(page: RunPage) -> Iterator[tuple[Child, ...]]:
    for touch in page.model.touched():
        if "room" in touch.tags and not touch.writing:
            how = f"opened ×{touch.succeeded}" if touch.succeeded else "looked for " + _errors(touch)
            yield how, code(shown(touch.path)), who(page.model, touch.process), page.event(touch.first_seq)


def _errors(touch: Touch) -> str:
    return ", ".join(errno_name(error) or "" for error in sorted(touch.errors))


def _how(how: str) -> Html:
    return tag("span", how, class_=f"how {how if how in ('added', 'changed', 'removed') else ''}")


def _by(page: RunPage, changed: Changed) -> Html:
    if changed.by:
        more = f" and {len(changed.by) - 2} more" if len(changed.by) > 2 else None
        return joined([[", " if at else "", who(page.model, one)] for at, one in enumerate(changed.by[:2])], more)
    if changed.near:
        return joined("likely ", who(page.model, changed.near[0]))
    return joined("not by an open that was seen")


def _events(page: RunPage, path: bytes) -> Html:
    return joined(spaced(page.event(seq) for seq in page.told.by_path.get(path, ())))


def network_of(page: RunPage) -> Html:
    """What was asked of the gate, and which connects were tried."""
    mode = str(table_of(page.scene.run.get("network")).get("mode") or "")
    parts: list[Child] = []
    if page.asked:
        rows = [
            (
                tag("span", one.verdict, class_="how " + ("removed" if one.verdict == "deny" else "added")),
                code(one.what),
                one.reason,
                f"{' '.join(map(str, sorted(one.statuses)))}{', ' if one.statuses else ''}×{one.count}",
                size(one.received) if one.received else "",
                ", ".join(f"pid {pid}" for pid in sorted(one.pids)[:5]),
            )
            for one in page.asked[:MAX_ROWS]
        ]
        refused = sum(one.count for one in page.asked if one.verdict == "deny")
        asked = sum(one.count for one in page.asked)
        parts.append(tag("p", f"{many(asked, 'question')} reached the gate; refused: {refused:,}."))
        parts.append(wide(("gate", "what", "reason", "result", "received", "by"), rows, f"gate-{page.number}"))
        parts.append(rest(len(page.asked)))
    tried = [one for one in page.model.attempts.values() if not page.model.is_harness(one.process)]
    if tried:
        connects = [
            (
                code(shown(one.where)),
                ", ".join(f"{errno_name(error) or 'connected'} ×{n}" for error, n in sorted(one.results.items())),
                who(page.model, one.process),
                page.event(one.first_seq),
            )
            for one in tried[:MAX_ROWS]
        ]
        parts.append(tag("h3", "Connects tried", tag("span", f" {len(tried):,}", class_="quiet")))
        parts.append(wide(("to", "result", "by", "event"), connects))
        parts.append(rest(len(tried)))
    if parts:
        return joined(parts)
    none = "The box had no network." if mode == "none" else "Nothing was asked of the gate."
    return tag("p", f"{none} No connect was tried.", class_="quiet")


def diff_of(page: RunPage) -> Html:
    """Every path that differs from the snapshot, folded."""
    changes = page.model.changes
    if not changes:
        return tag("p", "The final state is the snapshot itself: nothing was changed.", class_="quiet")
    counts = {how: sum(one.how == how for one in changes) for how in ("added", "changed", "removed")}
    head = ", ".join(f"{count:,} {how}" for how, count in counts.items() if count)
    rows = [
        (
            _how(one.how), code(shown(one.path)), one.kind, size(one.size) if one.kind == "file" else "",
            ", ".join(one.tags),
        )
        for one in changes[:MAX_ROWS]
    ]  # fmt: skip
    body = wide(("what", "path", "kind", "size", "is"), rows)
    differ = f"{many(len(changes), 'path')} {'differs' if len(changes) == 1 else 'differ'} from the snapshot: {head}"
    return tag("details", tag("summary", differ), body, rest(len(changes)))
