"""Experiments and checks that run against a cluster."""
