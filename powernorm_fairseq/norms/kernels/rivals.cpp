// DyT, Derf, ScaleNorm and the mixture of PRepBN for CPUs, each direction one sweep over rows of tokens; columns of UN and RBN.
// ../pointwise.py, ../scale_norm.py, ../progressive_batch_norm.py and ../unified_norm.py say what is computed. x and dy are contiguous, float32 or bfloat16; the mask is contiguous; rows at padding are not read.
// Sums are taken over blocks of rows that depend on their number alone, so no result depends on the number of threads.

#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/core/ScalarType.h>
#include <torch/headeronly/util/Exception.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>
#include <tuple>
#include <vector>

#include "passes.h"

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define VECTORISED __attribute__((target_clones("arch=x86-64-v3", "default")))
#else
#define VECTORISED
#endif
#define INLINE inline __attribute__((always_inline))

namespace {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;
using MaybeTensor = std::optional<Tensor>;

struct BFloat16 {
  uint16_t bits;
};

INLINE float load(float value) { return value; }
INLINE float load(BFloat16 value) { return from_half(value.bits); }
INLINE void store(float* to, float value) { *to = value; }
INLINE void store(BFloat16* to, float value) { to->bits = to_half(value); }

// tanh and erf as u P(u^2) / Q(u^2), fitted for the smallest relative error; with the rounding of floats it is 4e-7.
INLINE float tanh_of(float u) {
  const float v = std::min(std::max(u, -9.0f), 9.0f), w = v * v;
  const float p = (((1.3354248e-08f * w + 2.0608777e-05f) * w + 3.4955696e-03f) * w + 1.3381010e-01f) * w + 1.0f;
  const float q = (((7.7763866e-07f * w + 3.2856045e-04f) * w + 2.5876911e-02f) * w + 4.6714327e-01f) * w + 1.0f;
  return v * p / q;
}

INLINE float erf_of(float u) {
  const float v = std::min(std::max(u, -3.95f), 3.95f), w = v * v;
  const float p = ((((2.0259038e-06f * w + 2.8468354e-04f) * w + 3.8080516e-03f) * w + 5.2875102e-02f) * w + 1.9154799e-01f) * w + 1.1283791f;
  const float q = ((((3.7831538e-05f * w + 1.1706959e-03f) * w + 1.5054870e-02f) * w + 1.1455863e-01f) * w + 5.0308764e-01f) * w + 1.0f;
  return v * p / q;
}

// e^v for v <= 0: 2^n e^f with |f| <= ln(2) / 2.
INLINE float exp_of(float v) {
  v = std::max(v, -87.0f);
  const int32_t n = static_cast<int32_t>(v * 1.44269504f - 0.5f);
  const float f = v - static_cast<float>(n) * 0.693147181f;
  const float e = 1 + f * (1 + f * (1.0f / 2) * (1 + f * (1.0f / 3) * (1 + f * (1.0f / 4) * (1 + f * (1.0f / 5) * (1 + f * (1.0f / 6))))));
  const int32_t bits = (n + 127) << 23;
  float power;
  std::memcpy(&power, &bits, sizeof(power));
  return e * power;
}

// A batch as rows.
struct Tokens {
  int64_t width, rows;
  bool half;
  const void* x;
  std::vector<char> none;  // a mask of its own for input without one
  const bool* padding;

  Tokens(const Tensor& x, const MaybeTensor& mask)
      : width(x.dim() > 0 ? x.size(x.dim() - 1) : 0), rows(width > 0 ? x.numel() / width : 0),
        half(x.scalar_type() == ScalarType::BFloat16), x(x.const_data_ptr()) {
    STD_TORCH_CHECK(half || x.scalar_type() == ScalarType::Float, "x must be float32 or bfloat16");
    STD_TORCH_CHECK(width > 0 && x.is_contiguous(), "x must be contiguous and have a width");
    if (!mask) none.resize(rows);
    padding = reinterpret_cast<const bool*>(none.data());
    if (!mask) return;
    STD_TORCH_CHECK(mask->scalar_type() == ScalarType::Bool && mask->is_contiguous(), "padding must be bool, contiguous");
    STD_TORCH_CHECK(mask->numel() == rows, "padding has ", mask->numel(), " elements; there are ", rows, " tokens");
    padding = static_cast<const bool*>(mask->const_data_ptr());
  }

