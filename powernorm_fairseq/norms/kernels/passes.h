// What all operators share: tensors as rows of tokens, and sweeps over these rows, fast on any CPU and in parallel.
//
// x, dy, y and dx are N x C, float32 or bfloat16; all else is float32. Rows at padding are not read; what is written
// there is zero. Rows are cut into blocks that depend on N and the mask alone, and sums over blocks are added up in
// order: no result depends on the number of threads.
//
// Only torch's stable ABI is used (torch >= 2.10): this compiles in seconds, and the result fits later versions.
#pragma once

#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/core/ScalarType.h>
#include <torch/headeronly/util/Exception.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <new>
#include <optional>
#include <tuple>
#include <type_traits>
#include <vector>

#define ALWAYS_INLINE __attribute__((always_inline))
#define INLINE inline ALWAYS_INLINE
// One clone for each instruction set, chosen at run time; whatever is to profit has to be inlined. AVX-512 pays where
// much is computed for a number, and costs where numbers are summed up.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define VECTORISED __attribute__((target_clones("arch=x86-64-v3", "default")))
#define VECTORISED_WIDE __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define VECTORISED
#define VECTORISED_WIDE
#endif

using torch::headeronly::ScalarType;
using torch::stable::Tensor;
using MaybeTensor = std::optional<Tensor>;
using Two = std::tuple<Tensor, Tensor>;
using Three = std::tuple<Tensor, Tensor, Tensor>;

// Floats at the start of a cache line: vectors that straddle two lines take a fifth longer to load.
template <typename T>
struct Aligned {
  using value_type = T;
  static constexpr std::align_val_t LINE{64};
  T* allocate(std::size_t count) { return static_cast<T*>(::operator new(count * sizeof(T), LINE)); }
  void deallocate(T* data, std::size_t) { ::operator delete(data, LINE); }
  bool operator==(const Aligned&) const { return true; }
};
using Floats = std::vector<float, Aligned<float>>;

// ---------------------------------------------------------------- tensors

// Everything that comes in is checked: a wrong size would corrupt memory.

// The data of a tensor that has to be float32, without gaps, and of this size.
float* floats(const Tensor& tensor, int64_t size, const char* name);
int64_t* counter(const Tensor& num_updates);
float number(const MaybeTensor& loss_scale);  // one if there is none

// Factors or offsets of any type and stride as floats; `otherwise` where there are none.
Floats columns_of(const MaybeTensor& tensor, int64_t width, float otherwise, const char* name);

Tensor allocate(const std::vector<int64_t>& sizes, bool half = false);
Tensor allocate_like(const Tensor& x);
Tensor copy_of(const float* values, int64_t count);
inline float* data_of(const Tensor& own) { return static_cast<float*>(own.mutable_data_ptr()); }

inline bool all_finite(const float* values, int64_t count) {
  return std::all_of(values, values + count, [](float value) { return std::isfinite(value); });
}
inline bool all_finite(const Floats& values) { return all_finite(values.data(), static_cast<int64_t>(values.size())); }

inline float clamp(float value, float low, float high) { return std::min(std::max(value, low), high); }

// ---------------------------------------------------------------- running statistics

// old + weight * (fresh - old)
Floats moved(const float* old, const float* fresh, int64_t width, double weight);

struct Move {
  const Floats& next;
  float* to;
};

// Moves running statistics and counts the step, unless there was no token or a value is not finite.
void move(bool moves, float count, std::initializer_list<Move> all, int64_t* updates = nullptr);

// ---------------------------------------------------------------- numbers

struct BFloat16 {  // the upper half of a float
  uint16_t bits;
};

INLINE float load(float value) { return value; }

INLINE float load(const BFloat16& value) {  // by value, GCC would not vectorise it
  const uint32_t bits = static_cast<uint32_t>(value.bits) << 16;
  float result;
  std::memcpy(&result, &bits, sizeof(result));
  return result;
}

INLINE void store(float* to, float value) { *to = value; }

INLINE void store(BFloat16* to, float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  const uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;  // to nearest, ties to even
  const bool nan = (bits & 0x7fffffff) > 0x7f800000;
  to->bits = static_cast<uint16_t>(nan ? 0x7fc0 : rounded);
}

// Sum of term(i) for i < width; a long one in four chains, because in one each addition waits for the one before.
template <typename Term>
INLINE float sum_of(int64_t width, const Term& term) {
  const int64_t part = width < 128 ? 0 : width / 4;
  float a = 0.0f, b = 0.0f, c = 0.0f, d = 0.0f;
#pragma omp simd reduction(+ : a, b, c, d)
  for (int64_t i = 0; i < part; ++i) {
    a += term(i);
    b += term(part + i);
    c += term(2 * part + i);
    d += term(3 * part + i);
  }
#pragma omp simd reduction(+ : a)
  for (int64_t i = 4 * part; i < width; ++i) a += term(i);
  return (a + b) + (c + d);
}

// ---------------------------------------------------------------- rows

