"""Recorded steps whose operators can run again, and what their autograd graphs show."""