  const void* gradient(const Tensor& dy) const {
    STD_TORCH_CHECK((dy.scalar_type() == ScalarType::BFloat16) == half && dy.is_contiguous() && dy.numel() == rows * width,
                    "dy must be contiguous, and of the size and type of x");
    return dy.const_data_ptr();
  }

  // Calls pass(begin, end, number) for blocks of rows, in parallel; there are blocks() of them.
  template <typename Pass>
  void each(const Pass& pass) const {
    const int64_t count = blocks();
    torch::stable::parallel_for(0, count, 1, [&](int64_t first, int64_t last) {
      for (int64_t i = first; i < last; ++i) pass(rows * i / count, rows * (i + 1) / count, i);
    });
  }

  int64_t blocks() const { return std::min<int64_t>(32, (rows + 31) / 32); }

  // The same with room for `size` sums, which are added up in the order of the blocks.
  template <typename Pass>
  std::vector<double> sum(int64_t size, const Pass& pass) const {
    const int64_t count = blocks();
    Floats partial(count * size);
    std::vector<double> total(size);
    each([&](int64_t begin, int64_t end, int64_t i) { pass(begin, end, partial.data() + i * size); });
    for (int64_t i = 0; i < count; ++i)
      for (int64_t j = 0; j < size; ++j) total[j] += partial[i * size + j];
    return total;
  }
};

Tensor allocate(const int64_t* sizes, int64_t dimensions, bool half) {
  std::vector<int64_t> strides(dimensions, 1);
  for (int64_t i = dimensions; i > 1; --i) strides[i - 2] = strides[i - 1] * sizes[i - 1];
  AtenTensorHandle handle;
  STABLE_TORCH_ERROR_CODE_CHECK(aoti_torch_empty_strided(dimensions, sizes, strides.data(),
                                                         half ? aoti_torch_dtype_bfloat16() : aoti_torch_dtype_float32(),
                                                         aoti_torch_device_type_cpu(), 0, &handle));
  return Tensor(handle);
}

Tensor allocate_like(const Tensor& x, const Tokens& tokens) {
  const auto sizes = x.sizes();
  return allocate(std::vector<int64_t>(sizes.begin(), sizes.end()).data(), x.dim(), tokens.half);
}

Tensor floats_of(const double* values, int64_t count) {
  const Tensor result = allocate(&count, 1, false);
  std::copy(values, values + count, static_cast<float*>(result.mutable_data_ptr()));
  return result;
}

Floats columns_of(const MaybeTensor& tensor, int64_t width, float otherwise) {
  Floats values(width, otherwise);
  if (!tensor) return values;
  STD_TORCH_CHECK(tensor->dim() == 1 && tensor->numel() == width, "a column has ", tensor->numel(),
                  " elements; the width is ", width);
  const bool half = tensor->scalar_type() == ScalarType::BFloat16;
  STD_TORCH_CHECK(half || tensor->scalar_type() == ScalarType::Float, "columns must be float32 or bfloat16");
  const void* data = tensor->const_data_ptr();
  const int64_t stride = tensor->stride(0);
  for (int64_t i = 0; i < width; ++i)
    values[i] = half ? from_half(static_cast<const uint16_t*>(data)[i * stride])
                     : static_cast<const float*>(data)[i * stride];
  return values;
}

template <typename T>
INLINE bool blank(const Tokens& tokens, int64_t row, T* to) {
  if (!tokens.padding[row]) return false;
  std::memset(static_cast<void*>(to), 0, sizeof(T) * tokens.width);
  return true;
}

// y = gamma f(alpha x + shift) + beta, where f is erf or tanh.
template <typename T, bool ERF>
INLINE void apply(const Tokens& tokens, int64_t begin, int64_t end, const float* gamma, const float* beta, float alpha,
                  float shift, void* y) {
  for (int64_t row = begin; row < end; ++row) {
    T* __restrict to = static_cast<T*>(y) + row * tokens.width;
    if (blank(tokens, row, to)) continue;
    const T* x = static_cast<const T*>(tokens.x) + row * tokens.width;
#pragma omp simd
    for (int64_t i = 0; i < tokens.width; ++i) {
      const float u = load(x[i]) * alpha + shift;
      store(to + i, gamma[i] * (ERF ? erf_of(u) : tanh_of(u)) + beta[i]);
    }
  }
}

// dx, and sums for gamma, beta, alpha and shift.
template <typename T, bool ERF>
INLINE void apply_gradient(const Tokens& tokens, int64_t begin, int64_t end, const void* dy, const float* gamma,
                           float alpha, float shift, void* dx, float* sums) {
  const int64_t width = tokens.width;
  float *__restrict of_gamma = sums, *__restrict of_beta = sums + width;
  double of_alpha = 0.0, of_shift = 0.0;
  for (int64_t row = begin; row < end; ++row) {
    T* __restrict to = static_cast<T*>(dx) + row * width;
    if (blank(tokens, row, to)) continue;
    const T *x = static_cast<const T*>(tokens.x) + row * width, *grad = static_cast<const T*>(dy) + row * width;
    float along = 0.0f, total = 0.0f;
#pragma omp simd reduction(+ : along, total)
    for (int64_t i = 0; i < width; ++i) {
      const float own = load(x[i]), u = own * alpha + shift, g = load(grad[i]);
      const float f = ERF ? erf_of(u) : tanh_of(u);
      const float slope = ERF ? 1.12837917f * exp_of(-u * u) : 1.0f - f * f;
      const float h = g * gamma[i] * slope;
      of_gamma[i] += g * f;
      of_beta[i] += g;
      along += h * own;
      total += h;
      store(to + i, h * alpha);
    }
    of_alpha += along;
    of_shift += total;
  }
  sums[2 * width] = static_cast<float>(of_alpha);
  sums[2 * width + 1] = static_cast<float>(of_shift);
}

VECTORISED void pointwise_pass(const Tokens& tokens, int64_t begin, int64_t end, bool erf, const float* gamma,
                               const float* beta, float alpha, float shift, void* y) {
  if (tokens.half && erf) return apply<BFloat16, true>(tokens, begin, end, gamma, beta, alpha, shift, y);
  if (tokens.half) return apply<BFloat16, false>(tokens, begin, end, gamma, beta, alpha, shift, y);
  if (erf) return apply<float, true>(tokens, begin, end, gamma, beta, alpha, shift, y);
  apply<float, false>(tokens, begin, end, gamma, beta, alpha, shift, y);
}

VECTORISED void pointwise_gradient_pass(const Tokens& tokens, int64_t begin, int64_t end, bool erf, const void* dy,
                                        const float* gamma, float alpha, float shift, void* dx, float* sums) {
  if (tokens.half && erf) return apply_gradient<BFloat16, true>(tokens, begin, end, dy, gamma, alpha, shift, dx, sums);
  if (tokens.half) return apply_gradient<BFloat16, false>(tokens, begin, end, dy, gamma, alpha, shift, dx, sums);
  if (erf) return apply_gradient<float, true>(tokens, begin, end, dy, gamma, alpha, shift, dx, sums);
  apply_gradient<float, false>(tokens, begin, end, dy, gamma, alpha, shift, dx, sums);
}

Tensor pointwise_forward(Tensor x, MaybeTensor padding, MaybeTensor gamma, MaybeTensor beta, double alpha, double shift,
                         bool erf) {
  const Tokens tokens(x, padding);
  const Floats gammas = columns_of(gamma, tokens.width, 1.0f), betas = columns_of(beta, tokens.width, 0.0f);
  const Tensor y = allocate_like(x, tokens);
  tokens.each([&](int64_t begin, int64_t end, int64_t) {
    pointwise_pass(tokens, begin, end, erf, gammas.data(), betas.data(), alpha, shift, y.mutable_data_ptr());
  });
  return y;
}

std::tuple<Tensor, Tensor, Tensor, Tensor> pointwise_backward(Tensor dy, Tensor x, MaybeTensor padding,
                                                              MaybeTensor gamma, double alpha, double shift, bool erf) {
  const Tokens tokens(x, padding);
  const Floats gammas = columns_of(gamma, tokens.width, 1.0f);
  const void* grad = tokens.gradient(dy);
  const Tensor dx = allocate_like(x, tokens);
  const auto sums = tokens.sum(2 * tokens.width + 2, [&](int64_t begin, int64_t end, float* partial) {
    pointwise_gradient_pass(tokens, begin, end, erf, grad, gammas.data(), alpha, shift, dx.mutable_data_ptr(), partial);
  });
  return {dx, floats_of(sums.data(), tokens.width), floats_of(sums.data() + tokens.width, tokens.width),
          floats_of(sums.data() + 2 * tokens.width, 2)};
}

template <typename T>
INLINE float length_of(const T* x, int64_t width) {
  float squares = 0.0f;
#pragma omp simd reduction(+ : squares)
  for (int64_t i = 0; i < width; ++i) squares += load(x[i]) * load(x[i]);
  return std::sqrt(squares);
}

template <typename T>
INLINE void apply_scale(const Tokens& tokens, int64_t begin, int64_t end, float eps, float g, void* y) {
  for (int64_t row = begin; row < end; ++row) {
    T* __restrict to = static_cast<T*>(y) + row * tokens.width;
    if (blank(tokens, row, to)) continue;
    const T* x = static_cast<const T*>(tokens.x) + row * tokens.width;
    const float factor = g / std::max(length_of(x, tokens.width), eps);
#pragma omp simd
    for (int64_t i = 0; i < tokens.width; ++i) store(to + i, load(x[i]) * factor);
  }
}

template <typename T>
INLINE void apply_scale_gradient(const Tokens& tokens, int64_t begin, int64_t end, const void* dy, float eps, float g,
                                 void* dx, float* sum) {
  double of_g = 0.0;
  for (int64_t row = begin; row < end; ++row) {
    T* __restrict to = static_cast<T*>(dx) + row * tokens.width;
    if (blank(tokens, row, to)) continue;
    const T *x = static_cast<const T*>(tokens.x) + row * tokens.width;
    const T *grad = static_cast<const T*>(dy) + row * tokens.width;
    float squares = 0.0f, along = 0.0f;
#pragma omp simd reduction(+ : squares, along)
    for (int64_t i = 0; i < tokens.width; ++i) {
      squares += load(x[i]) * load(x[i]);
      along += load(x[i]) * load(grad[i]);
    }
    const float length = std::sqrt(squares), inverse = 1.0f / std::max(length, eps), factor = g * inverse;
    const float taken = length > eps ? along * inverse * inverse : 0.0f;  // below eps the length is constant
#pragma omp simd
    for (int64_t i = 0; i < tokens.width; ++i) store(to + i, (load(grad[i]) - load(x[i]) * taken) * factor);
    of_g += along * inverse;
  }
  *sum = static_cast<float>(of_g);
}

VECTORISED void scale_pass(const Tokens& tokens, int64_t begin, int64_t end, float eps, float g, void* y) {
  tokens.half ? apply_scale<BFloat16>(tokens, begin, end, eps, g, y) : apply_scale<float>(tokens, begin, end, eps, g, y);
}

VECTORISED void scale_gradient_pass(const Tokens& tokens, int64_t begin, int64_t end, const void* dy, float eps, float g,
                                    void* dx, float* sum) {
  if (tokens.half) return apply_scale_gradient<BFloat16>(tokens, begin, end, dy, eps, g, dx, sum);
  apply_scale_gradient<float>(tokens, begin, end, dy, eps, g, dx, sum);
}

Tensor scale_forward(Tensor x, MaybeTensor padding, double eps, double g) {
  const Tokens tokens(x, padding);
  const Tensor y = allocate_like(x, tokens);
  tokens.each([&](int64_t begin, int64_t end, int64_t) { scale_pass(tokens, begin, end, eps, g, y.mutable_data_ptr()); });
  return y;
}

std::tuple<Tensor, Tensor> scale_backward(Tensor dy, Tensor x, MaybeTensor padding, double eps, double g) {
  const Tokens tokens(x, padding);
  const void* grad = tokens.gradient(dy);
  const Tensor dx = allocate_like(x, tokens);
  const auto sum = tokens.sum(1, [&](int64_t begin, int64_t end, float* partial) {
    scale_gradient_pass(tokens, begin, end, grad, eps, g, dx.mutable_data_ptr(), partial);
  });
  return {dx, floats_of(sum.data(), 1)};
}

// y = x_hat * gamma + x * scale + shift, where x_hat is LayerNorm's.
template <typename T>
INLINE void apply_mixed(const Tokens& tokens, int64_t begin, int64_t end, float eps, const float* gamma,
                        const float* scale, const float* shift, void* y, float* means, float* rstds) {
  const int64_t width = tokens.width;
  const float share = 1.0f / static_cast<float>(width);
  for (int64_t row = begin; row < end; ++row) {
    T* __restrict to = static_cast<T*>(y) + row * width;
    if (blank(tokens, row, to)) continue;
    const T* x = static_cast<const T*>(tokens.x) + row * width;
    float sum = 0.0f, squares = 0.0f;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < width; ++i) sum += load(x[i]);
    const float mean = sum * share;
#pragma omp simd reduction(+ : squares)
    for (int64_t i = 0; i < width; ++i) squares += (load(x[i]) - mean) * (load(x[i]) - mean);
    const float rstd = 1.0f / std::sqrt(squares * share + eps);
    means[row] = mean;
    rstds[row] = rstd;
#pragma omp simd
    for (int64_t i = 0; i < width; ++i) {
      const float own = load(x[i]);
      store(to + i, (own - mean) * rstd * gamma[i] + own * scale[i] + shift[i]);
    }
  }
}

