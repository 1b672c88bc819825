"""Background tasks that are restarted after an unexpected exception, independently of each other."""

import asyncio

import pytest

from nodewise.observe import background_tasks, logs


async def test_a_defect_restarts_its_own_task_only(monkeypatch: pytest.MonkeyPatch) -> None:
    log_lines: list[str] = []
    monkeypatch.setattr(logs, "emit", lambda event, **fields: log_lines.append(f"{event} {fields['task']}"))
    starts = {"good": 0, "bad": 0, "nothing": 0}

    async def good() -> None:
        starts["good"] += 1
        await asyncio.Event().wait()

    async def bad() -> None:
        starts["bad"] += 1
        raise TypeError("a defect")

    async def nothing() -> None:
        starts["nothing"] += 1

    task = asyncio.create_task(background_tasks.keep_all_running(good, nothing, bad))
    await asyncio.sleep(3.5)
    task.cancel()
    await asyncio.wait([task])
    assert starts == {"good": 1, "bad": 4, "nothing": 1}
    assert len(log_lines) == 4
    assert all(line.startswith("task_failed ") and line.endswith("bad") for line in log_lines)
