#include <fmt/format.h>

#include <array>
#include <utility>

#include "traces/zoo/zoo.h"

namespace spillway::traces {
namespace {

// Five convolutions, with a pool behind the first, second and fifth, and a classifier of three
// linear layers.
struct FiveConvolutions {
  std::array<ConvSpec, 5> convolutions;
  std::array<PoolSpec, 3> pools;
  int norms = 0;  // the number of first convolutions whose outputs are normalised
  bool dropout = false;
  int64_t width = 4096;  // the width of the classifier's first layer
};

Network Build(std::string name, int64_t image, const FiveConvolutions& spec) {
  Network net(std::move(name), {3, image, image});
  LayerNode x = net.image();
  size_t pool = 0;
  for (int i = 1; i <= 5; ++i) {
    x = net.ConvRelu(fmt::format("conv{}", i), x, spec.convolutions.at(static_cast<size_t>(i - 1)));
    if (i <= spec.norms) x = net.Lrn(fmt::format("norm{}", i), x);
    if (i <= 2 || i == 5) x = net.MaxPool(fmt::format("pool{}", i), x, spec.pools.at(pool++));
  }
  x = net.LinearRelu("fc6", x, spec.width);
  if (spec.dropout) x = net.Dropout("drop6", x);
  x = net.LinearRelu("fc7", x, 4096);
  if (spec.dropout) x = net.Dropout("drop7", x);
  x = net.Linear("fc8", x, 1000);
  net.SoftmaxLoss("softmax", x);
  return net;
}

// Builds AlexNet as one tower. With two groups, the second, fourth and fifth convolutions are split
// in two, like the two towers of Krizhevsky et al. 2012.
Network BuildOneTower(std::string name, int64_t image, int64_t groups) {
  FiveConvolutions spec{
      {ConvSpec::Square(96, 11, 4), ConvSpec::Square(256, 5, 1, 2), ConvSpec::Square(384, 3, 1, 1),
       ConvSpec::Square(384, 3, 1, 1), ConvSpec::Square(256, 3, 1, 1)},
      {{{3, 2}, {3, 2}, {3, 2}}},
      /*norms=*/2,
      /*dropout=*/true};
  for (const size_t i : {1, 3, 4}) spec.convolutions[i].groups = groups;
  return Build(std::move(name), image, spec);
}

}  // namespace

Network BuildAlexNet(std::string name, int64_t image) {
  return Build(std::move(name), image,
               {{ConvSpec::Square(64, 11, 4, 2), ConvSpec::Square(192, 5, 1, 2),
                 ConvSpec::Square(384, 3, 1, 1), ConvSpec::Square(256, 3, 1, 1),
                 ConvSpec::Square(256, 3, 1, 1)},
                {{{3, 2}, {3, 2}, {3, 2}}}});
}

Network BuildAlexNet227(std::string name, int64_t image) {
  return BuildOneTower(std::move(name), image, 1);
}

Network BuildAlexNetCaffe(std::string name, int64_t image) {
  return BuildOneTower(std::move(name), image, 2);
}

Network BuildVggS(std::string name, int64_t image) {
  return Build(
      std::move(name), image,
      {{ConvSpec::Square(96, 7, 2), ConvSpec::Square(256, 5), ConvSpec::Square(512, 3, 1, 1),
        ConvSpec::Square(512, 3, 1, 1), ConvSpec::Square(512, 3, 1, 1)},
       {{{3, 3, 0, true}, {2, 2, 0, true}, {3, 3, 0, true}}},
       /*norms=*/1,
       /*dropout=*/true});
}

Network BuildAlexNetPlain(std::string name, int64_t image) {
  return Build(
      std::move(name), image,
      {{ConvSpec::Square(96, 11, 4), ConvSpec::Square(256, 5, 1, 2), ConvSpec::Square(384, 3, 1, 1),
        ConvSpec::Square(384, 3, 1, 1), ConvSpec::Square(256, 3, 1, 1)},
       {{{3, 2}, {3, 2}, {3, 2}}}});
}

Network BuildOverFeat(std::string name, int64_t image) {
  return Build(
      std::move(name), image,
      {{ConvSpec::Square(96, 11, 4), ConvSpec::Square(256, 5), ConvSpec::Square(512, 3, 1, 1),
        ConvSpec::Square(1024, 3, 1, 1), ConvSpec::Square(1024, 3, 1, 1)},
       {{{2, 2}, {2, 2}, {2, 2}}},
       /*norms=*/0,
       /*dropout=*/false,
       /*width=*/3072});
}

}  // namespace spillway::traces