// dx = LayerNorm's + dy * a + (x - centre) * b + c; sums += dy * x_hat.
template <typename T>
INLINE void apply_mixed_gradient(const Tokens& tokens, int64_t begin, int64_t end, const void* dy, const float* gamma,
                                 const float* means, const float* rstds, const float* a, const float* b,
                                 const float* centre, const float* c, void* dx, float* sums) {
  const int64_t width = tokens.width;
  const float share = 1.0f / static_cast<float>(width);
  float* __restrict of_gamma = sums;
  for (int64_t row = begin; row < end; ++row) {
    T* __restrict to = static_cast<T*>(dx) + row * width;
    if (blank(tokens, row, to)) continue;
    const T *x = static_cast<const T*>(tokens.x) + row * width, *grad = static_cast<const T*>(dy) + row * width;
    const float mean = means[row], rstd = rstds[row];
    float products = 0.0f, total = 0.0f;
#pragma omp simd reduction(+ : products, total)
    for (int64_t i = 0; i < width; ++i) {
      const float g = load(grad[i]) * gamma[i];
      products += g * (load(x[i]) - mean);
      total += g;
    }
    const float along = products * rstd * share, level = total * share;
#pragma omp simd
    for (int64_t i = 0; i < width; ++i) {
      const float own = load(x[i]), g = load(grad[i]), x_hat = (own - mean) * rstd;
      of_gamma[i] += g * x_hat;
      store(to + i, (g * gamma[i] - level - x_hat * along) * rstd + g * a[i] + (own - centre[i]) * b[i] + c[i]);
    }
  }
}

