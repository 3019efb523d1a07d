#include "experiments/papers/paper.h"

namespace spillway::lab {

const std::vector<Paper>& Papers() {
  static const std::vector<Paper> papers{
      {"vdnn", VdnnTables},     {"vdnnpp", VdnnppTables}, {"superneurons", SuperNeuronsTables},
      {"ucudnn", UcudnnTables}, {"mmcnn", MmcnnTables},
  };
  return papers;
}

}  // namespace spillway::lab
