"""The stores that hold jobs."""
