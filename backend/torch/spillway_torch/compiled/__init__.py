"""Graphs of torch.compile: what they take under a choice of saved values, and which choice stays in a budget."""
