"""The licenses in the archive of the kubectl plugin."""

from pathlib import Path

from tools import bundled_licenses


def test_each_package_that_nodewise_needs_has_its_license(tmp_path: Path) -> None:
    bundled_licenses.write(tmp_path, "nodewise", ["risk"], tmp_path / "none")
    names = {path.name for path in tmp_path.iterdir()}
    assert {"nodewise", "numpy", "scipy", "cryptography", "cffi", "httpcore2"} <= names, "also indirect ones"
    assert not {"matplotlib", "grpcio", "pytest"} & names, "of other extras"
    assert [path for path in tmp_path.iterdir() if not any(file.is_file() for file in path.rglob("*"))] == []
