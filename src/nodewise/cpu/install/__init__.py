"""The program on hosts, that containers call by a mount."""