VECTORISED void mixed_pass(const Tokens& tokens, int64_t begin, int64_t end, float eps, const float* gamma,
                           const float* scale, const float* shift, void* y, float* means, float* rstds) {
  if (tokens.half) return apply_mixed<BFloat16>(tokens, begin, end, eps, gamma, scale, shift, y, means, rstds);
  apply_mixed<float>(tokens, begin, end, eps, gamma, scale, shift, y, means, rstds);
}

VECTORISED void mixed_gradient_pass(const Tokens& tokens, int64_t begin, int64_t end, const void* dy,
                                    const float* gamma, const float* means, const float* rstds, const float* a,
                                    const float* b, const float* centre, const float* c, void* dx, float* sums) {
  if (tokens.half)
    return apply_mixed_gradient<BFloat16>(tokens, begin, end, dy, gamma, means, rstds, a, b, centre, c, dx, sums);
  apply_mixed_gradient<float>(tokens, begin, end, dy, gamma, means, rstds, a, b, centre, c, dx, sums);
}

// Also the mean and 1 / std of each token.
std::tuple<Tensor, Tensor> mixed_forward(Tensor x, MaybeTensor padding, double eps, Tensor gamma, Tensor scale,
                                         Tensor shift) {
  const Tokens tokens(x, padding);
  const Floats gammas = columns_of(gamma, tokens.width, 1.0f), scales = columns_of(scale, tokens.width, 0.0f),
               shifts = columns_of(shift, tokens.width, 0.0f);
  const int64_t sizes[] = {2, tokens.rows};
  const Tensor y = allocate_like(x, tokens), saved = allocate(sizes, 2, false);
  float* means = static_cast<float*>(saved.mutable_data_ptr());
  tokens.each([&](int64_t begin, int64_t end, int64_t) {
    mixed_pass(tokens, begin, end, eps, gammas.data(), scales.data(), shifts.data(), y.mutable_data_ptr(), means,
               means + tokens.rows);
  });
  return {y, saved};
}

