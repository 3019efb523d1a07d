#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>

#include "traces/base/error.h"
#include "traces/zoo/zoo.h"

namespace spillway::traces {
namespace {

// Builds the parts that the families share.
class Transformer {
 public:
  Transformer(Network& net, AttentionSpec attention, double dropout = 0)
      : net_(net), attention_(attention), dropout_(dropout) {}

  // Adds dropout behind x unless its ratio is 0.
  LayerNode Dropout(const std::string& name, LayerNode x) {
    return dropout_ > 0 ? net_.Dropout(name, x, dropout_) : x;
  }

  // Attention of a sequence to itself, with biases: three projections, attention and a projection.
  LayerNode SelfAttention(const std::string& name, LayerNode x) {
    const int64_t width = net_.layer(x).output.channels;
    const LayerNode q = net_.Linear(name + ".q", x, width);
    const LayerNode k = net_.Linear(name + ".k", x, width);
    const LayerNode v = net_.Linear(name + ".v", x, width);
    return net_.Linear(name + ".proj", net_.Attention(name, q, k, v, attention_), width);
  }

  LayerNode Mlp(const std::string& name, LayerNode x) {
    const int64_t width = net_.layer(x).output.channels;
    x = net_.Linear(name + ".fc", x, 4 * width);
    return net_.Linear(name + ".proj", net_.Activation(OpType::kGelu, name + ".gelu", x), width);
  }

  // Normalises before each half of the block, as GPT-2 and ViT do.
  LayerNode PreNormBlock(const std::string& name, LayerNode x, double epsilon) {
    LayerNode y = SelfAttention(name + ".attn", net_.LayerNorm(name + ".ln_1", x, epsilon));
    x = net_.Add(name + ".attn.add", x, Dropout(name + ".attn.dropout", y));
    y = Mlp(name + ".mlp", net_.LayerNorm(name + ".ln_2", x, epsilon));
    return net_.Add(name + ".mlp.add", x, Dropout(name + ".mlp.dropout", y));
  }

  // Normalises behind each half of the block, as BERT does.
  LayerNode PostNormBlock(const std::string& name, LayerNode x, double epsilon) {
    LayerNode y = SelfAttention(name + ".attn", x);
    x = net_.Add(name + ".attn.add", x, Dropout(name + ".attn.dropout", y));
    x = net_.LayerNorm(name + ".ln_1", x, epsilon);
    y = Mlp(name + ".mlp", x);
    x = net_.Add(name + ".mlp.add", x, Dropout(name + ".mlp.dropout", y));
    return net_.LayerNorm(name + ".ln_2", x, epsilon);
  }

