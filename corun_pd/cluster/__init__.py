"""Clusters: starting the roles, watching them, ending them."""
