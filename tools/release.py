"""`make release`: writes the files of a release into dist/VERSION.

The folder contains the wheels, the source distributions, the Helm chart, the image with its SBOM, the installation
manifest of native mode, the kubectl plugin with its manifest for krew, the release notes, a provenance statement and
SHA256SUMS. `--sign` signs each file with cosign. `docs/how-to/release.md` describes the steps.
"""

import argparse
import hashlib
import json
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import yaml
from tests.cluster import program_cache
from tests.cluster.go_toolchain import MissingError

import nodewise
from nodewise.base.errors import NodewiseError
from nodewise.install import platform_manifests
from tools import helm_chart_generator, kubectl_plugin
from tools.helm_chart_generator import CHART
from tools.image import image_constants, oci

ROOT: Final = Path(__file__).parents[1]
CHANGELOG: Final = Path("CHANGELOG.md")
CHECKSUMS: Final = "SHA256SUMS"
PROVENANCE: Final = "provenance.intoto.json"
INSTALLATION: Final = "install.yaml"
_ICON: Final = "docs/site/mark.svg"


class ReleaseError(Exception):
    """A release cannot be made."""


def release_notes(changelog: str, version: str, tag: str = "") -> str:
    """The section of a version. Without a tag, `Unreleased` if the version has none. ReleaseError if it is missing."""
    if tag not in {"", f"v{version}"}:
        raise ReleaseError(
            f"--tag: found {tag}, expected v{version}, the version of src/nodewise/__init__.py"
        )
    sections = dict(re.findall(r"^## (.+?)\n+(.*?)(?=^## |\Z)", changelog, re.MULTILINE | re.DOTALL))
    for title in (version,) if tag else (version, "Unreleased"):
        if text := sections.get(title, "").strip():
            return f"# nodewise {version}\n\n{text}\n"
    raise ReleaseError(f"{CHANGELOG}: found no section {version}, expected one with the changes")


def repository_url(project: str) -> str:
    """The address of the repository in the text of pyproject.toml; empty for a placeholder at example.org."""
    url = str(tomllib.loads(project)["project"]["urls"]["Repository"])
    return "" if (urlsplit(url).hostname or "").endswith("example.org") else url


def chart_metadata(metadata: dict[str, Any], url: str) -> dict[str, Any]:
    """Chart.yaml with the addresses of the repository at `url`; unchanged without one."""
    if not url:
        return metadata
    links = [
        {"name": "Documentation", "url": f"{url}/blob/HEAD/README.md"},
        {"name": "Changelog", "url": f"{url}/blob/HEAD/{CHANGELOG}"},
    ]
    annotations = {**metadata["annotations"], "artifacthub.io/links": yaml.safe_dump(links)}
    addresses = {"home": url, "sources": [url], "icon": f"{url}/raw/HEAD/{_ICON}"}
    return {**metadata, **addresses, "annotations": annotations}


def write_checksums(folder: Path) -> None:
    """SHA256SUMS of all files, in the form of sha256sum."""
    files = sorted(path for path in folder.iterdir() if path.name != CHECKSUMS)
    lines = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in files]
    (folder / CHECKSUMS).write_text("".join(lines))


def write_provenance(folder: Path, url: str, revision: str, parameters: dict[str, Any]) -> None:
    """The statement of how the files were built, in the form of in-toto (v1) with the predicate of SLSA (v1).

    Each file of the folder is a subject. `url` and `revision` name the source; the URL of the build type is that of the
    page that describes the build.
    """
    files = sorted(path for path in folder.iterdir() if path.name not in {CHECKSUMS, PROVENANCE})
    source = {"uri": f"git+{url}" if url else "git+file:.", "digest": {"gitCommit": revision}}
    statement = {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [
            {"name": path.name, "digest": {"sha256": hashlib.sha256(path.read_bytes()).hexdigest()}}
            for path in files
        ],
        "predicateType": "https://slsa.dev/provenance/v1",
        "predicate": {
            "buildDefinition": {
                "buildType": f"{url or 'file:.'}/docs/how-to/release.md",
                "externalParameters": parameters,
                "resolvedDependencies": [source],
            },
            "runDetails": {"builder": {"id": f"{url or 'file:.'}/tools/release.py"}},
        },
    }
    (folder / PROVENANCE).write_text(json.dumps(statement, indent=2) + "\n")


def source_revision() -> str:
    """The commit that is checked out. ReleaseError if files differ from it: no commit describes such a build."""
    if changed := _output("git", "status", "--porcelain", "--untracked-files=no"):
        raise ReleaseError(f"found changed files, expected those of a commit:\n{changed}")
    return _output("git", "rev-parse", "HEAD")


def sign(cosign: str, files: Iterable[Path]) -> None:
    """Sign each file with cosign; the bundle FILE.sigstore.json contains signature and certificate."""
    for file in files:
        _run(cosign, "sign-blob", "--yes", "--bundle", f"{file}.sigstore.json", file)


def package_chart(folder: Path, url: str, repository: str) -> None:
    """Write the chart as an archive, with the default `image.repository`."""
    with tempfile.TemporaryDirectory() as temporary:
        copy = shutil.copytree(CHART, Path(temporary, CHART.name))
        metadata = chart_metadata(yaml.load((copy / "Chart.yaml").read_text(), yaml.CSafeLoader), url)
        (copy / "Chart.yaml").write_text(yaml.safe_dump(metadata, sort_keys=False, width=1000))
        values = (copy / "values.yaml").read_text()
        default = f"repository: {image_constants.NAME}\n"
        (copy / "values.yaml").write_text(values.replace(default, f"repository: {repository}\n", 1))
        _run(program_cache.helm(), "package", copy, "--destination", folder)


