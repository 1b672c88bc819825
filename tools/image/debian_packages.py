"""Debian's packages of the image: fetched by apt-get and unpacked without running package scripts.

apt-get gets an empty package database, so that it resolves all dependencies of Python, bash and the certificates.
`EXCLUDED_PACKAGES` are dependencies that only serve to install packages, `EXCLUDED_PATHS` files that a container does
not need. `_set_up` creates the required results of package scripts. Lists and packages are in a separate folder; the
machine is not changed. ADR 26 explains why no other tool does this.
"""

import fnmatch
import io
import json
import platform
import re
import shutil
import subprocess
import tarfile
from collections.abc import Iterable, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Final, NamedTuple

from tools.image import digests, image_constants
from tools.image.command_execution_and_errors import ImageError, run, say

REQUESTED: Final = ("python3", "bash", "base-files", "ca-certificates", "libstdc++6")
"""Packages to install with their dependencies; wheels expect libstdc++6 on every machine."""
EXCLUDED_PACKAGES: Final = {
    "debconf": "asks questions when packages are installed",
    "debianutils": "for packages' scripts",
    "dpkg": "installs packages",
    "libacl1": "tar's",
    "libcom-err2": "of Python's NIS",
    "libdb*": "of Python's dbm.ndbm",
    "libgssapi-krb5-2": "of Python's NIS",
    "libk5crypto3": "of Python's NIS",
    "libkeyutils1": "of Python's NIS",
    "libkrb5*": "of Python's NIS",
    "libmd0": "dpkg's",
    "libnsl2": "of Python's NIS",
    "libpcre2-8-0": "tar's",
    "libselinux1": "tar's",
    "libtirpc*": "of Python's NIS",
    "mawk": "for packages' scripts",
    "openssl": "a command; Python has the library",
    "perl-base": "for packages' scripts",
    "tar": "installs packages",
    "tzdata": "nodewise writes times as UTC",
}
"""Dependencies that are not in the image, with reasons. A missing library fails the build
(`shared_library_check.py`)."""
EXCLUDED_PATHS: Final = (
    "boot", "etc/cron*", "etc/default", "etc/dpkg", "etc/init.d", "etc/issue*", "etc/logrotate.d", "etc/motd",
    "etc/skel", "etc/update-motd.d", "usr/bin/bashbug", "usr/bin/clear_console", "usr/bin/pdb3*", "usr/bin/py3*",
    "usr/bin/pydoc*", "usr/bin/pygettext*", "usr/games", "usr/include",
    "usr/lib/*/gconv", "usr/lib/python3*/ensurepip", "usr/lib/python3*/idlelib", "usr/lib/python3*/lib2to3",
    "usr/lib/python3*/lib-dynload/_dbm.*", "usr/lib/python3*/lib-dynload/nis.*", "usr/lib/python3*/pydoc_data",
    "usr/lib/python3*/test", "usr/lib/python3*/tkinter", "usr/lib/python3*/turtledemo", "usr/lib/systemd",
    "usr/lib/valgrind", "usr/lib/cgi-bin", "usr/sbin/*", "usr/share/applications", "usr/share/base-files",
    "usr/share/bash-completion", "usr/share/binfmts", "usr/share/bug", "usr/share/debconf",
    "usr/share/debianutils", "usr/share/dict", "usr/share/doc-base", "usr/share/gdb", "usr/share/info",
    "usr/share/lintian", "usr/share/locale", "usr/share/man", "usr/share/menu", "usr/share/pixmaps",
    "usr/share/python3", "var/backups", "var/local", "var/mail", "var/opt",
)  # fmt: skip
"""Documentation, other languages, service files, and parts of Python that need excluded packages."""
_KEPT_DOCUMENTATION: Final = re.compile(r"usr/share/doc(/[^/]+(/copyright)?)?")
"""The licences, which must accompany the programs."""
_USR_LINKS: Final = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
"""Links into `usr`, as in Debian since version 12."""
_FILES: Final = {
    "etc/passwd": f"root:x:0:0:root:/root:/bin/bash\n"
    f"{image_constants.NAME}:x:{image_constants.UID}:{image_constants.UID}:{image_constants.NAME}:{image_constants.HOME}:/bin/bash\n"
    "nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n",
    "etc/group": f"root:x:0:\n{image_constants.NAME}:x:{image_constants.UID}:\nnogroup:x:65534:\n",
    "etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\nservices: files\nprotocols: files\n",
}
_BUNDLE: Final = "etc/ssl/certs/ca-certificates.crt"
_REMEDY: Final = "make the image on Debian with a mirror that apt-get can reach, or build the Containerfile"


class Package(NamedTuple):
    """A package of the image."""

    name: str
    version: str
    architecture: str
    source: str
    file: str
    """File name in the folder of packages."""
    digest: str


