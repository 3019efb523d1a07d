"""Tests the tables of what a GPU does differently against PyTorch itself, as far as it shows this without a GPU.

The operators of autocast("cuda") run in forward on PyTorch's fake CUDA tensors, which take the GPU's own way.
"""

import contextlib
import unittest
from unittest import mock

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode

from spillway_torch import pretend, record
from spillway_torch.base import attention, table
from spillway_torch.step.pretended import RELEASE

HALF, SINGLE = torch.bfloat16, torch.float32


def shape(*extents, dtype=SINGLE):
    return lambda: torch.ones(*extents, dtype=dtype, device="cuda")


M, H, V, B = shape(4, 4), shape(4, 4, dtype=HALF), shape(4), shape(2, 4, 4)
IMAGE, KERNEL = shape(1, 2, 8, 8), shape(2, 2, 3, 3)
Q = shape(1, 2, 8, 8)
# Operator -> its arguments, which functions make.
CALLS = {
    **{name: (M,) for name in "acos asin cosh erfinv exp expm1 log log10 log2 log1p reciprocal rsqrt sinh tan softplus".split()},
    **{name: (M, M) for name in "matmul mm linear mse_loss l1_loss smooth_l1_loss huber_loss kl_div dist cdist "
                                "cosine_similarity soft_margin_loss binary_cross_entropy_with_logits atan2 "
                                "pow.Tensor_Tensor".split()},
    **{name: (H, M) for name in "mm matmul linear atan2 mse_loss".split()},
    **{f"{name}": (V, V) for name in ("dot", "vdot")},
    **{name: (H,) for name in ("sum", "prod", "linalg_vector_norm", "exp")},
    "mv": (M, V), "addmm": (M, M, M), "addmv": (V, M, V), "addr": (M, V, V), "bmm": (B, B), "baddbmm": (B, B, B),
    "addbmm": (M, B, B), "addcdiv": (M, H, M), "addcmul": (H, H, M), "prelu": (M, V), "pow.Tensor_Scalar": (H, 2), "pow.Scalar": (2, H),
    "softmax.int": (H, 1), "log_softmax.int": (H, 0), "cumsum": (H, 0), "cumprod": (H, 1), "sum.dim_IntList": (H, [0]),
    "logsumexp": (H, [0]), "norm.Scalar": (H,), "norm.ScalarOpt_dim": (H, 2, [0]), "layer_norm": (H, [4]),
    "rms_norm": (H, [4], V), "native_layer_norm": (H, [4], V, V, 1e-5), "group_norm": (shape(2, 4, 3, dtype=HALF), 2), "renorm": (M, 2, 0, 1.0),
    "conv2d": (IMAGE, KERNEL), "conv1d": (shape(1, 2, 8), shape(2, 2, 3)),
    "convolution": (IMAGE, KERNEL, None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1),
    "conv_transpose2d.input": (IMAGE, KERNEL), "upsample_nearest2d": (shape(1, 2, 8, 8, dtype=HALF), [16, 16]),
    "scaled_dot_product_attention": (Q, Q, Q), "tensordot": (M, H, [1], [0]), "cross": (shape(4, 3), shape(4, 3, dtype=HALF)),
    "einsum": ("ij,jk->ik", [M, H]), "chain_matmul": ([M, M, M],), "linalg_multi_dot": ([M, H, M],),
}


def call(name, arguments):
    """Returns the types of the results of an operator on CUDA tensors of the active mode, under autocast."""
    packet, _, overload = name.partition(".")
    op = getattr(getattr(torch.ops.aten, packet), overload or "default")

    def make(value):
        return [make(v) for v in value] if isinstance(value, list) else value() if callable(value) else value

    with torch.autocast("cuda", HALF):
        result = op(*(make(value) for value in arguments))
    return [t.dtype for t in (result if isinstance(result, (tuple, list)) else (result,))]


class AutocastTest(unittest.TestCase):
    def test_it_names_all_operators_that_this_pytorch_wraps(self):
        has = torch._C._dispatch_has_kernel_for_dispatch_key
        wrapped = {name.removeprefix("aten::") for name in torch._C._dispatch_get_all_op_names()
                   if name.startswith("aten::") and has(name, "AutocastCUDA")}
        named = {name for names in table.AUTOCAST.values() for name in names}
        self.assertLessEqual(wrapped - named, table.AUTOCAST_IGNORED)
        self.assertFalse(named & table.AUTOCAST_IGNORED)

    @unittest.skipIf(RELEASE < (2, 11), "fake CUDA tensors of this PyTorch need a GPU for some of the operators")
    def test_results_have_the_types_of_pytorch(self):
        with pretend("cuda:sm_90"):
            ours = {name: call(name, arguments) for name, arguments in CALLS.items()}
        for name, arguments in CALLS.items():
            with self.subTest(name):
                self.assertEqual(ours[name], of_pytorch(name, arguments))

    def test_the_cast_of_a_parameter_is_kept_until_autocast_ends(self):
        with pretend("cuda:sm_90"):
            layer = torch.nn.Linear(8, 8, bias=False).cuda()

            def step():
                x = torch.ones(2, 8, device="cuda", dtype=HALF)
                with torch.no_grad(), torch.autocast("cuda", HALF):
                    for _ in range(3):
                        layer(x)

            recording = record(step)
        self.assertEqual([o.name for o in recording.operators].count("aten::_to_copy"), 1)
        cast = next(o for o in recording.operators if o.name == "aten::_to_copy").outputs[0].storage
        self.assertEqual(cast.died, len(recording.operators))


