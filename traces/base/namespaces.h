// The namespaces of the libraries. Each sees the names of the libraries that it stands on, and of
// no other.

#ifndef SPILLWAY_TRACES_BASE_NAMESPACES_H_
#define SPILLWAY_TRACES_BASE_NAMESPACES_H_

// traces/: traces, and the code that reads, makes and checks them.
namespace spillway::traces {}

// sim/: the interfaces of policies and backends, the runtime, allocators, costs and the engine.
namespace spillway::sim {
using namespace traces;
}

namespace spillway::policies {
using namespace sim;
}

// backend/common/: the code that the backends of the CPU and of CUDA share.
namespace spillway::backend {
using namespace sim;
}

namespace spillway::cpu {
using namespace backend;
}

namespace spillway::cuda {
using namespace backend;
}

// experiments/: cases, their runs and results, and the tools of the command line.
namespace spillway::lab {
using namespace policies;
using namespace cpu;
using namespace cuda;
}  // namespace spillway::lab

// experiments/cli/ and the verbs of each tool.
namespace spillway::cli {
using namespace lab;
}

namespace spillway::testing {
using namespace cli;
}

namespace spillway::fuzz {
using namespace cli;
}

#endif  // SPILLWAY_TRACES_BASE_NAMESPACES_H_
