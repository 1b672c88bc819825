"""Makes the container image: an OCI archive of Debian's packages, Python's wheels and nodewise, without a daemon.

`python -m tools.image` writes it; no base image is pulled, no script of a package is run, and no root is needed. The
same inputs make the same bytes.
"""
