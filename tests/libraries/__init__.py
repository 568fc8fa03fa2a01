"""Tests of CPython and numpy with every function of the libraries under them probed at both ends: `make libraries`."""