// How a sweep is compiled: as it stands; with loops of constant length for slices of a usual width, which is faster and
// a lot of code; or with AVX-512 as well.
enum Loops { PLAIN, UNROLLED, WIDE };

// A part of a token: all of it, or what one of the groups has.
struct Slice {
  int64_t number;  // among all slices of all tokens
  int64_t column, at, width;  // its first column, the place of that in x, and the number of its columns
  float r;  // the factor of layer-scale
};

// A batch as rows. `s` is a row after layer-scale: each of its slices times its factor in `scales` (N x groups:
// 1 / the quadratic mean of the slice, written by the first sweep and read by others), or the row as it is if there are
// no `scales`.
struct Rows {
  int64_t columns, rows, groups;  // at least one group
  bool half;
  const void* x;
  float eps;
  float* scales = nullptr;
  bool scales_known = false;
  int64_t count;  // of real tokens
  const bool* padding;  // never null: a mask of its own for input without one is cheaper than to ask at each row

  Rows(const Tensor& x, const MaybeTensor& padding, int64_t groups, double eps);
  Rows(const Rows&) = delete;

  // Layer-scale, if there are groups: the room for its factors, or those that a forward has written.
  Tensor new_scales();
  void use_scales(const Tensor& known);

  // The data of dy, or of another tensor like x.
  const void* like_x(const Tensor& dy) const;

  // Calls pass(slice, x, to, sums) for the slices of all real tokens; x and `to`, unless null, point to the slice.
  // Blocks come from the last to the first: a sweep for the statistics, if there was one, has left those in the cache.
  template <Loops LOOPS = PLAIN, typename Pass>
  void each(void* to, const Pass& pass) const;

  // The same with first(slice, x) for all slices of a row before the pass, in the place of layer-scale.
  template <Loops LOOPS = PLAIN, typename First, typename Pass>
  void each(void* to, const First& first, const Pass& pass) const;

  // The same for a pass that adds to `size` sums; `total` becomes the sum over all blocks.
  template <Loops LOOPS = PLAIN, typename Pass>
  void sum(int64_t size, float* total, void* to, const Pass& pass) const;

 private:
  std::vector<int64_t> starts;  // first row of each block, and the end
  bool scaled;
  MaybeTensor kept;  // what `scales` points to
  std::vector<char> mask;  // what `padding` points to, unless it is that of the caller
};

// What is done for all slices of a row before the pass, so that none waits for its own roots and quotients: writes the
// factors of layer-scale, unless they are known.
struct LayerScale {
  const Rows& rows;

  template <typename T>
  INLINE void operator()(const Slice& slice, const T* x) const {
    if (!rows.scales || rows.scales_known) return;
    float squares = 0.0f;  // in one chain: rows that come from memory are slower in several
#pragma omp simd reduction(+ : squares)
    for (int64_t i = 0; i < slice.width; ++i) squares += load(x[i]) * load(x[i]);
    rows.scales[slice.number] = 1.0f / std::sqrt(squares / static_cast<float>(slice.width) + rows.eps);
  }
};

template <typename T, int64_t WIDTH, typename First, typename Pass>
INLINE void sweep_as(const Rows& rows, int64_t begin, int64_t end, void* to, float* sums, const First& first,
                     const Pass& pass) {
  const int64_t width = WIDTH > 0 ? WIDTH : rows.columns / rows.groups;
  T* out = static_cast<T*>(to);
  for (int64_t row = begin; row < end; ++row) {
    if (rows.padding[row]) {
      if (out) std::memset(static_cast<void*>(out + row * rows.columns), 0, sizeof(T) * rows.columns);
      continue;
    }
    const auto slice = [&](int64_t group) ALWAYS_INLINE {
      const int64_t number = row * rows.groups + group, column = group * width;
      return Slice{number, column, row * rows.columns + column, width, rows.scales ? rows.scales[number] : 1.0f};
    };
    const T* x = static_cast<const T*>(rows.x);
    for (int64_t group = 0; group < rows.groups; ++group) first(slice(group), x + slice(group).at);
    for (int64_t group = 0; group < rows.groups; ++group) {
      const Slice own = slice(group);
      pass(own, x + own.at, out ? out + own.at : out, sums);
    }
  }
}