std::tuple<Tensor, Tensor> mixed_backward(Tensor dy, Tensor x, MaybeTensor padding, Tensor gamma, Tensor saved, Tensor a,
                                          Tensor b, Tensor centre, Tensor c) {
  const Tokens tokens(x, padding);
  STD_TORCH_CHECK(saved.numel() == 2 * tokens.rows && saved.scalar_type() == ScalarType::Float && saved.is_contiguous(),
                  "saved must have two floats for each token");
  const Floats gammas = columns_of(gamma, tokens.width, 1.0f), as = columns_of(a, tokens.width, 0.0f),
               bs = columns_of(b, tokens.width, 0.0f), middle = columns_of(centre, tokens.width, 0.0f),
               cs = columns_of(c, tokens.width, 0.0f);
  const float* means = static_cast<const float*>(saved.const_data_ptr());
  const void* grad = tokens.gradient(dy);
  const Tensor dx = allocate_like(x, tokens);
  const auto sums = tokens.sum(tokens.width, [&](int64_t begin, int64_t end, float* partial) {
    mixed_gradient_pass(tokens, begin, end, grad, gammas.data(), means, means + tokens.rows, as.data(), bs.data(),
                        middle.data(), cs.data(), dx.mutable_data_ptr(), partial);
  });
  return {dx, floats_of(sums.data(), tokens.width)};
}

