#include "policies/kernels/integer_program.h"

#ifdef SPILLWAY_HAVE_CBC

#include <coin/Cbc_C_Interface.h>

#include <memory>
#include <mutex>
#include <string>

namespace spillway::policies {

std::vector<double> SolveByCbc(const IntegerProgram& program, std::optional<int64_t> nodes) {
  static std::mutex one_at_a_time;
  const std::lock_guard lock(one_at_a_time);
  const std::unique_ptr<Cbc_Model, decltype(&Cbc_deleteModel)> model(Cbc_newModel(),
                                                                     &Cbc_deleteModel);
  Cbc_setParameter(model.get(), "logLevel", "0");
  Cbc_setParameter(model.get(), "ratioGap", "0");
  Cbc_setParameter(model.get(), "allowableGap", "0");
  if (nodes) Cbc_setParameter(model.get(), "maxNodes", std::to_string(*nodes).c_str());
  const std::vector<double> zeros(program.costs.size(), 0.0);
  Cbc_loadProblem(model.get(), static_cast<int>(program.costs.size()),
                  static_cast<int>(program.row_least.size()), program.starts.data(),
                  program.rows.data(), program.factors.data(), zeros.data(), program.most.data(),
                  program.costs.data(), program.row_least.data(), program.row_most.data());
  for (size_t i = 0; i < program.integer.size(); ++i) {
    if (program.integer[i]) Cbc_setInteger(model.get(), static_cast<int>(i));
  }
  Cbc_solve(model.get());
  const double* const values = Cbc_bestSolution(model.get());
  if (values == nullptr) return {};
  return {values, values + program.costs.size()};
}

}  // namespace spillway::policies

#endif
