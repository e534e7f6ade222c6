"""Simulated instances: prefill, decode and colocated, on the engines' own policy."""
