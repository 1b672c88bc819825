"""Where a node's state is kept: files below a directory, or a ConfigMap."""
