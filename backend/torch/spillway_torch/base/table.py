"""Tables of what a CUDA device does differently from tensors without data.

Names are those of the operators of PyTorch, without "aten::". Each table says where its rows come from. An operator
that behaves differently on a GPU and stands in no table is a defect of this file; operators in `REFUSED` are known to
be missing.
"""

from __future__ import annotations

import torch

# ---- autocast ----
#
# The operators that autocast("cuda") wraps, by what it does with their arguments; from aten/src/ATen/autocast_mode.h of
# all releases. A row holds if the running PyTorch wraps the operator. A test compares the types of results with
# PyTorch's own.

AUTOCAST: dict[str, tuple[str, ...]] = {
    # Floating-point arguments are cast to autocast's type.
    "lower": tuple("""
        _convolution _convolution.deprecated conv1d conv2d conv3d conv_tbc conv_transpose1d conv_transpose2d.input
        conv_transpose3d.input convolution cudnn_convolution cudnn_convolution_transpose prelu addmm addmv addr matmul
        einsum mm mv linalg_vecdot linear addbmm baddbmm bmm chain_matmul linalg_multi_dot _thnn_fused_lstm_cell
        _thnn_fused_gru_cell lstm_cell gru_cell rnn_tanh_cell rnn_relu_cell _scaled_dot_product_flash_attention
        scaled_dot_product_attention""".split()),
    # Floating-point arguments are cast to float32.
    "float32": tuple("""
        acos asin cosh erfinv exp expm1 log log10 log2 log1p reciprocal rsqrt sinh tan pow.Tensor_Scalar pow.Tensor_Tensor
        pow.Scalar softplus layer_norm native_layer_norm group_norm frobenius_norm.dim nuclear_norm nuclear_norm.dim
        cosine_similarity poisson_nll_loss cosine_embedding_loss nll_loss nll_loss2d hinge_embedding_loss kl_div l1_loss
        smooth_l1_loss huber_loss mse_loss margin_ranking_loss multilabel_margin_loss soft_margin_loss triplet_margin_loss
        multi_margin_loss binary_cross_entropy_with_logits dist pdist cdist renorm logsumexp upsample_nearest1d
        _upsample_nearest_exact1d upsample_nearest2d _upsample_nearest_exact2d upsample_nearest3d
        _upsample_nearest_exact3d upsample_linear1d upsample_bilinear2d _upsample_bilinear2d_aa upsample_trilinear3d
        upsample_bicubic2d _upsample_bicubic2d_aa rms_norm linalg_matrix_sqrth""".split()),
    # The argument `dtype` becomes float32 unless it is given.
    "dtype": tuple("""
        prod prod.dim_int softmax.int log_softmax.int cumprod cumsum linalg_vector_norm linalg_matrix_norm
        linalg_matrix_norm.str_ord sum sum.dim_IntList""".split()),
    # The argument `dtype` is appended, which selects another overload.
    "norm": ("norm.Scalar", "norm.ScalarOpt_dim"),
    # Floating-point arguments are cast to the widest of their types.
    "widest": tuple("""
        addcdiv addcmul atan2 bilinear cross dot vdot grid_sampler index_put tensordot scatter_add""".split()),
    # PyTorch refuses these under autocast.
    "banned": ("binary_cross_entropy",),
}

# Operators with named dimensions and the cell of cuDNN's RNN, which `REFUSED` covers.
AUTOCAST_IGNORED = frozenset("""
    prod.dim_Dimname softmax.Dimname log_softmax.Dimname cumprod.dimname cumsum.dimname sum.dim_DimnameList
    norm.names_ScalarOpt_dim _cudnn_rnn""".split())

# Operators that have a kernel on a GPU, and are made of others on other devices.
TAKEN_APART_ELSEWHERE = frozenset(["_fused_rms_norm"])

# ---- operators of a GPU that cannot be recorded ----

