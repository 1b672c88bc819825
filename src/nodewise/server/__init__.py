"""HTTPS server: TLS with reload and replacement of the client CA, limits, deadlines, graceful end, the admin port.

The package is independent of Kubernetes and of the content of bodies. `server.HttpServer` serves the routes
(`application.Route`) of an `application.Application`.

    server                start, drain and stop; accepts connections and limits their number; the admin port
    server_tls_context    the TLS context of the certificate files; ALPN and alerts; changes of the client CA
    client_authorizer     what a client's certificate permits
    http_connection       one connection: HTTP/1.1 with limits and deadlines
    application           routes and exchanges: from a request header to a response in bytes
    connection_close_reasons
                          why the server refused or closed a connection: counted, and logged at a limited rate
    options               settings
"""
