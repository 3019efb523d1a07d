"""The families of operators that `record_operators` runs, by name."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from .choices import embeddings, image_losses, losses
from .elements import copies, elementwise, reductions, whole_numbers
from .grid import Entry, Grid
from .layers import (convolutions, depthwise_convolutions, dilated_convolutions, grouped_convolutions, large_planes, narrow_convolutions,
                     norms, planes, resampling)
from .products import attention, cross_attention, products
from .updates import optimizers

FAMILIES: dict[str, Callable[[Grid], Iterator[Entry]]] = {
    function.__name__: function
    for function in (products, attention, cross_attention, norms, losses, image_losses, embeddings, elementwise, reductions, copies,
                     convolutions, grouped_convolutions, depthwise_convolutions, dilated_convolutions, narrow_convolutions, large_planes,
                     planes, resampling, optimizers, whole_numbers)}
