"""Single changes of the hit path, each of which some test has to notice: `make mutants`.

`changes` has all of them, by the part that they are in; `trial` applies one to a copy of the tree and runs its tests there.
"""
