"""A memory budget for a training script, from its first step on."""
