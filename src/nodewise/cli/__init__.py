"""The command line: one module or package for each command, and the only place that connects all packages.

`main` contains the table of commands, `setting_declarations` derives options from settings structs, and
`older_program_flags` translates the flags of older programs. Data go to stdout, everything else to stderr. Exit codes:
0 success, 1 failure, 2 invalid usage or settings, 3 a negative answer.
"""
