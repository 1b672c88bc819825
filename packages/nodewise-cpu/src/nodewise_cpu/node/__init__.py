"""The machine of a node: its cores, its processes, its kubelet, and reports about them."""
