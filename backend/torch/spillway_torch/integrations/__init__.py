"""Callbacks that bring the training loops of other libraries under a memory budget: `transformers` and `lightning`."""