float* floats(const Tensor& tensor, int64_t size, const char* name) {
  STD_TORCH_CHECK(tensor.scalar_type() == ScalarType::Float && tensor.is_contiguous() && tensor.numel() == size, name,
                  " must be ", size, " floats without gaps");
  return static_cast<float*>(tensor.mutable_data_ptr());
}

bool all_finite(const Floats& values) {
  return std::all_of(values.begin(), values.end(), [](float value) { return std::isfinite(value); });
}

// UN's columns of a forward, from sums of s^2 and the number of tokens; the state moves. Returns s * count and count, as
// a batch norm takes them, then 1 / std, r, and three facts: whether the batch's own means are used, whether it is an
// outlier, its place in the windows. divisor() in ../unified_norm.py is the same.
Tensor unified_columns(Tensor sums, Tensor running_psi2, Tensor psi2_window, Tensor num_updates, double eps,
                       double momentum, int64_t warmup, int64_t first_steps, bool outliers, bool moves) {
  const int64_t width = running_psi2.numel(), size = psi2_window.numel() / std::max<int64_t>(width, 1);
  const float* given = floats(sums, width + 1, "sums");
  float *running = floats(running_psi2, width, "running_psi2"), *window = floats(psi2_window, size * width, "psi2_window");
  STD_TORCH_CHECK(num_updates.scalar_type() == ScalarType::Long && num_updates.numel() == 1, "num_updates: one int64");
  int64_t* updates = static_cast<int64_t*>(num_updates.mutable_data_ptr());
  const int64_t t = *updates + 1, slot = (t - 1) % size, length = 3 * width + 4;
  const float count = given[width];
  const Tensor columns = allocate(&length, 1, false);
  float *power = static_cast<float*>(columns.mutable_data_ptr()), *rstd = power + width + 1, *r = rstd + width;
  Floats psi2(width), next(window, window + size * width), geometric(width), moved(width);
  for (int64_t i = 0; i < width; ++i) next[slot * width + i] = psi2[i] = given[i] / std::max(count, 1.0f);
  bool own = t <= size || t < warmup, outlier = false;
  if (!own) {
    double sum = 0.0, squares = 0.0;
    for (int64_t i = 0; outliers && i < size * width; ++i) sum += std::sqrt(window[i]);
    for (int64_t i = 0; outliers && i < size * width; ++i) {
      const double d = std::sqrt(window[i]) - sum / static_cast<double>(size * width);
      squares += d * d;
    }
    for (int64_t i = 0; i < width; ++i) {
      float logs = 0.0f, total = 0.0f;
      for (int64_t j = 0; j < size; ++j) logs += std::log(next[j * width + i]), total += next[j * width + i];
      geometric[i] = std::exp(logs / static_cast<float>(size));
      outlier |= outliers && total / static_cast<float>(size) - geometric[i] > squares / static_cast<double>(width);
    }
  }
  own |= outlier;
  for (int64_t i = 0; i < width; ++i) {
    const float s = own ? psi2[i] : geometric[i], std = std::sqrt(s + static_cast<float>(eps));
    const float ratio = std / std::sqrt(running[i] + static_cast<float>(eps));
    power[i] = s * count;
    rstd[i] = 1.0f / std;
    r[i] = outlier || t <= std::max(first_steps, warmup) ? 1.0f : std::min(std::max(ratio, 0.2f), 5.0f);
    moved[i] = running[i] + static_cast<float>(momentum) * (s - running[i]);
    if (outlier) next[slot * width + i] = running[i];
  }
  power[width] = count;
  r[width] = own;
  r[width + 1] = outlier;
  r[width + 2] = static_cast<float>(slot);
  if (!moves || count == 0 || !all_finite(moved) || !all_finite(next)) return columns;
  std::copy(moved.begin(), moved.end(), running);
  std::copy(next.begin(), next.end(), window);
  *updates = t;
  return columns;
}

