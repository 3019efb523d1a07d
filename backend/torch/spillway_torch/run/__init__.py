"""Runs steps under plans."""