@contextlib.contextmanager
def pytorch_without_gpu():
    """PyTorch's own autocast on fake CUDA tensors."""
    with mock.patch.object(torch.cuda.amp.common, "amp_definitely_not_available", lambda: False), (
            mock.patch.object(torch.cuda, "is_bf16_supported", lambda *_: True)), FakeTensorMode(allow_non_fake_inputs=True):
        yield


def of_pytorch(name, arguments):
    with pytorch_without_gpu(), torch.no_grad():
        return call(name, arguments)


class Names(TorchDispatchMode):
    """Notes the operators and the shapes and types of their results."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        name = str(func)
        if name.split(".")[1] not in ("detach", "lift_fresh", "empty") and not name.startswith("prim."):
            self.seen.append((name, [(tuple(t.shape), t.dtype) for t in (result if isinstance(result, (tuple, list)) else [result])
                                     if isinstance(t, torch.Tensor)]))
        return result


def tensor(*extents, dtype=SINGLE, grad=True):
    return torch.empty(*extents, dtype=dtype, device="cuda", requires_grad=grad)


def batch_norm(dtype, of_weight, training, shape=(4, 8, 5, 5)):
    return lambda: F.batch_norm(tensor(*shape, dtype=dtype), *(tensor(8, dtype=of_weight, grad=False) for _ in range(2)),
                                *(tensor(8, dtype=of_weight) for _ in range(2)), training)


def under_autocast(function):
    with torch.autocast("cuda", HALF):
        return function()


def attend_by_math():
    with sdpa_kernel(SDPBackend.MATH):
        return F.scaled_dot_product_attention(tensor(1, 2, 4, 8), tensor(1, 2, 4, 8), tensor(1, 2, 4, 8), tensor(1, 2, 4, 4), 0.1)


WAYS = {
    **{f"{function.__name__} of {dtype}": lambda function=function, dtype=dtype: function(tensor(4, 8, dtype=dtype), -1, dtype=SINGLE)
       for function in (F.softmax, F.log_softmax) for dtype in (HALF, torch.float16, SINGLE)},
    **{f"batch norm of {dtypes}, {training}": batch_norm(*dtypes, training) for training in (True, False)
       for dtypes in ((SINGLE, SINGLE), (HALF, SINGLE), (HALF, HALF), (torch.float16, SINGLE), (torch.float16, torch.float16))},
    "batch norm of rows": batch_norm(SINGLE, SINGLE, True, (4, 8)),
    **{f"rms norm of {dtype} {of_weight}": lambda dtype=dtype, of_weight=of_weight: F.rms_norm(
        tensor(4, 8, dtype=dtype), (8,), tensor(8, dtype=of_weight)) for dtype, of_weight in ((SINGLE, SINGLE), (HALF, HALF), (HALF, SINGLE))},
    "rms norm under autocast": lambda: under_autocast(lambda: F.rms_norm(tensor(4, 8, dtype=HALF), (8,), tensor(8))),
    "softmax under autocast": lambda: under_autocast(lambda: F.softmax(tensor(4, 8, dtype=HALF), -1)),
    "dropout in attention by products": attend_by_math,
    "casts": lambda: under_autocast(lambda: F.linear(tensor(2, 3), tensor(5, 3), tensor(5))),
    "dropout": lambda: F.dropout(tensor(4, 8), 0.1), "dropout of channels": lambda: F.dropout2d(tensor(1, 2, 4, 8), 0.1),
    "dropout in place": lambda: F.dropout(tensor(4, 8, grad=False), 0.1, inplace=True),
    "dropout of none": lambda: F.dropout(tensor(4, 8), 0.0), "dropout of all": lambda: F.dropout(tensor(4, 8), 1.0),
    "linear": lambda: F.linear(tensor(2, 3, 8), tensor(4, 8), tensor(4)),
    "matmul": lambda: tensor(2, 3, 8) @ tensor(8, 4), "pooling": lambda: F.max_pool2d(tensor(1, 2, 8, 8), 2),
    "pooling without gradient": lambda: F.max_pool2d(tensor(1, 2, 8, 8, grad=False), 2),
    "number written": lambda: tensor(4, 4, grad=False).__setitem__((slice(None), 0), 3.0),
    "number written by a mask": lambda: tensor(4, 4, grad=False).__setitem__(tensor(4, 4, dtype=torch.bool, grad=False), 3.0),
    "loss": lambda: F.cross_entropy(tensor(4, 8), tensor(4, dtype=torch.long, grad=False)),
    "layer norm": lambda: F.layer_norm(tensor(4, 8, dtype=HALF), (8,), tensor(8, dtype=HALF)),
    "group norm": lambda: F.group_norm(tensor(4, 8, 5, dtype=HALF), 2), "instance norm": lambda: F.instance_norm(tensor(2, 4, 8, 8)),
    "convolution": lambda: F.conv2d(tensor(1, 2, 8, 8), tensor(3, 2, 3, 3), tensor(3)),
    "transposed convolution": lambda: F.conv_transpose2d(tensor(1, 2, 8, 8), tensor(2, 3, 2, 2), tensor(3), 2),
}


@unittest.skipIf(RELEASE < (2, 11), "autograd of this PyTorch refuses fake CUDA tensors without a GPU")
class WaysTest(unittest.TestCase):
    def test_composite_operators_are_taken_apart_as_on_a_gpu(self):
        for name, call_of in WAYS.items():
            with self.subTest(name):
                with pytorch_without_gpu(), Names() as theirs:
                    call_of()
                with pretend("cuda:sm_90"), Names() as ours:
                    call_of()
                self.assertEqual(ours.seen, theirs.seen)


class AttentionTest(unittest.TestCase):
    """The choices follow from the rules, row by row; the first row was seen on an H200 with PyTorch 2.11."""

    def test_choices(self):
        h, s = HALF, SINGLE
        for expected, capability, dtype, width, options in (
                ("cudnn" if attention.prefers_cudnn(90) else "flash", 90, h, 64, {}),
                ("flash", 80, h, 64, {}), ("flash", 89, h, 256, {}), ("efficient", 90, s, 64, {}), ("efficient", 75, s, 64, {}),
                ("math", 90, s, 63, {}), ("flash", 86, h, 60, {}), ("math", 70, h, 64, {}), ("efficient", 75, torch.float16, 64, {}),
                ("efficient", 80, h, 64, {"mask": True}), ("math", 80, h, 60, {"mask": True}), ("math", 90, torch.float64, 64, {}),
                ("math", 80, h, 320 + 4, {}), ("efficient", 80, h, 320, {})):
            with self.subTest(f"{expected} {capability} {dtype} {width} {options}"):
                q = torch.empty(2, 4, 128, width, dtype=dtype, device="meta")
                mask = torch.empty(128, 128, dtype=torch.bool, device="meta") if options else None
                self.assertEqual(attention.choose(q, q, q, mask, 0.0, False, False, capability), expected)

    def test_outputs_that_a_gpu_has(self):
        def outputs(dtype, grad):
            with pretend("cuda:sm_90"):
                q = torch.empty(1, 2, 128, 64, dtype=dtype, device="cuda", requires_grad=grad)
                recording = record(lambda: F.scaled_dot_product_attention(q, q, q))
            operator = next(o for o in recording.operators if "attention" in o.name)
            return operator.name.removeprefix("aten::_scaled_dot_product_"), [o.dtype for o in operator.outputs]

        if attention.prefers_cudnn(90):
            random = [torch.int64, torch.int64]
            self.assertEqual(outputs(HALF, True), ("cudnn_attention", [HALF, torch.float32, *random]))
            self.assertEqual(outputs(HALF, False), ("cudnn_attention", [HALF, *random]))
        self.assertEqual(outputs(torch.float32, True), ("efficient_attention", [torch.float32, torch.float32]))

    def test_switches(self):
        q = torch.empty(2, 4, 128, 64, dtype=HALF, device="meta")
        for backend, expected in ((SDPBackend.MATH, "math"), (SDPBackend.EFFICIENT_ATTENTION, "efficient"),
                                  (SDPBackend.FLASH_ATTENTION, "flash"), (SDPBackend.CUDNN_ATTENTION, "cudnn")):
            with sdpa_kernel(backend):
                self.assertEqual(attention.choose(q, q, q, None, 0.0, False, False, 90), expected)
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION), self.assertRaisesRegex(RuntimeError, "no kernel that is enabled"):
            attention.choose(q.float(), q, q, None, 0.0, False, False, 90)


if __name__ == "__main__":
    unittest.main()