// UN's columns of a backward, from sums of dy * s over all processes: the next e, and r * gamma.
std::tuple<Tensor, Tensor> unified_backward_columns(Tensor sums, MaybeTensor gamma, Tensor columns, double scale,
                                                    Tensor grad_window, Tensor grad_mean, double momentum, bool moves) {
  const int64_t width = grad_mean.numel(), size = grad_window.numel() / std::max<int64_t>(width, 1);
  const float *products = floats(sums, 2 * width, "sums"), *power = floats(columns, 3 * width + 4, "columns");
  const float count = power[width], *rstd = power + width + 1, *r = rstd + width;
  const bool own = r[width] > 0, outlier = r[width + 1] > 0;
  const int64_t slot = static_cast<int64_t>(r[width + 2]);
  STD_TORCH_CHECK(slot >= 0 && slot < size, "the window is shorter than in the forward");
  float *window = floats(grad_window, size * width, "grad_window"), *mean = floats(grad_mean, width, "grad_mean");
  const Floats gammas = columns_of(gamma, width, 1.0f);
  Floats next(window, window + size * width), moved(width);
  const Tensor e = allocate(&width, 1, false), g = allocate(&width, 1, false);
  float *to_e = static_cast<float*>(e.mutable_data_ptr()), *to_g = static_cast<float*>(g.mutable_data_ptr());
  for (int64_t i = 0; i < width; ++i) {
    to_g[i] = gammas[i] * r[i];
    const float q = to_g[i] * products[i] * rstd[i] / std::max(count, 1.0f) / static_cast<float>(scale);
    next[slot * width + i] = outlier ? mean[i] : q;
    float total = 0.0f;
    for (int64_t j = 0; j < size; ++j) total += next[j * width + i];
    moved[i] = mean[i] + static_cast<float>(momentum) * ((own ? q : total / static_cast<float>(size)) - mean[i]);
    to_e[i] = moved[i] * static_cast<float>(scale);
  }
  if (!moves || count == 0 || !all_finite(moved) || !all_finite(next)) return {e, g};
  std::copy(moved.begin(), moved.end(), mean);
  std::copy(next.begin(), next.end(), window);
  return {e, g};
}

