"""Debian's packages in the image: which ones, fetched by apt-get and unpacked without running any of their scripts.

apt-get is told that nothing is installed, so that it names all that Python, bash and the certificates need. What of
that only serves to install packages is left out (`LEFT_OUT`), and what nobody reads in a container (`DROPPED`). What
packages' scripts would have done and the image needs is done here (`set_up`). The machine is not changed: lists and
packages are kept in a folder of ours.
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

from tools.image import contents, digests
from tools.image.errors import ImageError, run, say

WANTED: Final = ("python3", "bash", "base-files", "ca-certificates", "libstdc++6")
"""libstdc++6 is what wheels expect of every machine."""
LEFT_OUT: Final = {
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
"""What packages need that is not in the image, and why. A library that is missed fails the build (`elf.py`)."""
DROPPED: Final = (
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
"""Documentation, other languages, what starts services, and parts of Python that need what is left out."""
_KEPT: Final = re.compile(r"usr/share/doc(/[^/]+(/copyright)?)?")
"""Of documentation the licences, which have to come with the programs."""
_MERGED: Final = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
"""Links into `usr`, as every Debian has them since 12."""
_FILES: Final = {
    "etc/passwd": f"root:x:0:0:root:/root:/bin/bash\n"
    f"{contents.NAME}:x:{contents.UID}:{contents.UID}:{contents.NAME}:{contents.HOME}:/bin/bash\n"
    "nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n",
    "etc/group": f"root:x:0:\n{contents.NAME}:x:{contents.UID}:\nnogroup:x:65534:\n",
    "etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\nservices: files\nprotocols: files\n",
}
_BUNDLE: Final = "etc/ssl/certs/ca-certificates.crt"
_REMEDY: Final = "make the image on Debian with a mirror that apt-get can reach, or build the Containerfile"


class Package(NamedTuple):
    """A package that is in the image."""

    name: str
    version: str
    architecture: str
    source: str
    file: str
    """In the folder of packages."""
    digest: str


def resolve(cache: Path, *, has_to_be_new: bool) -> list[Package]:
    """Fetches what is to be in the image, and remembers it. ImageError, also where lists that cannot be brought up to
    date would leave out what has been mended, if that must not be.
    """
    _check_machine()
    cache.mkdir(parents=True, exist_ok=True)
    options = _options(cache)
    say("asking Debian's package lists")
    update = ["apt-get", "-qq", *options, "--error-on=any", "update"]
    try:
        run(update, "package lists cannot be brought up to date; --offline takes what was fetched last")
    except ImageError as error:
        if has_to_be_new:
            raise
        say(f"warning: {error}")
    simulation = run(["apt-get", *options, "-s", "install", "--no-install-recommends", *WANTED], _told())
    names = chosen(simulation, distribution())
    run(["apt-get", "-qq", *options, "download", *names], _told(), cache / "packages")
    # apt-get compares only the size of a file that is already there
    signed = signed_digests(
        run(["apt-get", *options, "download", "--print-uris", *names], _told(), cache / "archives")
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


def remembered(cache: Path) -> list[Package] | None:
    """The packages that were fetched last; None if one is missing. ImageError if a file is not what was fetched."""
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
    """SHA-256 digests by file name, from `apt-get download --print-uris`: those of Debian's signed package lists."""
    return dict(re.findall(r"^'[^']*' (\S+) \d+ SHA256:([0-9a-f]{64})$", printed, re.MULTILINE))


def chosen(simulation: str, wanted_origin: str) -> list[str]:
    """`name=version` of what apt-get would install, without what is left out. ImageError: not of this distribution."""
    rows = re.findall(r"^Inst (\S+) \((\S+) (.*?) \[", simulation, re.MULTILINE)
    foreign = [name for name, _, origin in rows if not origin.lower().startswith(wanted_origin)]
    if foreign or not rows:
        what = f"{', '.join(foreign)} would come from elsewhere" if foreign else "apt-get named no package"
        raise ImageError(f"packages have to be of {wanted_origin}: {what}; {_REMEDY}")
    return [f"{name.partition(':')[0]}={version}" for name, version, _ in rows if not _is_left_out(name)]


def unpack(packages: Sequence[Package], cache: Path, root: Path) -> None:
    """The packages' files in a new folder, with what their scripts would have done that the image needs."""
    root.mkdir(parents=True)
    for package in packages:
        _extract(cache / "packages" / package.file, root)
    for name in _MERGED:
        if (root / "usr" / name).is_dir():
            (root / name).symlink_to(f"usr/{name}")
    _set_up(root)
    status = root / "var/lib/dpkg/status.d"
    status.mkdir(parents=True)
    for package in packages:
        control = run(["dpkg-deb", "--field", cache / "packages" / package.file], "reading a package")
        (status / package.name).write_text(_with_status(control))


