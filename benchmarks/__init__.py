"""Benchmarks: `python -m benchmarks NAME`. One module each, with `run(report, quick)`."""
