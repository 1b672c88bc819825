"""HTTPS server: TLS with reload and replacement of the client CA, limits, deadlines, graceful end, the admin port.

The package is independent of Kubernetes and of the content of bodies. `server.HttpServer` serves the routes
(`application.Route`) of an `application.Application`.

    listener              accepts connections and limits their number, starts TLS
    server_tls_context    the TLS context of the certificate files; verification after a change of the client CA
    tls_handshake         ALPN and alerts, which asyncio leaves out
    client_authorizer     what a client's certificate permits
    http_connection       one connection: HTTP/1.1 with limits and deadlines
    connection_deadlines  the phases of a connection and their deadlines
    request_header_collector
                          collects the header of a request, and counts bytes that are not part of a body
    application           routes and exchanges: from a request header to a response
    responses             errors and refusals as responses, responses as bytes
    connection_close_reasons
                          why the server refused or closed a connection: counted, and logged at a limited rate
    server                start, drain and stop; reload of certificates
    admin_port            health, readiness and metrics
    options               settings
    certificate_reloader  rereads certificate files when they change
    pem_files             reads and validates certificates and keys in PEM
    certificate_issuer    issues certificates with an authority in memory
"""