REFUSED: dict[str, str] = {
    **{name: "the GPU runs cuDNN's recurrent network, whose reserve is not known"
       for name in ("lstm.input", "lstm.data", "gru.input", "gru.data", "rnn_tanh.input", "rnn_tanh.data",
                    "rnn_relu.input", "rnn_relu.data")},
    **{name: "the GPU's kernel for this loss depends on the lengths of the targets"
       for name in ("ctc_loss.IntList", "ctc_loss.Tensor")},
    "batch_norm_stats": "SyncBatchNorm asks how many samples other processes have; record the model with BatchNorm layers",
}

# ---- operators whose result depends on data ----

# The shape of the result depends on values; it is known if the values are.
SHAPE_FROM_VALUES = frozenset("""
    nonzero nonzero_numpy masked_select unique_consecutive unique_dim _unique _unique2 repeat_interleave.Tensor bincount
    """.split())

# The result is a Python number, from values.
NUMBER_FROM_VALUES = frozenset(("_local_scalar_dense", "equal", "is_nonzero"))

# Index of an argument whose values are taken for known after the operator, and the value. A gradient scaler is assumed
# to find finite gradients: it then runs the optimizer's step.
ASSUMED = {"_amp_foreach_non_finite_check_and_unscale_": (1, 0.0)}

# Arguments, by position, that a GPU's kernel wants of one type. Tensors without data are not checked by PyTorch.
_PAIR, _SUM = (0, 1), (0, 1, 2)
SAME_TYPES: dict[str, tuple[int, ...]] = {
    **dict.fromkeys("mm bmm mv dot vdot binary_cross_entropy grid_sampler_2d grid_sampler_3d".split(), _PAIR),
    **dict.fromkeys("addmm baddbmm addbmm addmv _addmm_activation convolution".split(), _SUM),
    **{f"_scaled_dot_product_{kind}_attention": _SUM for kind in ("flash", "efficient", "cudnn")},
    "index_put": (0, 2), "index_put_": (0, 2), "_index_put_impl_": (0, 2), "index_add": (0, 3), "index_add_": (0, 3),
    "index_copy": (0, 3), "index_copy_": (0, 3),
}

# Arguments, by position, that have to be whole numbers.
INDICES = {"embedding": 1, "index_select": 2, "gather": 2, "scatter": 2, "scatter_add": 2, "nll_loss_forward": 1, "nll_loss2d_forward": 1}

# Normalisations: their weights have the type of the input, or float32 beside an input of half precision.
NORMALISED = {"native_layer_norm": 2, "native_group_norm": 1, "native_batch_norm": 1}

# ---- memory ----

# Arguments that an operator writes without saying so in its schema: running statistics.
HIDDEN_WRITES = {"native_batch_norm": (3, 4), "cudnn_batch_norm": (3, 4), "miopen_batch_norm": (3, 4), "all_gather_copy_in": (1,)}

# Namespaces of operators between processes. Those of "c10d" write their first argument, unless they send it.
PROCESSES = ("c10d", "_c10d_functional", "_c10d_functional_autograd", "_dtensor", "symm_mem")

# The operators between processes that are recorded, and the kinds of communication that they are.
COLLECTIVES = {name: kind for kind, names in {
    "all_reduce": "allreduce_ allreduce_coalesced_ all_reduce all_reduce_ all_reduce_coalesced all_reduce_coalesced_",
    "all_gather": """_allgather_base_ allgather_ allgather_coalesced_ allgather_into_tensor_coalesced_ all_gather_into_tensor
        all_gather_into_tensor_out all_gather_into_tensor_coalesced""",
    "reduce_scatter": """_reduce_scatter_base_ reduce_scatter_ reduce_scatter_tensor_coalesced_ reduce_scatter_tensor
        reduce_scatter_tensor_out reduce_scatter_tensor_coalesced""",
    "all_to_all": "alltoall_ alltoall_base_ all_to_all_single shard_dim_alltoall",
    "broadcast": "broadcast_ broadcast", "reduce": "reduce_", "gather": "gather_", "scatter": "scatter_", "send": "send",
    "receive": "recv_ recv_any_source_", "barrier": "barrier monitored_barrier_"}.items() for name in names.split()}

# Operators that only allocate.
ALLOCATIONS = frozenset(("empty", "empty_strided", "empty_like", "empty_permuted", "new_empty", "new_empty_strided",
                         "resize_"))