def image_repository(registry: str) -> str:
    """The name of the image without a tag. Without a registry, the name under which nodes import its archive.

    ReleaseError if a container runtime would refuse the name, for example for a scheme or upper case.
    """
    if not registry:
        return image_constants.NAME
    if not re.fullmatch(r"[a-zA-Z0-9.-]+(:[0-9]+)?(/[a-z0-9]+([._-]+[a-z0-9]+)*)*", registry):
        expected = "a host and a path in lower case, such as registry.example.org/team"
        raise ReleaseError(f"--registry: found {registry!r}, expected {expected}")
    return f"{registry}/{image_constants.NAME}"


def write_installation(folder: Path, repository: str) -> None:
    """Write the objects of native mode as one file.

    With a registry and an image in the folder, the reference contains the digest: a tag can change in a registry.
    """
    version = nodewise.__version__
    archive = folder / f"{image_constants.NAME}-{version}.oci.tar"
    is_in_registry = repository != image_constants.NAME
    image = f"{repository}:{version}"
    if is_in_registry and archive.exists():
        image += f"@{oci.archive_digest(archive)}"
    source = "" if is_in_registry else _IMPORT.format(archive.name)
    header = _INSTALLATION_HEADER.format(
        version=version, oldest=platform_manifests.OLDEST_NATIVE, source=source
    )
    text = platform_manifests.build_native_manifest(helm_chart_generator.NAMESPACE, image, ())
    (folder / INSTALLATION).write_text(header + text)


_IMPORT: Final = "#   before            on each node: ctr --namespace k8s.io images import {}\n"
_INSTALLATION_HEADER: Final = """\
# nodewise {version} in native mode. It needs Kubernetes {oldest} or later: `kubectl version` prints that of the server.
# On older ones kubectl finds no match for the kind MutatingAdmissionPolicy, and policies have no effect on pods.
#
{source}\
#   install, upgrade  kubectl apply --server-side -f install.yaml
#   Prometheus        kubectl -n nodewise set env deployment/nodewise-controller NODEWISE_PROMETHEUS_URL=http://HOST:9090
#   check             kubectl -n nodewise rollout status deployment/nodewise-controller
#   uninstall         delete the policies, wait until nodes have no labels of them (docs/native.md), and
#                     kubectl delete --ignore-not-found -f install.yaml
#
# `nodewise configure --mode native` prints the same objects, with a namespace and an image of your choice.
---
"""


def package_plugin(folder: Path, url: str, archives: Path | None) -> None:
    """Write the plugin's archive for this platform, those of other platforms in `archives`, and the manifest of all.

    The manifest needs addresses, so there is none without `url`.
    """
    file = kubectl_plugin.build(folder)
    kubectl_plugin.check(file)
    for other in kubectl_plugin.find_archives(archives) if archives else ():
        if other.name != file.name:
            shutil.copy(other, folder)
    if url:
        text = kubectl_plugin.manifest(kubectl_plugin.find_archives(folder), url)
        (folder / kubectl_plugin.TEMPLATE.name).write_text(text)


def _run(*command: str | Path, cwd: Path | None = None) -> None:
    subprocess.run([*map(str, command)], check=True, stdout=sys.stderr, cwd=cwd)


def _output(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def _make(folder: Path, arguments: argparse.Namespace) -> None:
    notes = release_notes(CHANGELOG.read_text(), nodewise.__version__, arguments.tag)
    revision = source_revision()
    repository = image_repository(arguments.registry.rstrip("/"))
    cosign = shutil.which("cosign")
    if arguments.sign and not cosign:
        raise ReleaseError("--sign: found no cosign on the PATH, expected the program that signs")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / "RELEASE_NOTES.md").write_text(notes)
    for distribution in (ROOT, *image_constants.PLUGINS):
        _run(sys.executable, "-m", "hatchling", "build", "--directory", folder.absolute(), cwd=distribution)
    url = (arguments.url or repository_url(Path("pyproject.toml").read_text())).rstrip("/")
    package_chart(folder, url, repository)
    if not arguments.no_image:
        _run(sys.executable, "-m", "tools.image", "--into", folder, "--architecture", "all")
    write_installation(folder, repository)
    if not arguments.no_plugin:
        package_plugin(folder, url, arguments.plugins)
    parameters = {
        "version": nodewise.__version__,
        "url": url,
        "repository": repository,
        "image": not arguments.no_image,
        "plugin": not arguments.no_plugin,
    }
    write_provenance(folder, url, revision, parameters)
    write_checksums(folder)
    if arguments.sign and cosign:
        sign(cosign, sorted(folder.iterdir()))


def main() -> int:
    """The exit code: 0, or 1 with an error message."""
    parser = argparse.ArgumentParser(prog="make release")
    parser.add_argument(
        "--url", default="", help="address of the repository; default: that of pyproject.toml"
    )
    parser.add_argument(
        "--registry",
        default="",
        help="registry of the image, such as registry.example.org/team; default: none, nodes import the image",
    )
    parser.add_argument(
        "--tag", default="", help="the tag of the release, such as v1.2.3, which has to be the version"
    )
    parser.add_argument("--sign", action="store_true", help="sign with cosign")
    parser.add_argument("--no-image", action="store_true", help="without the image")
    parser.add_argument("--no-plugin", action="store_true", help="without the kubectl plugin")
    parser.add_argument("--plugins", type=Path, help="folder with archives that `make plugin` made elsewhere")
    folder = Path("dist") / nodewise.__version__
    try:
        _make(folder, parser.parse_args())
    except (ReleaseError, MissingError, NodewiseError, subprocess.CalledProcessError) as error:
        print(f"no release: {error}", file=sys.stderr)
        return 1
    print(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