def release() -> dict[str, str]:
    """What this machine's os-release says; empty where there is none."""
    try:
        return platform.freedesktop_os_release()
    except OSError:
        return {}


def distribution() -> str:
    """`debian`, or one that is made like it."""
    return release().get("ID", "")


def key(packages: Iterable[Package]) -> str:
    """A digest of what the packages are."""
    return sha256(json.dumps([package.digest for package in packages]).encode()).hexdigest()[:16]


def _check_machine() -> None:
    lacking = [name for name in ("apt-get", "dpkg-deb") if not shutil.which(name)]
    if lacking or not distribution():
        raise ImageError(
            f"this is no Debian: there is no {' and no '.join(lacking) or 'os-release'}; {_REMEDY}"
        )


def _told() -> str:
    return f"Debian's packages cannot be fetched; {_REMEDY}"


def _options(cache: Path) -> list[str]:
    """apt-get with state of ours: nothing is installed, and nothing of the machine's is written."""
    for folder in ("lists/partial", "packages", "archives/partial"):
        (cache / folder).mkdir(parents=True, exist_ok=True)
    (cache / "status").write_text("")
    own = {
        "Dir::State": cache,
        "Dir::State::Lists": cache / "lists",
        "Dir::State::status": cache / "status",
        "Dir::Cache": cache,
        "Acquire::http::Timeout": 30,
        "APT::Sandbox::User": "root",  # its own user may not write into our folder
        "APT::Get::List-Cleanup": "false",
    }
    return [word for name, value in own.items() for word in ("-o", f"{name}={value}")]


def _files(folder: Path, names: Sequence[str]) -> list[str]:
    """The files that apt-get made of `name=version`."""
    file_names = []
    for name, _, version in (package.partition("=") for package in names):
        files = sorted(folder.glob(f"{name}_{version.replace(':', '%3a')}_*.deb"))
        if len(files) != 1:
            raise ImageError(f"{name} {version}: {len(files)} files came, one was wanted; {_REMEDY}")
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


def _is_left_out(name: str) -> bool:
    return any(fnmatch.fnmatchcase(name.partition(":")[0], pattern) for pattern in LEFT_OUT)


def _extract(file: Path, root: Path) -> None:
    result = subprocess.run(["dpkg-deb", "--fsys-tarfile", file], capture_output=True, check=False)
    if result.returncode:
        raise ImageError(f"{file.name}: {result.stderr.decode(errors='replace').strip()}")
    with tarfile.open(fileobj=io.BytesIO(result.stdout)) as archive:
        for member in archive:
            name = merged(member.name)
            if not name or name in _MERGED or is_dropped(name):
                continue
            _place(archive, member, root, root / name)


def merged(name: str) -> str:
    """The path in the image, where `bin` and the like are links; empty for the root."""
    name = name.removeprefix("./").strip("/")
    name = "" if name == "." else name
    return f"usr/{name}" if name.partition("/")[0] in _MERGED and "/" in name else name


def is_dropped(name: str) -> bool:
    """Whether a path of a package, or a folder above it, is not in the image."""
    if name.startswith("usr/share/doc/"):
        return not _KEPT.fullmatch(name)
    parts = name.split("/")
    prefixes = ["/".join(parts[:number]) for number in range(1, len(parts) + 1)]
    return any(fnmatch.fnmatchcase(prefix, pattern) for prefix in prefixes for pattern in DROPPED)


def _place(archive: tarfile.TarFile, member: tarfile.TarInfo, root: Path, path: Path) -> None:
    if member.isdir():
        path.mkdir(parents=True, exist_ok=True)
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    if member.issym():
        path.symlink_to(member.linkname)
    elif member.islnk():
        path.hardlink_to(root / merged(member.linkname))
    elif member.isreg():
        content = archive.extractfile(member)
        path.write_bytes(content.read() if content else b"")
        path.chmod(0o755 if member.mode & 0o100 else 0o644)


def _set_up(root: Path) -> None:
    """What scripts of packages do: users, the bundle of certificates, a shell."""
    for folder in ("etc", "proc", "sys", "dev", "tmp", "var/tmp", "run", "opt", contents.HOME.lstrip("/")):
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
    openssl = root / "usr/lib/ssl"  # where its library looks by default
    openssl.mkdir(parents=True, exist_ok=True)
    for name, target in {"cert.pem": f"/{_BUNDLE}", "certs": "/etc/ssl/certs"}.items():
        if not (openssl / name).is_symlink():
            (openssl / name).symlink_to(target)
    shell = root / "usr/bin/sh"
    if not shell.is_symlink():
        shell.symlink_to("bash")


def _with_status(control: str) -> str:
    """As scanners for known faults expect it of a package that is there."""
    head, _, rest = control.partition("\n")
    return f"{head}\nStatus: install ok installed\n{rest}"
