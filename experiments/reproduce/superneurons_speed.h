// The tables and figures of SuperNeurons (Wang et al., PPoPP 2018) that are about time, copies and
// workspaces: Tables 2 and 3, Figs. 2, 8 and 11 to 13.
//
// Times and algorithms are those of the model of a K40c with 12 GiB. The paper names that GPU for
// its Tables 4 and 5 only, and nobody here has measured one: all of this is shown, not judged. The
// pool is first fit of 1 KiB unless an item says otherwise. NET is as in superneurons.h.
//
//   Tab2 NET COLUMN                 CUDA, Ours: images per second under liveness with cudaMalloc
//                                   and cudaFree or with the pool; speedup, and overhead %, the
//                                   part of the former's time that the pool saves
//   Tab3 NET(BATCH) COLUMN GB       copied in both directions where outputs of convolutions leave:
//                                   at once (without) or when memory is short (cache); in 10^9 B
//   Fig2 NET B=BATCH GB             all tensors and three copies of the parameters
//   Fig2 NET B=BATCH workspaces GB  and the fastest algorithm's workspace of every step
//   Fig2 NET B=BATCH speedup x      images per second with those workspaces over that without any
//   Fig8 NET TYPE COLUMN            time %, forward % (of the time of both passes) and memory % of
//                                   the layers of a type: CONV, POOL, ACT, BN, LRN, DROPOUT, FC,
//                                   SOFTMAX, CONCAT, JOIN or FORK
//   Fig11 NET without               images per second without the cache, over that with it
//   Fig12 NET(BATCH) POOL LAYER.PHASE COLUMN
//                                   assigned, fastest: workspace of a convolution's step in MB, in
//                                   a pool of POOL, "3GB": 3000 MiB. PHASE is f or b
//   Fig12 NET(BATCH) POOL img/s
//   Fig13 NET FRAMEWORK GB          as Fig2 with workspaces, at the batch that Table 5 prints
//   Fig13 NET FRAMEWORK x           the same over Caffe's

#ifndef SPILLWAY_EXPERIMENTS_REPRODUCE_SUPERNEURONS_SPEED_H_
#define SPILLWAY_EXPERIMENTS_REPRODUCE_SUPERNEURONS_SPEED_H_

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "experiments/reproduce/item.h"

namespace spillway {

// The item without its name; nullopt if it is none of the above.
std::optional<ComputableItem> ParseSuperNeuronsSpeedItem(std::string_view item);

// The items of one of these tables and figures, named Tab2, Fig12 and so on; else nothing.
std::vector<std::string> SuperNeuronsSpeedItemsOf(std::string_view figure);

}  // namespace spillway

#endif  // SPILLWAY_EXPERIMENTS_REPRODUCE_SUPERNEURONS_SPEED_H_
