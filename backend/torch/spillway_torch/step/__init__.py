"""Recordings of steps: which operators ran, in which modules, and the memory that they used."""
