"""The machine that the pools are on: its cores, its processes, its kubelet, and what is told of them."""
