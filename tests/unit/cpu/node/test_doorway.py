"""What agents leave beside their socket."""

from pathlib import Path

import pytest

from nodewise.cpu.node import doorway
from nodewise.errors import Unavailable


def test_what_agents_left_is_removed_once_none_of_them_serves(tmp_path: Path) -> None:
    socket, other = tmp_path / "run/cpu.sock", tmp_path / "run/cpusets.json"
    assert not doorway.clear(socket, other)
    assert not socket.parent.exists()
    with doorway.opened(socket):
        other.write_text("{}")
        with pytest.raises(Unavailable, match="no other agent serves"):
            doorway.clear(socket, other, patience_s=0)
        assert other.exists()
    assert doorway.clear(socket, other)
    assert list(socket.parent.iterdir()) == []
    assert not doorway.clear(socket, other)
