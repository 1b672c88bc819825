module nodewise/bench/client

go 1.22
