"""HTTPS server: TLS with reload and replacement of the client CA, limits, deadlines, graceful end, the admin port.

Independent of Kubernetes and of the content of bodies. `server.HttpServer` serves the routes of an `Application`.
"""
