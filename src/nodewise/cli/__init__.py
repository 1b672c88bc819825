"""The command line: one file a command, and the only place that wires rooms together.

`settings` makes options out of the settings structs, `older_flags` translates the flags of older programs,
`main` is the
table of commands. Data go to stdout, everything else to stderr. Exit codes: 0 done, 1 failed, 2 usage or settings,
3 the answer is no.
"""
