// The passes over rows of tokens that kernels/rows.py describes, each fused into one sweep, for CPUs; and on top of them
// the whole step of PN (Algorithm 2), whose few operations on columns would otherwise cost more than a narrow layer.
//
// x, dy, y and dx are N x C, float32 or bfloat16, contiguous; all else is float32. `s` is a row after layer-scale: each
// of its `groups` slices divided by its quadratic mean, or the row as it is if there are no `scales` (N x groups, the
// reciprocals of these means, written by the first pass and read by the others). Rows at padding are not read; what is
// written there is zero. Column sums are taken over blocks of rows whose size depends on N alone, and the blocks are
// added up in their order: no result depends on the number of threads.
//
// Only torch's stable ABI is used (torch >= 2.10): this compiles in seconds, and the result fits later versions.

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/core/ScalarType.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <optional>
#include <vector>

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define VECTORISED __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define VECTORISED
#endif
#define INLINE inline __attribute__((always_inline))

namespace {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

constexpr int64_t MAX_BLOCKS = 32;
constexpr int64_t MIN_BLOCK = 32;  // rows

// bfloat16 is the upper half of a float.
struct BFloat16 {
  uint16_t bits;
};

INLINE float load(float value) { return value; }

INLINE float load(BFloat16 value) {
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

// What all passes of a call have in common.
struct Call {
  int64_t rows, columns, groups, width;  // width: of a slice
  int64_t block, blocks;                 // rows in a block, and how many blocks
  bool half;                             // x and the like are bfloat16
  const void* x;
  const bool* padding;
  float* scales;
  bool scales_known;
  float eps;

  Call(const Tensor& x, const std::optional<Tensor>& padding, const std::optional<Tensor>& scales, bool scales_known,
       double eps)
      : rows(x.size(0)),
        columns(x.size(1)),
        groups(scales ? scales->size(1) : 1),
        width(columns / groups),
        block(std::max(MIN_BLOCK, (rows + MAX_BLOCKS - 1) / MAX_BLOCKS)),
        blocks((rows + block - 1) / block),
        half(x.scalar_type() == ScalarType::BFloat16),
        x(x.const_data_ptr()),
        padding(padding ? static_cast<const bool*>(padding->const_data_ptr()) : nullptr),
        scales(scales ? static_cast<float*>(scales->mutable_data_ptr()) : nullptr),
        scales_known(scales_known),
        eps(static_cast<float>(eps)) {}

  bool real(int64_t row) const { return padding == nullptr || !padding[row]; }

  int64_t count_real() const {
    return padding == nullptr ? rows : rows - std::count(padding, padding + rows, true);
  }

  // Calls pass(begin, end, number of the block) for all blocks of rows, in parallel.
  template <typename Pass>
  void for_blocks(const Pass& pass) const {
    torch::stable::parallel_for(0, blocks, 1, [&](int64_t first, int64_t last) {
      for (int64_t number = first; number < last; ++number)
        pass(number * block, std::min(rows, (number + 1) * block), number);
    });
  }

  // The same for a pass(begin, end, sums) that adds to `size` sums; `total` becomes the sum over the blocks.
  template <typename Pass>
  void sum_blocks(int64_t size, float* total, const Pass& pass) const {
    std::vector<float> partial(blocks * size);
    for_blocks([&](int64_t begin, int64_t end, int64_t number) { pass(begin, end, partial.data() + number * size); });
    std::fill(total, total + size, 0.0f);
    for (int64_t number = 0; number < blocks; ++number)
      for (int64_t i = 0; i < size; ++i) total[i] += partial[number * size + i];
  }
};

// Writes the factors that layer-scale puts on the slices of a row, 1 / their quadratic means, unless they are known.
template <typename T>
INLINE void scale_row(const Call& call, int64_t row) {
  if (call.scales == nullptr || call.scales_known) return;
  for (int64_t group = 0; group < call.groups; ++group) {
    const T* x = static_cast<const T*>(call.x) + row * call.columns + group * call.width;
    float squares = 0.0f;
#pragma omp simd reduction(+ : squares)
    for (int64_t i = 0; i < call.width; ++i) squares += load(x[i]) * load(x[i]);
    call.scales[row * call.groups + group] = 1.0f / std::sqrt(squares / static_cast<float>(call.width) + call.eps);
  }
}

INLINE float scale_of(const Call& call, int64_t row, int64_t group) {
  return call.scales == nullptr ? 1.0f : call.scales[row * call.groups + group];
}

// sums += s^2
template <typename T>
INLINE void add_squares(const Call& call, int64_t begin, int64_t end, float* sums) {
  for (int64_t row = begin; row < end; ++row) {
    if (!call.real(row)) continue;
    scale_row<T>(call, row);
    for (int64_t group = 0; group < call.groups; ++group) {
      const int64_t first = group * call.width;
      const T* x = static_cast<const T*>(call.x) + row * call.columns + first;
      float* __restrict sum = sums + first;
      const float r = scale_of(call, row, group);
#pragma omp simd
      for (int64_t i = 0; i < call.width; ++i) {
        const float s = load(x[i]) * r;
        sum[i] += s * s;
      }
    }
  }
}

// Sums of s - origin and of its square, where the origin is the block's first real row: nothing large has to cancel.
// Returns the number of real rows. `sums` holds origin, first and second powers.
template <typename T>
INLINE int64_t add_deviations(const Call& call, int64_t begin, int64_t end, float* sums) {
  int64_t count = 0;
  for (int64_t row = begin; row < end; ++row) {
    if (!call.real(row)) continue;
    scale_row<T>(call, row);
    for (int64_t group = 0; group < call.groups; ++group) {
      const int64_t first = group * call.width;
      const T* x = static_cast<const T*>(call.x) + row * call.columns + first;
      float* __restrict origin = sums + first;
      float *__restrict one = origin + call.columns, *__restrict two = one + call.columns;
      const float r = scale_of(call, row, group);
      if (count == 0) {
#pragma omp simd
        for (int64_t i = 0; i < call.width; ++i) origin[i] = load(x[i]) * r;
        continue;
      }
#pragma omp simd
      for (int64_t i = 0; i < call.width; ++i) {
        const float d = load(x[i]) * r - origin[i];
        one[i] += d;
        two[i] += d * d;
      }
    }
    ++count;
  }
  return count;
}

// y = s * scale + shift, and sums += s^2 if SUMS.
template <typename T, bool SUMS>
INLINE void apply_affine(const Call& call, int64_t begin, int64_t end, const float* scale, const float* shift, void* y,
                         float* sums) {
  for (int64_t row = begin; row < end; ++row) {
    T* to = static_cast<T*>(y) + row * call.columns;
    if (!call.real(row)) {
      std::memset(static_cast<void*>(to), 0, sizeof(T) * call.columns);
      continue;
    }
    scale_row<T>(call, row);
    for (int64_t group = 0; group < call.groups; ++group) {
      const int64_t first = group * call.width;
      const T* x = static_cast<const T*>(call.x) + row * call.columns + first;
      const float *a = scale + first, *b = shift + first;
      T* __restrict out = to + first;
      float* __restrict sum = sums + first;
      const float r = scale_of(call, row, group);
#pragma omp simd
      for (int64_t i = 0; i < call.width; ++i) {
        const float s = load(x[i]) * r;
        store(out + i, s * a[i] + b[i]);
        if (SUMS) sum[i] += s * s;
      }
    }
  }
}

// products += dy * (s - centre), totals += dy; `sums` holds both.
template <typename T>
INLINE void add_products(const Call& call, int64_t begin, int64_t end, const void* dy, const float* centre,
                         float* sums) {
  for (int64_t row = begin; row < end; ++row) {
    if (!call.real(row)) continue;
    for (int64_t group = 0; group < call.groups; ++group) {
      const int64_t first = group * call.width, at = row * call.columns + first;
      const T *x = static_cast<const T*>(call.x) + at, *grad = static_cast<const T*>(dy) + at;
      const float* middle = centre + first;
      float *__restrict product = sums + first, *__restrict total = product + call.columns;
      const float r = scale_of(call, row, group);
#pragma omp simd
      for (int64_t i = 0; i < call.width; ++i) {
        const float g = load(grad[i]);
        product[i] += g * (load(x[i]) * r - middle[i]);
        total[i] += g;
      }
    }
  }
}

// dL/ds = dy * a + s * b + c, and dx from it through layer-scale; if SUMS, also products += dy * s and totals += dy.
template <typename T, bool SUMS>
INLINE void apply_backward(const Call& call, int64_t begin, int64_t end, const void* dy, const float* a, const float* b,
                           const float* c, void* dx, float* sums) {
  std::vector<float> along(call.groups);  // means of dL/ds * s: the part of dL/ds that layer-scale takes out
  for (int64_t row = begin; row < end; ++row) {
    T* to = static_cast<T*>(dx) + row * call.columns;
    if (!call.real(row)) {
      std::memset(static_cast<void*>(to), 0, sizeof(T) * call.columns);
      continue;
    }
    for (int64_t group = 0; call.scales != nullptr && group < call.groups; ++group) {
      const int64_t first = group * call.width, at = row * call.columns + first;
      const T *x = static_cast<const T*>(call.x) + at, *grad = static_cast<const T*>(dy) + at;
      const float *a_ = a + first, *b_ = b + first, *c_ = c + first;
      const float r = scale_of(call, row, group);
      float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
      for (int64_t i = 0; i < call.width; ++i) {
        const float s = load(x[i]) * r;
        sum += (load(grad[i]) * a_[i] + s * b_[i] + c_[i]) * s;
      }
      along[group] = sum / static_cast<float>(call.width);
    }
    for (int64_t group = 0; group < call.groups; ++group) {
      const int64_t first = group * call.width, at = row * call.columns + first;
      const T *x = static_cast<const T*>(call.x) + at, *grad = static_cast<const T*>(dy) + at;
      const float *a_ = a + first, *b_ = b + first, *c_ = c + first;
      T* __restrict out = to + first;
      float *__restrict product = sums + first, *__restrict total = product + call.columns;
      const float r = scale_of(call, row, group), taken = along[group];
#pragma omp simd
      for (int64_t i = 0; i < call.width; ++i) {
        const float g = load(grad[i]), s = load(x[i]) * r;
        store(out + i, (g * a_[i] + s * (b_[i] - taken) + c_[i]) * r);
        if (SUMS) {
          product[i] += g * s;
          total[i] += g;
        }
      }
    }
  }
}

// One clone of each pass for each instruction set, chosen at run time; the templates above are inlined into them.

VECTORISED void squares_pass(const Call& call, int64_t begin, int64_t end, float* sums) {
  call.half ? add_squares<BFloat16>(call, begin, end, sums) : add_squares<float>(call, begin, end, sums);
}

VECTORISED int64_t deviations_pass(const Call& call, int64_t begin, int64_t end, float* sums) {
  return call.half ? add_deviations<BFloat16>(call, begin, end, sums) : add_deviations<float>(call, begin, end, sums);
}

VECTORISED void affine_pass(const Call& call, int64_t begin, int64_t end, const float* scale, const float* shift,
                            void* y, float* sums) {
  if (call.half && sums) return apply_affine<BFloat16, true>(call, begin, end, scale, shift, y, sums);
  if (call.half) return apply_affine<BFloat16, false>(call, begin, end, scale, shift, y, sums);
  if (sums) return apply_affine<float, true>(call, begin, end, scale, shift, y, sums);
  apply_affine<float, false>(call, begin, end, scale, shift, y, sums);
}

VECTORISED void products_pass(const Call& call, int64_t begin, int64_t end, const void* dy, const float* centre,
                              float* sums) {
  call.half ? add_products<BFloat16>(call, begin, end, dy, centre, sums)
            : add_products<float>(call, begin, end, dy, centre, sums);
}

VECTORISED void backward_pass(const Call& call, int64_t begin, int64_t end, const void* dy, const float* a,
                              const float* b, const float* c, void* dx, float* sums) {
  if (call.half && sums) return apply_backward<BFloat16, true>(call, begin, end, dy, a, b, c, dx, sums);
  if (call.half) return apply_backward<BFloat16, false>(call, begin, end, dy, a, b, c, dx, sums);
  if (sums) return apply_backward<float, true>(call, begin, end, dy, a, b, c, dx, sums);
  apply_backward<float, false>(call, begin, end, dy, a, b, c, dx, sums);
}

// Whole calls.

void run_squares(const Call& call, float* sums) {
  call.sum_blocks(call.columns, sums,
                  [&](int64_t begin, int64_t end, float* partial) { squares_pass(call, begin, end, partial); });
}

void run_affine(const Call& call, const float* scale, const float* shift, void* y, float* sums) {
  if (sums == nullptr)
    return call.for_blocks([&](int64_t begin, int64_t end, int64_t) {
      affine_pass(call, begin, end, scale, shift, y, nullptr);
    });
  call.sum_blocks(call.columns, sums, [&](int64_t begin, int64_t end, float* partial) {
    affine_pass(call, begin, end, scale, shift, y, partial);
  });
}

void run_backward(const Call& call, const void* dy, const float* a, const float* b, const float* c, void* dx,
                  float* sums) {
  if (sums == nullptr)
    return call.for_blocks([&](int64_t begin, int64_t end, int64_t) {
      backward_pass(call, begin, end, dy, a, b, c, dx, nullptr);
    });
  call.sum_blocks(2 * call.columns, sums, [&](int64_t begin, int64_t end, float* partial) {
    backward_pass(call, begin, end, dy, a, b, c, dx, partial);
  });
}

float* floats(const Tensor& tensor) { return static_cast<float*>(tensor.mutable_data_ptr()); }

float* floats(const std::optional<Tensor>& tensor) { return tensor ? floats(*tensor) : nullptr; }

// The operators.

void square_sums(Tensor x, std::optional<Tensor> padding, std::optional<Tensor> scales, bool scales_known, double eps,
                 Tensor sums) {
  run_squares(Call(x, padding, scales, scales_known, eps), floats(sums));
}

void moments(Tensor x, std::optional<Tensor> padding, std::optional<Tensor> scales, bool scales_known, double eps,
             Tensor mean, Tensor squares) {
  const Call call(x, padding, scales, scales_known, eps);
  const int64_t columns = call.columns, size = 3 * columns;
  std::vector<float> partial(call.blocks * size);
  std::vector<int64_t> counts(call.blocks);
  call.for_blocks([&](int64_t begin, int64_t end, int64_t number) {
    counts[number] = deviations_pass(call, begin, end, partial.data() + number * size);
  });
  float *all_mean = floats(mean), *all_squares = floats(squares);
  std::fill(all_mean, all_mean + columns, 0.0f);
  std::fill(all_squares, all_squares + columns, 0.0f);
  float all = 0.0f;
  for (int64_t number = 0; number < call.blocks; ++number) {
    if (counts[number] == 0) continue;
    const float count = static_cast<float>(counts[number]);
    const float share = count / (all + count), weight = all * share;
    const float *origin = partial.data() + number * size, *one = origin + columns, *two = one + columns;
    for (int64_t i = 0; i < columns; ++i) {  // the block's own moments, then both parts together (Chan et al., 1979)
      const float own_mean = origin[i] + one[i] / count;
      const float own_squares = std::max(0.0f, two[i] - one[i] * one[i] / count);
      const float distance = own_mean - all_mean[i];
      all_squares[i] += own_squares + distance * distance * weight;
      all_mean[i] += distance * share;
    }
    all += count;
  }
}

void affine(Tensor x, std::optional<Tensor> padding, std::optional<Tensor> scales, bool scales_known, double eps,
            Tensor scale, Tensor shift, Tensor y, std::optional<Tensor> sums) {
  const Call call(x, padding, scales, scales_known, eps);
  run_affine(call, floats(scale), floats(shift), y.mutable_data_ptr(), floats(sums));
}

void backward_sums(Tensor dy, Tensor x, std::optional<Tensor> padding, std::optional<Tensor> scales, double eps,
                   Tensor centre, Tensor sums) {
  const Call call(x, padding, scales, true, eps);
  const void* grad = dy.const_data_ptr();
  const float* middle = floats(centre);
  call.sum_blocks(2 * call.columns, floats(sums), [&](int64_t begin, int64_t end, float* partial) {
    products_pass(call, begin, end, grad, middle, partial);
  });
}

void backward(Tensor dy, Tensor x, std::optional<Tensor> padding, std::optional<Tensor> scales, double eps, Tensor a,
              Tensor b, Tensor c, Tensor dx, std::optional<Tensor> sums) {
  const Call call(x, padding, scales, true, eps);
  run_backward(call, dy.const_data_ptr(), floats(a), floats(b), floats(c), dx.mutable_data_ptr(), floats(sums));
}

// Algorithm 2, forward. `psi2` and `num_updates` are the values before this step. `columns` (3 x C) receives 1 / psi, the
// sums of s^2 and the next psi^2; `scalars` the number of real tokens and whether the next psi^2 is to be taken.
void power_norm_forward(Tensor x, std::optional<Tensor> padding, std::optional<Tensor> scales, double eps, Tensor gamma,
                        Tensor beta, double alpha, int64_t warmup, Tensor psi2, Tensor num_updates, Tensor y,
                        Tensor columns, Tensor scalars) {
  Call call(x, padding, scales, false, eps);
  const int64_t width = call.columns;
  const float *old = floats(psi2), *gammas = floats(gamma);
  float *rstd = floats(columns), *squares = rstd + width, *next = squares + width;
  const float count = static_cast<float>(call.count_real()), some = std::max(count, 1.0f);
  const float t = *floats(num_updates) + 1.0f;
  const bool warm = t <= static_cast<float>(warmup);
  if (warm) {  // the batch's own psi
    run_squares(call, squares);
    call.scales_known = true;
  }
  std::vector<float> factors(width);
  for (int64_t i = 0; i < width; ++i) {
    rstd[i] = 1.0f / std::sqrt((warm ? squares[i] / some : old[i]) + call.eps);
    factors[i] = gammas[i] * rstd[i];
  }
  run_affine(call, factors.data(), floats(beta), y.mutable_data_ptr(), warm ? nullptr : squares);
  const float weight = warm ? 1.0f / t : static_cast<float>(1.0 - alpha);  // of the batch in the next psi^2
  bool finite = true;
  for (int64_t i = 0; i < width; ++i) {
    next[i] = old[i] + (squares[i] / some - old[i]) * weight;
    finite = finite && std::isfinite(next[i]);
  }
  floats(scalars)[0] = count;
  floats(scalars)[1] = finite && count > 0 ? 1.0f : 0.0f;
}

// Algorithm 2, backward. `columns` and `scalars` come from the forward; `nu` is the buffer, moved if `moves`. `grads`
// (2 x C) receives the gradients of gamma and beta.
void power_norm_backward(Tensor dy, Tensor x, std::optional<Tensor> padding, std::optional<Tensor> scales, double eps,
                         Tensor gamma, double alpha, double loss_scale, Tensor columns, Tensor scalars, Tensor nu,
                         bool moves, Tensor dx, Tensor grads) {
  const Call call(x, padding, scales, true, eps);
  const int64_t width = call.columns;
  const float *rstd = floats(columns), *squares = rstd + width, *gammas = floats(gamma);
  const float count = floats(scalars)[0], unit = static_cast<float>(loss_scale), weight = static_cast<float>(1 - alpha);
  float *nus = floats(nu), *products = floats(grads);
  std::vector<float> factors(3 * width);
  for (int64_t i = 0; i < width; ++i) {
    factors[i] = gammas[i] * rstd[i];
    factors[width + i] = -unit * nus[i] * rstd[i] * rstd[i];
  }
  const float *a = factors.data(), *b = a + width, *c = b + width;
  run_backward(call, dy.const_data_ptr(), a, b, c, dx.mutable_data_ptr(), products);
  for (int64_t i = 0; i < width; ++i) products[i] *= rstd[i];  // sums of dy * x_hat
  if (!moves || count == 0) return;
  std::vector<float> next(width);
  bool finite = true;
  for (int64_t i = 0; i < width; ++i) {
    const float big_gamma = squares[i] * rstd[i] * rstd[i] / count;
    const float lambda = gammas[i] * products[i] / count / unit;
    next[i] = nus[i] * (1.0f - weight * big_gamma) + weight * lambda;
    finite = finite && std::isfinite(next[i]);
  }
  if (finite) std::copy(next.begin(), next.end(), nus);
}

}  // namespace

STABLE_TORCH_LIBRARY(powernorm, library) {
  library.def("square_sums(Tensor x, Tensor? padding, Tensor(a!)? scales, bool known, float eps, Tensor(b!) sums) -> ()");
  library.def(
      "moments(Tensor x, Tensor? padding, Tensor(a!)? scales, bool known, float eps, Tensor(b!) mean, "
      "Tensor(c!) squares) -> ()");
  library.def(
      "affine(Tensor x, Tensor? padding, Tensor(a!)? scales, bool known, float eps, Tensor scale, Tensor shift, "
      "Tensor(b!) y, Tensor(c!)? sums) -> ()");
  library.def(
      "backward_sums(Tensor dy, Tensor x, Tensor? padding, Tensor? scales, float eps, Tensor centre, "
      "Tensor(a!) sums) -> ()");
  library.def(
      "backward(Tensor dy, Tensor x, Tensor? padding, Tensor? scales, float eps, Tensor a, Tensor b, Tensor c, "
      "Tensor(a!) dx, Tensor(b!)? sums) -> ()");
  library.def(
      "power_norm_forward(Tensor x, Tensor? padding, Tensor(a!)? scales, float eps, Tensor gamma, Tensor beta, "
      "float alpha, int warmup, Tensor psi2, Tensor num_updates, Tensor(b!) y, Tensor(c!) columns, "
      "Tensor(d!) scalars) -> ()");
  library.def(
      "power_norm_backward(Tensor dy, Tensor x, Tensor? padding, Tensor? scales, float eps, Tensor gamma, "
      "float alpha, float loss_scale, Tensor columns, Tensor scalars, Tensor(a!) nu, bool moves, Tensor(b!) dx, "
      "Tensor(c!) grads) -> ()");
}

STABLE_TORCH_LIBRARY_IMPL(powernorm, CPU, library) {
  library.impl("square_sums", TORCH_BOX(&square_sums));
  library.impl("moments", TORCH_BOX(&moments));
  library.impl("affine", TORCH_BOX(&affine));
  library.impl("backward_sums", TORCH_BOX(&backward_sums));
  library.impl("backward", TORCH_BOX(&backward));
  library.impl("power_norm_forward", TORCH_BOX(&power_norm_forward));
  library.impl("power_norm_backward", TORCH_BOX(&power_norm_backward));
}
