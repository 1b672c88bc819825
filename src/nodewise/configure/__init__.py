"""What makes kube-scheduler call nodewise."""
