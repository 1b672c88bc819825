"""Installation of the program on hosts, in a folder that containers mount."""
