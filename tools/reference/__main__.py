"""Called by `make docs`."""

from tools import reference

reference.write()
