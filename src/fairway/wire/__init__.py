"""What clients and servers exchange: typed messages, nothing else."""
