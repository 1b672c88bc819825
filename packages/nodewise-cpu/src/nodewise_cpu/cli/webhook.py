"""`nodewise cpu webhook`: the admission webhook for pods that request cores, and its installation."""

import asyncio
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, Literal

import click

from nodewise.base.errors import BadSettings, shown
from nodewise.cli.parameter_types import Duration
from nodewise.kube import yaml_writer
from nodewise.observe import logs
from nodewise.observe.metrics_registry import MetricsRegistry
from nodewise.server.application import Application
from nodewise.server.options import AdminOptions, ServeOptions
from nodewise.server.server import admin_routes, admin_server
from nodewise_cpu.cli import common_options
from nodewise_cpu.cli.common_options import flag, option
from nodewise_cpu.webhook import https_server, manifests
from nodewise_cpu.webhook.manifests import ApiServerCertificate, WebhookInstallation

_WORDS: Final = {
    **dict.fromkeys(("true", "1", "yes", "y", "on", "t"), True),
    **dict.fromkeys(("false", "0", "no", "n", "off", "f", ""), False),
}
_UNTRUSTED: Final = (
    "# No certificate is included (--with-certificate). The Secret {secret} must contain cert.pem and key.pem,\n"
    "# and caBundle of the MutatingWebhookConfiguration must contain the CA that signed them.\n"
)


@dataclass(frozen=True, kw_only=True)
class WebhookOptions:
    """Options of `webhook`."""

    conf_file: str = option(
        "server.yaml, a folder of *.yaml, or a pattern.", https_server.DEFAULT_FILE, metavar="PATH"
    )
    cafile: str = option(
        "CA of the certificate that the API server must present.", manifests.DEFAULT_CAFILE, metavar="FILE"
    )
    insecure: str = option(
        "Require no client certificate: serve every client.", "False", metavar="True|False"
    )
    admin: AdminOptions
    shutdown_delay: float = option(
        "Time after SIGTERM in which requests are still served and connections are closed.",
        "5s",
        type=Duration(),
    )
    print_admission_config: str = option(
        "Write the two files that make the API server present a certificate, and exit.", metavar="DIR|-"
    )
    client_certificate: str = option(
        "The certificate that it presents; a path on its machine.",
        ApiServerCertificate().certificate,
        metavar="FILE",
    )
    client_key: str = option("The key of that certificate.", ApiServerCertificate().key, metavar="FILE")
    print_manifests: bool = flag(
        "Print the webhook's manifests, and exit. The webhook requires client certificates only if --cafile or "
        "--insecure=false is given."
    )
    with_certificate: bool = flag("Include a new certificate with its key.")
    namespace: str = common_options.namespace_option("Namespace of the webhook.")
    image: str = option("Image of the webhook.", WebhookInstallation().image, metavar="IMAGE")
    install_dir: str = common_options.install_dir_option("Folder of the program on nodes.")
    failure_policy: Literal["Ignore", "Fail"] = common_options.choice(
        "Whether a pod that requests cores is created without mutation or rejected while the webhook does not "
        "respond.",
        "Ignore",
        "Fail",
    )
    namespace_selector: Sequence[str] = option(
        "Only pods of namespaces with this label; repeat it for several. Default: all but kube-system.",
        None,
        metavar="LABEL=VALUE",
        multiple=True,
    )