// RBN's penalty and its gradients from the columns of batch_forward; penalty_of() in ../regularised_batch_norm.py.
std::tuple<Tensor, Tensor> penalty_columns(Tensor columns, Tensor running_mean, Tensor running_var, double eps,
                                           double of_mean, double of_var) {
  const int64_t width = running_mean.numel(), one = 1, length = 2 * width;
  const float *centre = floats(columns, 4 * width + 2, "columns"), *rstd = centre + width, count = centre[4 * width];
  const float *mean = floats(running_mean, width, "running_mean"), *var = floats(running_var, width, "running_var");
  const Tensor penalty = allocate(&one, 1, false), extra = allocate(&length, 1, false);
  float* to = static_cast<float*>(extra.mutable_data_ptr());
  const double real = count > 0 ? 1.0 : 0.0, share = 2.0 * real / std::max(count, 1.0f);
  double means = 0.0, vars = 0.0;
  for (int64_t i = 0; i < width; ++i) {
    const double gap = centre[i] - mean[i], spread = 1.0 / (static_cast<double>(rstd[i]) * rstd[i]) - eps - var[i];
    means += gap * gap;
    vars += std::abs(spread);
    to[i] = static_cast<float>(of_mean * share * gap);
    to[width + i] = static_cast<float>(of_var * share * ((spread > 0) - (spread < 0)));
  }
  *static_cast<float*>(penalty.mutable_data_ptr()) = static_cast<float>(real * (of_mean * means + of_var * vars));
  return {penalty, extra};
}

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(powernorm, library) {
  library.def(
      "pointwise_forward(Tensor x, Tensor? padding, Tensor? gamma, Tensor? beta, float alpha, float shift, bool erf)"
      " -> Tensor");
  library.def(
      "pointwise_backward(Tensor dy, Tensor x, Tensor? padding, Tensor? gamma, float alpha, float shift, bool erf)"
      " -> (Tensor, Tensor, Tensor, Tensor)");
  library.def("scale_forward(Tensor x, Tensor? padding, float eps, float g) -> Tensor");
  library.def("scale_backward(Tensor dy, Tensor x, Tensor? padding, float eps, float g) -> (Tensor, Tensor)");
  library.def(
      "mixed_forward(Tensor x, Tensor? padding, float eps, Tensor gamma, Tensor scale, Tensor shift)"
      " -> (Tensor, Tensor)");
  library.def(
      "mixed_backward(Tensor dy, Tensor x, Tensor? padding, Tensor gamma, Tensor saved, Tensor a, Tensor b, "
      "Tensor centre, Tensor c) -> (Tensor, Tensor)");
  library.def(
      "unified_columns(Tensor sums, Tensor(a!) running_psi2, Tensor(b!) psi2_window, Tensor(c!) num_updates, float eps, "
      "float momentum, int warmup, int first_steps, bool outliers, bool moves) -> Tensor");
  library.def(
      "unified_backward_columns(Tensor sums, Tensor? gamma, Tensor columns, float scale, Tensor(a!) grad_window, "
      "Tensor(b!) grad_mean, float momentum, bool moves) -> (Tensor, Tensor)");
  library.def(
      "penalty_columns(Tensor columns, Tensor running_mean, Tensor running_var, float eps, float of_mean, float of_var)"
      " -> (Tensor, Tensor)");
}

STABLE_TORCH_LIBRARY_IMPL(powernorm, CPU, library) {
  library.impl("pointwise_forward", TORCH_BOX(&pointwise_forward));
  library.impl("pointwise_backward", TORCH_BOX(&pointwise_backward));
  library.impl("scale_forward", TORCH_BOX(&scale_forward));
  library.impl("scale_backward", TORCH_BOX(&scale_backward));
  library.impl("mixed_forward", TORCH_BOX(&mixed_forward));
  library.impl("mixed_backward", TORCH_BOX(&mixed_backward));
  library.impl("penalty_columns", TORCH_BOX(&penalty_columns));
  library.impl("unified_columns", TORCH_BOX(&unified_columns));
  library.impl("unified_backward_columns", TORCH_BOX(&unified_backward_columns));
}