namespace {

template <int64_t WIDTH, typename First, typename Pass>
VECTORISED void sweep_slices(const Rows& rows, int64_t begin, int64_t end, void* to, float* sums, const First& first,
                             const Pass& pass) {
  if (rows.half) return sweep_as<BFloat16, WIDTH>(rows, begin, end, to, sums, first, pass);
  sweep_as<float, WIDTH>(rows, begin, end, to, sums, first, pass);
}

template <typename First, typename Pass>
VECTORISED_WIDE void sweep_wide(const Rows& rows, int64_t begin, int64_t end, void* to, float* sums, const First& first,
                                const Pass& pass) {
  if (rows.half) return sweep_as<BFloat16, 0>(rows, begin, end, to, sums, first, pass);
  sweep_as<float, 0>(rows, begin, end, to, sums, first, pass);
}

template <Loops LOOPS = PLAIN, typename First, typename Pass>
void sweep(const Rows& rows, int64_t begin, int64_t end, void* to, float* sums, const First& first, const Pass& pass) {
  if constexpr (LOOPS == UNROLLED) {
    const int64_t width = rows.columns / rows.groups;
    if (width == 32) return sweep_slices<32>(rows, begin, end, to, sums, first, pass);
    if (width == 64) return sweep_slices<64>(rows, begin, end, to, sums, first, pass);
    if (width == 128) return sweep_slices<128>(rows, begin, end, to, sums, first, pass);
  }
  if constexpr (LOOPS == WIDE) return sweep_wide(rows, begin, end, to, sums, first, pass);
  sweep_slices<0>(rows, begin, end, to, sums, first, pass);
}

}  // namespace

template <Loops LOOPS, typename First, typename Pass>
void Rows::each(void* to, const First& first, const Pass& pass) const {
  const int64_t blocks = static_cast<int64_t>(starts.size()) - 1;
  torch::stable::parallel_for(0, blocks, 1, [&](int64_t one, int64_t last) {
    for (int64_t i = last; i-- > one;) sweep<LOOPS>(*this, starts[i], starts[i + 1], to, nullptr, first, pass);
  });
}

template <Loops LOOPS, typename Pass>
void Rows::each(void* to, const Pass& pass) const {
  each<LOOPS>(to, LayerScale{*this}, pass);
}

template <Loops LOOPS, typename Pass>
void Rows::sum(int64_t size, float* total, void* to, const Pass& pass) const {
  const int64_t blocks = static_cast<int64_t>(starts.size()) - 1;
  Floats partial(blocks * size);
  torch::stable::parallel_for(0, blocks, 1, [&](int64_t one, int64_t last) {
    for (int64_t i = one; i < last; ++i)
      sweep<LOOPS>(*this, starts[i], starts[i + 1], to, partial.data() + i * size, LayerScale{*this}, pass);
  });
  std::fill(total, total + size, 0.0f);
  for (size_t start = 0; start < partial.size(); start += size)
    for (int64_t i = 0; i < size; ++i) total[i] += partial[start + i];
}

// Calls body with a condition as a constant, so that loops have no branch.
template <typename Body>
INLINE void if_constant(bool condition, const Body& body) {
  if (condition) return body(std::true_type());
  body(std::false_type());
}

// The same place in another tensor of rows.
template <typename T>
INLINE const T* beside(const T*, const void* data, const Slice& slice) {
  return static_cast<const T*>(data) + slice.at;
}

// ---------------------------------------------------------------- passes

// Mean of s^2; zero where no token is real.
void square_means(const Rows& rows, float* power);

// Mean of s, and mean of the squared deviations from it.
void moments(const Rows& rows, float* mean, float* variance);

// y = (s - centre) * scale + shift, where `centre` may be null, for zero. power = mean of s^2, unless it is null; with
// one there is no centre.
void affine(const Rows& rows, const float* centre, const float* scale, const float* shift, void* y, float* power);

// total = sum of dy * (s - centre), and behind it sum of dy.
void gradient_sums(const Rows& rows, const void* dy, const float* centre, float* total);

// dL/dx where dL/ds = dy * a + (s - centre) * b + c, without c if there is no centre; sums as above, unless it is null.
void gradient(const Rows& rows, const void* dy, const float* a, const float* b, const float* centre, const float* c,
              void* dx, float* sums);

// Mean and 1 / std of a token's slice, as LayerNorm has them; without `centred`, zero and 1 / its quadratic mean.
struct TokenMoments {
  float mean, rstd;
};

template <typename T>
INLINE TokenMoments token_moments(const T* x, int64_t width, bool centred, float eps) {
  const float share = 1.0f / static_cast<float>(width);
  const float mean = centred ? share * sum_of(width, [&](int64_t i) ALWAYS_INLINE { return load(x[i]); }) : 0.0f;
  const auto square = [&](int64_t i) ALWAYS_INLINE { return (load(x[i]) - mean) * (load(x[i]) - mean); };
  const float squares = sum_of(width, square);
  return {mean, 1.0f / std::sqrt(squares * share + eps)};
}

// Means of G = gamma * dy and of G * x_hat, which its gradient takes out: dL/dx = (G - level - x_hat * along) * rstd.
struct TokenGradient {
  float level, along;
};

template <typename T>
INLINE TokenGradient token_gradient(const T* x, const T* dy, const float* gamma, int64_t width, bool centred,
                                    TokenMoments own) {
  const float share = 1.0f / static_cast<float>(width);
  float level = 0.0f, along = 0.0f;
#pragma omp simd reduction(+ : level, along)
  for (int64_t i = 0; i < width; ++i) {
    const float g = load(dy[i]) * gamma[i];
    level += g;
    along += g * (load(x[i]) - own.mean);
  }
  return {centred ? level * share : 0.0f, along * own.rstd * share};
}