def resolve(
    cache: Path, architecture: str, additional: Sequence[str] = (), *, require_fresh: bool
) -> list[Package]:
    """Fetch the packages of the image and the `additional` ones, and record them in the cache. ImageError, also if the
    package lists cannot be updated and `require_fresh` is set, because security updates would be missing.
    """
    _check_machine()
    cache.mkdir(parents=True, exist_ok=True)
    options = _options(cache, architecture)
    say("fetching Debian's package lists")
    update = ["apt-get", "-qq", *options, "--error-on=any", "update"]
    try:
        run(update, "package lists cannot be brought up to date; --offline takes what was fetched last")
    except ImageError as error:
        if require_fresh:
            raise
        say(f"warning: {error}")
    simulation = run(
        ["apt-get", *options, "-s", "install", "--no-install-recommends", *REQUESTED, *additional],
        _fetch_error(),
    )
    names = select_packages(simulation, distribution())
    run(["apt-get", "-qq", *options, "download", *names], _fetch_error(), cache / "packages")
    # apt-get verifies only the size of files that exist already
    signed = signed_digests(
        run(["apt-get", *options, "download", "--print-uris", *names], _fetch_error(), cache / "archives")
    )
    packages = [_package(cache / "packages" / file) for file in _files(cache / "packages", names)]
    for package in packages:
        digests.verify(cache / "packages" / package.file, package.digest, signed.get(package.file, "none"))
    kept = {package.file for package in packages}
    for file in (cache / "packages").glob("*.deb"):
        if file.name not in kept:
            file.unlink()
    (cache / "packages.json").write_text(json.dumps(packages, indent=1))
    return packages


def cached_packages(cache: Path) -> list[Package] | None:
    """The packages of the last build; None if one is missing. ImageError if a file has been changed."""
    try:
        packages = [Package(*row) for row in json.loads((cache / "packages.json").read_text())]
    except (OSError, ValueError, TypeError):
        return None
    files = [cache / "packages" / package.file for package in packages]
    if not files or not all(file.is_file() for file in files):
        return None
    for file, package in zip(files, packages, strict=True):
        digests.verify(file, digests.of_file(file), package.digest)
    return packages


def signed_digests(printed: str) -> dict[str, str]:
    """SHA-256 digests by file name of Debian's signed package lists, from `apt-get download --print-uris`."""
    return dict(re.findall(r"^'[^']*' (\S+) \d+ SHA256:([0-9a-f]{64})$", printed, re.MULTILINE))


def select_packages(simulation: str, wanted_origin: str) -> list[str]:
    """`name=version` of the packages that apt-get would install, without excluded ones. ImageError for foreign ones."""
    rows = re.findall(r"^Inst (\S+) \((\S+) (.*?) \[", simulation, re.MULTILINE)
    foreign = [name for name, _, origin in rows if not origin.lower().startswith(wanted_origin)]
    if foreign or not rows:
        what = f"{', '.join(foreign)} would come from elsewhere" if foreign else "apt-get named no package"
        raise ImageError(f"packages have to be of {wanted_origin}: {what}; {_REMEDY}")
    return [
        f"{name.partition(':')[0]}={version}" for name, version, _ in rows if not _is_excluded_package(name)
    ]


def unpack(packages: Sequence[Package], cache: Path, root: Path) -> None:
    """Unpack the packages into a new folder, and create the required results of their scripts."""
    root.mkdir(parents=True)
    for package in packages:
        _extract(cache / "packages" / package.file, root)
    for name in _USR_LINKS:
        if (root / "usr" / name).is_dir():
            (root / name).symlink_to(f"usr/{name}")
    _set_up(root)
    status = root / "var/lib/dpkg/status.d"
    status.mkdir(parents=True)
    for package in packages:
        control = run(["dpkg-deb", "--field", cache / "packages" / package.file], "reading a package")
        (status / package.name).write_text(_with_status(control))


def release() -> dict[str, str]:
    """Fields of os-release of this machine; empty if there is none."""
    try:
        return platform.freedesktop_os_release()
    except OSError:
        return {}


def distribution() -> str:
    """ID of the distribution: `debian` or a derivative."""
    return release().get("ID", "")


def key(packages: Iterable[Package]) -> str:
    """A cache key: the digest of all packages."""
    return sha256(json.dumps([package.digest for package in packages]).encode()).hexdigest()[:16]


def _check_machine() -> None:
    missing = [name for name in ("apt-get", "dpkg-deb") if not shutil.which(name)]
    if missing or not distribution():
        raise ImageError(
            f"this is no Debian: there is no {' and no '.join(missing) or 'os-release'}; {_REMEDY}"
        )


def _fetch_error() -> str:
    return f"Debian's packages cannot be fetched; {_REMEDY}"


