from typing import Any

import numpy as np

from nodewise import changes
from nodewise.agents.gpu.pods import BookedPod
from tests.unit.agents.gpu.facts import pod


class TestWhatChanged:
    """Snapshots are compared block by block; a list in another order is looked up."""

    @staticmethod
    def changed(old: Any, new: Any) -> list[Any]:
        found = changes.between(old, new)
        while True:
            try:
                next(found)
            except StopIteration as done:
                return sorted(done.value)

    def test_any_change_is_found(self) -> None:
        rng = np.random.default_rng(7)
        keys = [("d", f"k{number:04d}") for number in range(1400)]
        pods = {key: pod(key[1]) for key in keys}
        for size in (0, 1, 511, 512, 513, 1024, 1400):
            old: dict[Any, BookedPod] = {key: pods[key] for key in keys[:size]}
            for _ in range(40):
                new = dict(old)
                for key in rng.choice(len(keys), rng.integers(0, 4)):
                    action = rng.integers(0, 3)
                    if action == 0:
                        new.pop(keys[key], None)
                    elif action == 1:
                        new[keys[key]] = pod("other")
                    else:
                        new[keys[key]] = new.pop(keys[key], pod("again"))
                wanted = sorted(key for key in {**old, **new} if old.get(key) is not new.get(key))
                assert self.changed(old, new) == wanted

    def test_another_order(self) -> None:
        old = {("d", str(number)): pod(str(number)) for number in range(2000)}
        new = dict(reversed(old.items()))
        assert self.changed(old, new) == []
        new["d", "7"] = pod("new")
        assert self.changed(old, new) == [("d", "7")]
        assert self.changed(old, old) == []
