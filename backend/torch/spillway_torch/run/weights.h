// Weights of the program that may be without memory: each operator that is given one has it there.
//
// A tensor of such a weight has the key of the watch (watch.cc) among its own, and so has each view
// of it. So the fallback of the dispatcher sees the operators that read or write the weight, of all
// threads, in forward, in backward and between steps, and no others.

#pragma once

#include <step_library.h>  // of this folder

#include <torch/csrc/utils/pybind.h>

#include <functional>
#include <memory>
#include <vector>

namespace spillway_torch {

class Weights : public std::enable_shared_from_this<Weights> {
 public:
  // begin: takes the numbers of weights that an operator is about to be given, and gives them
  // memory. end: takes the same, and those that the operator wrote. It follows each `begin`, also
  // where the operator failed.
  Weights(py::object begin, py::object end) : begin_(std::move(begin)), end_(std::move(end)) {}
  Weights(const Weights&) = delete;
  ~Weights() { Close(); }

  // Marks a tensor, and the views of it that the program makes from now on.
  static void Mark(const Tensor& tensor);
  // Has the operators that are given marked tensors of this one's storage tell the weight's number.
  void Add(const Tensor& tensor, size_t number);
  void Remove(const Tensor& tensor);
  void Close();

  // Takes the memory of the tensor's storage away, whose size stays.
  static void GiveUp(const Tensor& tensor);
  // Lets the storage have the memory of another tensor, which it shares.
  static void Put(const Tensor& tensor, const Tensor& memory);
  // Returns how many tensors hold the storage of this one, and others that are not of Python.
  static size_t Holders(const Tensor& tensor);

 private:
  friend void WithWeights(const c10::FunctionSchema&, const torch::jit::Stack&,
                          const std::function<void()>&);

  const py::object begin_, end_;
};

// Runs an operator with these arguments, whose weights have memory meanwhile.
void WithWeights(const c10::FunctionSchema& schema, const torch::jit::Stack& stack,
                 const std::function<void()>& run);

void DefineWeights(py::module_& module);

}  // namespace spillway_torch
