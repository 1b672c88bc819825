"""Configuration of kube-scheduler and its hosts to call nodewise, and certificates for the connection."""