 private:
  Network& net_;
  const AttentionSpec attention_;
  const double dropout_;  // the ratio
};

std::string Block(int64_t number) { return fmt::format("h{}", number); }

}  // namespace

Network BuildGpt(std::string name, int64_t length, const GptSpec& spec, AttentionKind kind) {
  Network net = Network::OfTokens(std::move(name), length);
  Transformer parts(net, {spec.heads, spec.heads, /*causal=*/true, kind}, spec.dropout);
  const LayerNode wte = net.Embedding("wte", net.image(), spec.vocabulary, spec.width);
  LayerNode x = net.PositionEmbedding("wpe", wte, {std::max(spec.positions, length)});
  x = parts.Dropout("dropout", x);
  for (int64_t i = 0; i < spec.layers; ++i) x = parts.PreNormBlock(Block(i), x, 1e-5);
  x = net.LayerNorm("ln_f", x, 1e-5);
  net.SoftmaxLoss("loss", net.Linear("lm_head", x, spec.vocabulary, {.bias = false, .tied = wte}));
  return net;
}

Network BuildBert(std::string name, int64_t length, const GptSpec& spec, AttentionKind kind) {
  constexpr double kEpsilon = 1e-12;
  Network net = Network::OfTokens(std::move(name), length);
  Transformer parts(net, {spec.heads, spec.heads, /*causal=*/false, kind}, spec.dropout);
  const LayerNode words = net.Embedding("words", net.image(), spec.vocabulary, spec.width);
  LayerNode x = net.PositionEmbedding("positions", words, {std::max(spec.positions, length)});
  x = net.PositionEmbedding("segments", x, {.positions = 2, .span = (length + 1) / 2});
  x = parts.Dropout("dropout", net.LayerNorm("embeddings.ln", x, kEpsilon));
  for (int64_t i = 0; i < spec.layers; ++i) x = parts.PostNormBlock(Block(i), x, kEpsilon);
  x = net.Activation(OpType::kGelu, "head.gelu", net.Linear("head.dense", x, spec.width));
  x = net.LayerNorm("head.ln", x, kEpsilon);
  net.SoftmaxLoss("loss", net.Linear("head.words", x, spec.vocabulary, {.tied = words}));
  return net;
}

Network BuildVit(std::string name, int64_t image, const VitSpec& spec, AttentionKind kind) {
  constexpr double kEpsilon = 1e-6;
  Network net(std::move(name), {3, image, image});
  Transformer parts(net, {spec.heads, spec.heads, /*causal=*/false, kind});
  LayerNode x =
      net.Conv("patches", net.image(), ConvSpec::Square(spec.width, spec.patch, spec.patch));
  x = net.ClassToken("embeddings", x);
  for (int64_t i = 0; i < spec.layers; ++i) x = parts.PreNormBlock(Block(i), x, kEpsilon);
  x = net.Select("class_token", net.LayerNorm("ln", x, kEpsilon), 0);
  net.SoftmaxLoss("loss", net.Linear("head", x, 1000));
  return net;
}

Network BuildLlama(std::string name, int64_t length, const LlamaSpec& spec, AttentionKind kind) {
  constexpr double kEpsilon = 1e-5;
  Network net = Network::OfTokens(std::move(name), length);
  if (spec.heads > 0 && spec.width % spec.heads != 0) {
    throw InputError(fmt::format("network '{}': a width of {} does not divide into {} heads",
                                 net.name(), spec.width, spec.heads));
  }
  const int64_t kv_width = spec.width / spec.heads * spec.kv_heads;
  const LinearSpec plain{.bias = false};
  const LayerNode embedding = net.Embedding("embed", net.image(), spec.vocabulary, spec.width);
  LayerNode x = embedding;
  for (int64_t i = 0; i < spec.layers; ++i) {
    const std::string block = Block(i), attn = block + ".attn", mlp = block + ".mlp";
    LayerNode y = net.RmsNorm(attn + ".norm", x, kEpsilon);
    LayerNode q = net.Linear(attn + ".q", y, spec.width, plain);
    LayerNode k = net.Linear(attn + ".k", y, kv_width, plain);
    const LayerNode v = net.Linear(attn + ".v", y, kv_width, plain);
    q = net.Rotary(attn + ".q.rotary", q, spec.heads, spec.theta);
    k = net.Rotary(attn + ".k.rotary", k, spec.kv_heads, spec.theta);
    y = net.Attention(attn, q, k, v, {spec.heads, spec.kv_heads, /*causal=*/true, kind});
    x = net.Add(attn + ".add", x, net.Linear(attn + ".o", y, spec.width, plain));
    y = net.RmsNorm(mlp + ".norm", x, kEpsilon);
    const LayerNode gate =
        net.Activation(OpType::kSilu, mlp + ".silu", net.Linear(mlp + ".gate", y, spec.ffn, plain));
    y = net.Mul(mlp + ".mul", gate, net.Linear(mlp + ".up", y, spec.ffn, plain));
    x = net.Add(mlp + ".add", x, net.Linear(mlp + ".down", y, spec.width, plain));
  }
  LinearSpec head = plain;
  if (spec.tied) head.tied = embedding;
  x = net.RmsNorm("norm", x, kEpsilon);
  net.SoftmaxLoss("loss", net.Linear("lm_head", x, spec.vocabulary, head));
  return net;
}

}  // namespace spillway::traces
