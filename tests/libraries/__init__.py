"""CPython's own regression tests with every function of the libraries under them probed at both ends: `make libraries`."""