def run(options: WebhookOptions) -> None:
    """Serve the admission webhook, which adds to pods that request cores what `isolate` needs.

    These are the program, the agent's socket and CMK_NUM_CORES. The API server calls the webhook for new pods.
    --conf-file has its address and the mutations, which may be edited at any time. Without --insecure the API server
    must present a certificate of --cafile: --print-admission-config writes the two files that configure it to.

    \b
    Examples:
      nodewise cpu webhook --conf-file /etc/webhook/server.yaml --insecure true
      nodewise cpu webhook --print-manifests --with-certificate |
        kubectl apply -f -
      nodewise cpu webhook --print-admission-config /etc/kubernetes/admission

    \b
    Exit codes:
      0  printed, or ended by SIGTERM or SIGINT
      1  it cannot serve, or cannot write
      2  the command line or a setting is invalid
    """
    any_client = parse_boolean_word(options.insecure, "--insecure")
    if options.print_admission_config:
        _print_admission_configuration(options)
    elif options.print_manifests:
        mutual = not parse_boolean_word(options.insecure, "--insecure") and is_any_parameter_set(
            "insecure", "cafile"
        )
        installation = WebhookInstallation(
            namespace=options.namespace,
            image=options.image,
            install_dir=options.install_dir,
            cafile=options.cafile if mutual else "",
            failure_policy=options.failure_policy,
            selector=dict(_parse_label_option(text) for text in options.namespace_selector),
        )
        made = (
            manifests.create_certificate(installation.namespace, datetime.now(UTC))
            if options.with_certificate
            else None
        )
        if made is None:
            click.echo(_UNTRUSTED.format(secret=manifests.SECRET), nl=False)
        click.echo(yaml_writer.dump_all(manifests.objects(installation, made)), nl=False)
    else:
        common_options.start_cmk_logging(repeats=True)
        asyncio.run(_serve_webhook(options, any_client=any_client))


def parse_boolean_word(word: str, option: str) -> bool:
    """The value of a word that means true or false. BadSettings for any other."""
    value = _WORDS.get(word.strip().lower())
    if value is None:
        raise BadSettings.of("settings", option, shown(word), "true or false")
    return value


def _print_admission_configuration(options: WebhookOptions) -> None:
    client = ApiServerCertificate(options.client_certificate, options.client_key)
    where = options.print_admission_config
    if where == "-":
        texts = manifests.admission_configuration_files(
            manifests.DEFAULT_ADMISSION_FOLDER, options.namespace, client
        )
        click.echo("---\n".join(f"# {name}\n{text}" for name, text in texts.items()), nl=False)
        return
    folder = Path(where).absolute()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in manifests.admission_configuration_files(
            str(folder), options.namespace, client
        ).items():
            (folder / name).write_text(text)
            click.echo(f"{folder / name}")
    except OSError as error:
        raise BadSettings.of(
            "settings", "--print-admission-config", str(error), "a folder that can be written"
        ) from error


def is_any_parameter_set(*parameters: str) -> bool:
    """Whether any of these parameters has another value than its default."""
    context = click.get_current_context()
    return any(
        context.get_parameter_source(parameter) != click.core.ParameterSource.DEFAULT
        for parameter in parameters
    )


def _parse_label_option(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise BadSettings.of("settings", "--namespace-selector", shown(text), "LABEL=VALUE")
    return key, value


async def _serve_webhook(options: WebhookOptions, *, any_client: bool) -> None:
    registry = MetricsRegistry()
    file = https_server.parse_server_settings(options.conf_file)
    mutations = https_server.LiveMutations(file.mutations, registry)
    serve = ServeOptions(
        address=file.binding_address,
        port=file.port,
        cert=file.cert,
        key=file.key,
        client_ca=options.cafile,
        any_client=True,  # the API server's name differs between clusters, and a mutation has no side effect
        max_body_bytes=https_server.LONGEST_BYTES,
    )
    server = https_server.create_webhook_server(mutations, serve, registry, any_client=any_client)
    admin_app = Application(admin_routes(tuple, registry), registry, max_body_bytes=2**16)
    admin = admin_server(admin_app, options.admin, registry)
    came: asyncio.Queue[int] = asyncio.Queue()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, came.put_nowait, number)
    try:
        if any_client:
            logs.emit("cpu_webhook_any_client")
        else:
            logs.emit("cpu_webhook_mutual", cafile=options.cafile)
        await server.start()
        await admin.start()
        if await came.get() == signal.SIGTERM:
            server.drain()
            await asyncio.wait([asyncio.create_task(came.get())], timeout=options.shutdown_delay)
    finally:
        await admin.stop()
        await server.stop()


command = common_options.create_click_command("webhook", run, WebhookOptions)