def _options(cache: Path, architecture: str) -> list[str]:
    """apt-get options for a separate state: an empty package database of one architecture, and no changes of the
    machine.
    """
    for folder in ("lists/partial", "packages", "archives/partial"):
        (cache / folder).mkdir(parents=True, exist_ok=True)
    (cache / "status").write_text("")
    own = {
        "APT::Architecture": architecture,
        "APT::Architectures": architecture,
        "Dir::State": cache,
        "Dir::State::Lists": cache / "lists",
        "Dir::State::status": cache / "status",
        "Dir::Cache": cache,
        "Acquire::http::Timeout": 30,
        "APT::Sandbox::User": "root",  # the user _apt may not write into this folder
        "APT::Get::List-Cleanup": "false",
    }
    return [word for name, value in own.items() for word in ("-o", f"{name}={value}")]


def _files(folder: Path, names: Sequence[str]) -> list[str]:
    """The downloaded files of `name=version`."""
    file_names = []
    for name, _, version in (package.partition("=") for package in names):
        files = sorted(folder.glob(f"{name}_{version.replace(':', '%3a')}_*.deb"))
        if len(files) != 1:
            raise ImageError(f"{name} {version}: found {len(files)} files, expected one; {_REMEDY}")
        file_names.append(files[0].name)
    return sorted(file_names)


def _package(file: Path) -> Package:
    output = run(
        ["dpkg-deb", "--field", file, "Package", "Version", "Architecture", "Source"], "reading a package"
    )
    fields = dict(line.split(": ", 1) for line in output.splitlines() if ": " in line)
    name = fields["Package"]
    return Package(
        name,
        fields["Version"],
        fields["Architecture"],
        fields.get("Source", name).partition(" ")[0],
        file.name,
        digests.of_file(file),
    )


def _is_excluded_package(name: str) -> bool:
    return any(fnmatch.fnmatchcase(name.partition(":")[0], pattern) for pattern in EXCLUDED_PACKAGES)


def _extract(file: Path, root: Path) -> None:
    result = subprocess.run(["dpkg-deb", "--fsys-tarfile", file], capture_output=True, check=False)
    if result.returncode:
        raise ImageError(f"{file.name}: {result.stderr.decode(errors='replace').strip()}")
    with tarfile.open(fileobj=io.BytesIO(result.stdout)) as archive:
        for member in archive:
            name = merged_path(member.name)
            if not name or name in _USR_LINKS or is_excluded(name):
                continue
            _place(archive, member, root, root / name)


def merged_path(name: str) -> str:
    """The path in the image, where `bin` and others are links into `usr`; empty for the root."""
    name = name.removeprefix("./").strip("/")
    name = "" if name == "." else name
    return f"usr/{name}" if name.partition("/")[0] in _USR_LINKS and "/" in name else name


def is_excluded(name: str) -> bool:
    """Whether a path or one of its parents is excluded from the image."""
    if name.startswith("usr/share/doc/"):
        return not _KEPT_DOCUMENTATION.fullmatch(name)
    parts = name.split("/")
    prefixes = ["/".join(parts[:number]) for number in range(1, len(parts) + 1)]
    return any(fnmatch.fnmatchcase(prefix, pattern) for prefix in prefixes for pattern in EXCLUDED_PATHS)


def _place(archive: tarfile.TarFile, member: tarfile.TarInfo, root: Path, path: Path) -> None:
    if member.isdir():
        path.mkdir(parents=True, exist_ok=True)
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    if member.issym():
        path.symlink_to(member.linkname)
    elif member.islnk():
        path.hardlink_to(root / merged_path(member.linkname))
    elif member.isreg():
        content = archive.extractfile(member)
        path.write_bytes(content.read() if content else b"")
        path.chmod(0o755 if member.mode & 0o100 else 0o644)


def _set_up(root: Path) -> None:
    """Create the results of package scripts: users, the bundle of certificates, `/bin/sh`."""
    for folder in (
        "etc",
        "proc",
        "sys",
        "dev",
        "tmp",
        "var/tmp",
        "run",
        "opt",
        image_constants.HOME.lstrip("/"),
    ):
        (root / folder).mkdir(parents=True, exist_ok=True)
    for name, text in _FILES.items():
        (root / name).write_text(text)
    certificates = sorted((root / "usr/share/ca-certificates").rglob("*.crt"))
    if not certificates:
        raise ImageError("the package ca-certificates has no certificates")
    bundle = root / _BUNDLE
    bundle.parent.mkdir(parents=True, exist_ok=True)
    bundle.write_text("".join(f"{path.read_text().strip()}\n" for path in certificates))
    shutil.rmtree(root / "usr/share/ca-certificates")
    openssl = root / "usr/lib/ssl"  # the default path of its library
    openssl.mkdir(parents=True, exist_ok=True)
    for name, target in {"cert.pem": f"/{_BUNDLE}", "certs": "/etc/ssl/certs"}.items():
        if not (openssl / name).is_symlink():
            (openssl / name).symlink_to(target)
    shell = root / "usr/bin/sh"
    if not shell.is_symlink():
        shell.symlink_to("bash")


def _with_status(control: str) -> str:
    """A package's control file with the status line that vulnerability scanners expect."""
    head, _, rest = control.partition("\n")
    return f"{head}\nStatus: install ok installed\n{rest}"
