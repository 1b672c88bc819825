"""HTTPS for everyone: TLS with reload and client-CA swap, limits, deadlines, graceful end, the admin port.

Bytes come in, bytes go out. Nothing here knows of Kubernetes, of scheduling or of the shape of a body; who
serves something hands over routes (`application.Route`) and gets a `server.Server` around them.

    listener     accepts, looks at the first byte, chooses the TLS context, bounds how many come in
    tls          what the certificate files hold now; one context a reading, never changed afterwards
    hello        the part of a handshake that Python's loops leave out
    gate         may this certificate call?
    protocol     one connection: header and body limits and deadlines
    application  routes -> ASGI
    answers      every answer and its words
    endings      why a connection was refused or cut: counted, and logged at a bounded rate
    server       all of the above as one thing that starts and stops
    admin        health, readiness and metrics
"""