# Operators that launch a product of cuBLAS.
PRODUCTS = frozenset(("mm", "addmm", "bmm", "baddbmm", "addbmm", "mv", "addmv", "dot", "vdot", "_addmm_activation",
                      "_scaled_mm", "_int_mm"))

# The products to which the first argument is added.
SUMS_OF_PRODUCTS = frozenset(("addmm", "baddbmm", "addbmm", "addmv", "_addmm_activation"))

# The products that run in cuBLASLt, which adds a bias while it multiplies.
BIASED_PRODUCTS = frozenset(("addmm", "_addmm_activation", "_scaled_mm"))

# Bytes that PyTorch allocates for cuBLASLt at the first such product of each thread. Measured with PyTorch 2.11 on an H200: the
# peaks of GPT-2 and ViT, whose layers have biases, are so much higher, and twice so much if checkpoints run the layers again in
# autograd's thread; Llama's, which has no biases, is not (experiments/evidence/pytorch/h200.csv and recordings-h200.csv).
CUBLASLT_WORKSPACE = 1 << 20


def cublas_workspace(capability: int) -> int:
    """Returns the bytes that PyTorch allocates for cuBLAS at the first product of each thread that runs products.

    Forward and update run in the program's thread, backward in a thread of autograd.

    From aten/src/ATen/cuda/CublasHandlePool.cpp: 32 MiB on compute capability 9.x (and 10.x from PyTorch 2.7 on),
    otherwise 2 x 4 MiB and 8 x 16 KiB. The variable CUBLAS_WORKSPACE_CONFIG is not read.
    """
    return 32 << 20 if capability // 10 in (9, 10) else 2 * (4 << 20) + 8 * (16 << 10)


# Outputs that a GPU's kernel leaves on the host, unless a CUDA graph is captured: the seed and the offset of its
# dropout.
HOST_OUTPUTS = {"_scaled_dot_product_efficient_attention": (2, 3)}

# Losses whose result, one number, keeps the memory of all terms, which PyTorch's kernels make in it before they shrink it
# (aten/src/ATen/native/BinaryOps.cpp, Loss.cpp and cuda/Loss.cu): the position of `reduction`, which is 0 for no sum.
SHRUNK_LOSSES = {"mse_loss": 2, "smooth_l1_loss": 2, "soft_margin_loss": 2, "binary_cross_entropy": 3}

# Seconds of the host for a tiny operator of forward on the CPU, where nobody measured it.
PLAIN = 7e-6

# In addition, an operator on DTensors takes the host so many times as long where that was not measured: the host of two H200 took 83 to 100
# us for each (experiments/evidence/executor/blind, the cases of tensor parallelism). Of a measured `PLAIN`, it takes `APART` times as
# long (experiments/evidence/collectives/fsdp_host).
TAKEN_APART = 13
APART = 6

# FSDP2's own work around these operators takes the host so many times as long: for a module, in addition if that is in forward, and for
# each of its parameters (experiments/evidence/collectives/fsdp_host).
FSDP_WORK = {"fsdp::all_gather_copy_in": (26, 30, 3), "fsdp::chunk_cat": (32, 0, 3)}

# ---- torch.cuda ----

# Functions of torch.cuda that do nothing on a pretended GPU.
CUDA_NOTHING = ("synchronize", "empty_cache", "set_device", "manual_seed", "manual_seed_all", "seed", "seed_all",
                "reset_peak_memory_stats", "reset_max_memory_allocated", "reset_accumulated_memory_stats", "init",
                "_lazy_init", "ipc_collect", "set_per_process_memory_fraction")

# Names of torch.cuda whose use is refused on a pretended GPU, with the reason.
CUDA_REFUSED = {
    "ExternalStream": "what other libraries run on it is not known",
    **{name: "CUDA graphs are not recorded" for name in ("CUDAGraph", "graph", "make_graphed_callables")},
    **{name: "a pretended GPU has no memory of its own" for name in (
        "memory_allocated", "max_memory_allocated", "memory_reserved", "max_memory_reserved", "memory_stats",
        "mem_get_info", "memory_snapshot")},
}
