"""What probes cost: rows measured interleaved with reference primitives, each added to a baseline of the same round.

python -m benchmarks                            # all rows, as a table with the bars
python -m benchmarks --json fprobe.both.native  # one JSON object per line
"""
