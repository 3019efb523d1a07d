// Weights of the program that may be without memory: each operator that is given one has it there.
//
// A tensor of such a weight has the key of the watch (watch.cc) among its own, and so has each view
// of it. So the fallback of the dispatcher sees each operator that reads or writes the weight: in
// all threads, in forward, in backward and between steps.

#pragma once

#include <step_library.h>  // of this folder

#include <torch/csrc/utils/pybind.h>

#include <functional>
#include <memory>
#include <vector>

namespace spillway_torch {

class Weights : public std::enable_shared_from_this<Weights> {
 public:
  // begin: is called with the numbers of weights before an operator gets them, and gives them
  // memory. end: is called behind the operator, also where that failed, with these numbers and with
  // the numbers of the weights that it wrote.
  Weights(py::object begin, py::object end) : begin_(std::move(begin)), end_(std::move(end)) {}
  Weights(const Weights&) = delete;
  ~Weights() { Close(); }

  // Marks a tensor, and the views of it that the program makes from now on.
  static void Mark(const Tensor& tensor);
  // Has the operators that are given marked tensors of this one's storage tell the weight's number.
  void Add(const Tensor& tensor, size_t number);
  void Remove(uintptr_t storage);  // by its address
  void Close();

  // Takes the memory of the tensor's storage away, whose size stays, and returns it as bytes.
  static Tensor GiveUp(const Tensor& tensor);
  // Lets the storage have the memory of another tensor, which it shares.
  static void Put(const Tensor& tensor, const Tensor& memory);
  // Returns how many holders the tensor's storage has, apart from its object in Python.
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
