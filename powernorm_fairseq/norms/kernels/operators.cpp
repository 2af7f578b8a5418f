// The passes as operators of torch, and whole steps of norms on top of them: what a step does with columns is little work,
// but as many small operations it would take longer than the passes over a narrow layer.
//
// Only torch's stable ABI is used (torch >= 2.10): this compiles in seconds, and the result fits later versions.

#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/core/ScalarType.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>
#include <tuple>
#include <vector>

#include "passes.h"

namespace {

using torch::stable::Tensor;
using MaybeTensor = std::optional<Tensor>;

float* floats(const Tensor& tensor) { return static_cast<float*>(tensor.mutable_data_ptr()); }

float* floats(const MaybeTensor& tensor) { return tensor ? floats(*tensor) : nullptr; }

bool is_half(const Tensor& tensor) { return tensor.scalar_type() == torch::headeronly::ScalarType::BFloat16; }

Rows rows_of(const Tensor& x, const MaybeTensor& padding, const MaybeTensor& scales, bool scales_known, double eps) {
  return {x.size(0),
          x.size(1),
          scales ? scales->size(1) : 1,
          is_half(x),
          x.const_data_ptr(),
          padding ? static_cast<const bool*>(padding->const_data_ptr()) : nullptr,
          floats(scales),
          scales_known,
          static_cast<float>(eps)};
}

bool all_finite(const std::vector<float>& values) {
  return std::all_of(values.begin(), values.end(), [](float value) { return std::isfinite(value); });
}

// The passes.

void square_sums_op(Tensor x, MaybeTensor padding, MaybeTensor scales, bool known, double eps, Tensor sums) {
  square_sums(rows_of(x, padding, scales, known, eps), floats(sums));
}

void moments_op(Tensor x, MaybeTensor padding, MaybeTensor scales, bool known, double eps, Tensor mean,
                Tensor squares) {
  moments(rows_of(x, padding, scales, known, eps), floats(mean), floats(squares));
}

void affine_op(Tensor x, MaybeTensor padding, MaybeTensor scales, bool known, double eps, Tensor scale, Tensor shift,
               Tensor y, MaybeTensor sums) {
  affine(rows_of(x, padding, scales, known, eps), floats(scale), floats(shift), y.mutable_data_ptr(), floats(sums));
}

void backward_sums_op(Tensor dy, Tensor x, MaybeTensor padding, MaybeTensor scales, double eps, MaybeTensor centre,
                      Tensor sums) {
  backward_sums(rows_of(x, padding, scales, true, eps), dy.const_data_ptr(), floats(centre), floats(sums));
}

void backward_op(Tensor dy, Tensor x, MaybeTensor padding, MaybeTensor scales, double eps, Tensor a, Tensor b,
                 MaybeTensor c, Tensor dx, MaybeTensor sums) {
  backward(rows_of(x, padding, scales, true, eps), dy.const_data_ptr(), floats(a), floats(b), floats(c),
           dx.mutable_data_ptr(), floats(sums));
}

// Whole steps. x may have any number of dimensions, of which the last is C, and the mask the others; gamma and beta have
// the type of the layer. Each operator allocates what it returns: from Python that takes as long as a narrow layer.
// `work` carries columns and scales from the forward to the backward.

Tensor allocate(const std::vector<int64_t>& sizes, bool half) {
  std::vector<int64_t> strides(sizes.size(), 1);
  for (size_t i = sizes.size(); i > 1; --i) strides[i - 2] = strides[i - 1] * sizes[i - 1];
  const int32_t type = half ? aoti_torch_dtype_bfloat16() : aoti_torch_dtype_float32();
  AtenTensorHandle handle;
  STABLE_TORCH_ERROR_CODE_CHECK(aoti_torch_empty_strided(static_cast<int64_t>(sizes.size()), sizes.data(),
                                                         strides.data(), type, aoti_torch_device_type_cpu(), 0, &handle));
  return Tensor(handle);
}

Tensor allocate_like(const Tensor& x) {
  const auto sizes = x.sizes();
  return allocate(std::vector<int64_t>(sizes.begin(), sizes.end()), is_half(x));
}

std::vector<float> load_columns(const Tensor& tensor) {
  std::vector<float> values(tensor.numel());
  if (!is_half(tensor)) {
    std::memcpy(values.data(), tensor.const_data_ptr(), values.size() * sizeof(float));
    return values;
  }
  const uint16_t* halves = static_cast<const uint16_t*>(tensor.const_data_ptr());
  for (size_t i = 0; i < values.size(); ++i) values[i] = from_half(halves[i]);
  return values;
}

Tensor store_columns(const float* values, int64_t count, bool half) {
  const Tensor tensor = allocate({count}, half);
  if (half)
    std::transform(values, values + count, static_cast<uint16_t*>(tensor.mutable_data_ptr()),
                   [](float value) { return to_half(value); });
  else
    std::copy(values, values + count, floats(tensor));
  return tensor;
}

// A mask as bytes without gaps; masks of T x B are often a transposed view.
struct Mask {
  std::vector<char> copy;
  const bool* data = nullptr;

  explicit Mask(const MaybeTensor& mask) {
    if (!mask) return;
    data = static_cast<const bool*>(mask->const_data_ptr());
    if (mask->is_contiguous()) return;
    copy.resize(mask->numel());
    gather(*mask, 0, data, copy.data());
    data = reinterpret_cast<const bool*>(copy.data());
  }

  // Copies one dimension and those inside it; returns the end of what was written.
  char* gather(const Tensor& mask, int64_t dimension, const bool* from, char* to) {
    const int64_t size = mask.size(dimension), stride = mask.stride(dimension);
    const bool innermost = dimension == mask.dim() - 1;
    for (int64_t i = 0; innermost && i < size; ++i) to[i] = from[i * stride];
    if (innermost) return to + size;
    for (int64_t i = 0; i < size; ++i) to = gather(mask, dimension + 1, from + i * stride, to);
    return to;
  }
};

Rows rows_for_step(const Tensor& x, const Mask& mask, int64_t groups, float* scales, bool scales_known, double eps) {
  const int64_t columns = x.size(x.dim() - 1);
  const int64_t rows = columns > 0 ? x.numel() / columns : 0;
  float* own_scales = groups > 0 ? scales : nullptr;
  return {rows,      columns,      std::max<int64_t>(groups, 1), is_half(x),  x.const_data_ptr(),
          mask.data, own_scales, scales_known,                 static_cast<float>(eps)};
}

int64_t count_scales(const Tensor& x, int64_t groups) { return groups * (x.numel() / x.size(x.dim() - 1)); }

// Evaluation by running statistics: centre, if any, and squared divisor; gamma and beta may be missing.
Tensor evaluate(Tensor x, MaybeTensor padding, int64_t groups, double eps, MaybeTensor gamma, MaybeTensor beta,
                MaybeTensor running_mean, Tensor running_power) {
  const Mask mask(padding);
  const int64_t width = running_power.numel();
  const Tensor y = allocate_like(x);
  std::vector<float> scale = load_columns(running_power), shift(width), scales(count_scales(x, groups));
  if (beta) shift = load_columns(*beta);
  const std::vector<float> gammas = gamma ? load_columns(*gamma) : std::vector<float>(width, 1.0f);
  const Rows rows = rows_for_step(x, mask, groups, scales.data(), false, eps);
  for (int64_t i = 0; i < width; ++i) {
    scale[i] = gammas[i] / std::sqrt(scale[i] + rows.eps);
    if (running_mean) shift[i] -= floats(running_mean)[i] * scale[i];
  }
  affine(rows, scale.data(), shift.data(), y.mutable_data_ptr(), nullptr);
  return y;
}

// BN, or PN-V without `running_mean`: forward by the batch's own statistics, with `momentum` the weight of the batch in
// the running ones, which are moved if `moves`. `spread_over_all` divides squares by the number of all rows. `work` holds
// the centre, 1 / std, the numbers of tokens that sums and squares are over, and the scales.
std::tuple<Tensor, Tensor> batch_forward(Tensor x, MaybeTensor padding, int64_t groups, double eps, Tensor gamma,
                                         Tensor beta, double momentum, bool spread_over_all, MaybeTensor running_mean,
                                         Tensor running_power, Tensor num_updates, bool moves) {
  const Mask mask(padding);
  const int64_t width = gamma.numel();
  Tensor y = allocate_like(x), work = allocate({2 * width + 2 + count_scales(x, groups)}, false);
  float *centre = floats(work), *rstd = centre + width, *counts = rstd + width;
  Rows rows = rows_for_step(x, mask, groups, counts + 2, false, eps);
  const std::vector<float> gammas = load_columns(gamma), betas = load_columns(beta);
  const float count = static_cast<float>(rows.count());
  const float spread = spread_over_all ? static_cast<float>(rows.rows) : count;
  std::vector<float> power(width), scale(width), shift(width);
  if (running_mean) {
    moments(rows, centre, power.data());
  } else {
    square_sums(rows, power.data());
    std::fill(centre, centre + width, 0.0f);
  }
  rows.scales_known = true;
  for (int64_t i = 0; i < width; ++i) {
    power[i] /= std::max(spread, 1.0f);
    rstd[i] = 1.0f / std::sqrt(power[i] + rows.eps);
    scale[i] = gammas[i] * rstd[i];
    shift[i] = betas[i] - centre[i] * scale[i];
  }
  affine(rows, scale.data(), shift.data(), y.mutable_data_ptr(), nullptr);
  counts[0] = count;
  counts[1] = spread;
  if (!moves || count == 0) return {y, work};
  const float weight = static_cast<float>(momentum);
  std::vector<float> next_mean(running_mean ? width : 0), next_power(width);
  for (int64_t i = 0; i < width; ++i) next_power[i] = (1 - weight) * floats(running_power)[i] + weight * power[i];
  for (size_t i = 0; i < next_mean.size(); ++i)
    next_mean[i] = (1 - weight) * floats(running_mean)[i] + weight * centre[i];
  if (!all_finite(next_power) || !all_finite(next_mean)) return {y, work};
  std::copy(next_power.begin(), next_power.end(), floats(running_power));
  std::copy(next_mean.begin(), next_mean.end(), floats(running_mean));
  *floats(num_updates) += 1.0f;
  return {y, work};
}

// The lemmas on the gradients of BN and PN-V: gradients of x, gamma and beta.
std::tuple<Tensor, Tensor, Tensor> batch_backward(Tensor dy, Tensor x, MaybeTensor padding, int64_t groups,
                                                  Tensor gamma, bool centred, Tensor work) {
  const Mask mask(padding);
  const int64_t width = gamma.numel();
  const Tensor dx = allocate_like(x);
  const float *centre = floats(work), *rstd = centre + width, *counts = rstd + width;
  const Rows rows = rows_for_step(x, mask, groups, floats(work) + 2 * width + 2, true, 0.0);
  const std::vector<float> gammas = load_columns(gamma);
  const float count = std::max(counts[0], 1.0f), spread = std::max(counts[1], 1.0f);
  std::vector<float> sums(2 * width), a(width), b(width), c(width);
  float *products = sums.data(), *totals = products + width;
  backward_sums(rows, dy.const_data_ptr(), centred ? centre : nullptr, products);
  for (int64_t i = 0; i < width; ++i) {
    products[i] *= rstd[i];  // sum of dy * x_hat
    const float slope = gammas[i] * products[i] / spread * rstd[i] * rstd[i];
    const float mean_g = centred ? gammas[i] * totals[i] / count : 0.0f;
    a[i] = gammas[i] * rstd[i];
    b[i] = -slope;
    c[i] = centre[i] * slope - mean_g * rstd[i];
  }
  const float* constant = centred ? c.data() : nullptr;
  backward(rows, dy.const_data_ptr(), a.data(), b.data(), constant, dx.mutable_data_ptr(), nullptr);
  return {dx, store_columns(products, width, is_half(gamma)), store_columns(totals, width, is_half(gamma))};
}

// PN, Algorithm 2, forward; the buffers are moved if `moves`. `work` holds psi^2 and the number of updates before this
// step, 1 / psi, the sums of s^2, the number of tokens, and the scales. With `before`, the work of an earlier forward of
// the same step, the values before the step are taken from there.
std::tuple<Tensor, Tensor> power_forward(Tensor x, MaybeTensor padding, int64_t groups, double eps, Tensor gamma,
                                         Tensor beta, double alpha, int64_t warmup, Tensor running_psi2,
                                         Tensor num_updates, MaybeTensor before, bool moves) {
  const Mask mask(padding);
  const int64_t width = gamma.numel();
  Tensor y = allocate_like(x), work = allocate({3 * width + 2 + count_scales(x, groups)}, false);
  float *old = floats(work), *rstd = old + width + 1, *squares = rstd + width;
  Rows rows = rows_for_step(x, mask, groups, squares + width + 1, false, eps);
  if (before) {
    std::copy(floats(before), floats(before) + width + 1, old);
  } else {
    std::copy(floats(running_psi2), floats(running_psi2) + width, old);
    old[width] = *floats(num_updates);
  }
  const std::vector<float> gammas = load_columns(gamma), betas = load_columns(beta);
  const float count = static_cast<float>(rows.count()), some = std::max(count, 1.0f), t = old[width] + 1.0f;
  const bool warm = t <= static_cast<float>(warmup);
  if (warm) {  // the batch's own psi
    square_sums(rows, squares);
    rows.scales_known = true;
  }
  std::vector<float> scale(width);
  for (int64_t i = 0; i < width; ++i) {
    rstd[i] = 1.0f / std::sqrt((warm ? squares[i] / some : old[i]) + rows.eps);
    scale[i] = gammas[i] * rstd[i];
  }
  affine(rows, scale.data(), betas.data(), y.mutable_data_ptr(), warm ? nullptr : squares);
  squares[width] = count;
  if (!moves || count == 0) return {y, work};
  const float weight = warm ? 1.0f / t : static_cast<float>(1.0 - alpha);  // of the batch in the next psi^2
  std::vector<float> next(width);
  for (int64_t i = 0; i < width; ++i) next[i] = old[i] + (squares[i] / count - old[i]) * weight;
  if (!all_finite(next)) return {y, work};
  std::copy(next.begin(), next.end(), floats(running_psi2));
  *floats(num_updates) = t;
  return {y, work};
}

// PN, Algorithm 2, backward: gradients of x, gamma and beta; `nu` is the buffer, moved if `moves`.
std::tuple<Tensor, Tensor, Tensor> power_backward(Tensor dy, Tensor x, MaybeTensor padding, int64_t groups,
                                                  Tensor gamma, double alpha, double loss_scale, Tensor work, Tensor nu,
                                                  bool moves) {
  const Mask mask(padding);
  const int64_t width = gamma.numel();
  const Tensor dx = allocate_like(x);
  const float *rstd = floats(work) + width + 1, *squares = rstd + width;
  const Rows rows = rows_for_step(x, mask, groups, floats(work) + 3 * width + 2, true, 0.0);
  const std::vector<float> gammas = load_columns(gamma);
  const float count = squares[width], unit = static_cast<float>(loss_scale);
  float* nus = floats(nu);
  std::vector<float> sums(2 * width), a(width), b(width);
  float *products = sums.data(), *totals = products + width;
  for (int64_t i = 0; i < width; ++i) {  // dL/dX = (G - nu * X^) / psi with G = gamma * dy, X^ = s / psi
    a[i] = gammas[i] * rstd[i];
    b[i] = -unit * nus[i] * rstd[i] * rstd[i];
  }
  backward(rows, dy.const_data_ptr(), a.data(), b.data(), nullptr, dx.mutable_data_ptr(), products);
  for (int64_t i = 0; i < width; ++i) products[i] *= rstd[i];  // sum of dy * x_hat
  if (moves && count > 0) {
    const float weight = static_cast<float>(1.0 - alpha);
    std::vector<float> next(width);
    for (int64_t i = 0; i < width; ++i) {
      const float big_gamma = squares[i] * rstd[i] * rstd[i] / count;
      const float big_lambda = gammas[i] * products[i] / count / unit;
      next[i] = nus[i] * (1.0f - weight * big_gamma) + weight * big_lambda;
    }
    if (all_finite(next)) std::copy(next.begin(), next.end(), nus);
  }
  return {dx, store_columns(products, width, is_half(gamma)), store_columns(totals, width, is_half(gamma))};
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
      "backward_sums(Tensor dy, Tensor x, Tensor? padding, Tensor? scales, float eps, Tensor? centre, "
      "Tensor(a!) sums) -> ()");
  library.def(
      "backward(Tensor dy, Tensor x, Tensor? padding, Tensor? scales, float eps, Tensor a, Tensor b, Tensor? c, "
      "Tensor(a!) dx, Tensor(b!)? sums) -> ()");
  library.def(
      "evaluate(Tensor x, Tensor? padding, int groups, float eps, Tensor? gamma, Tensor? beta, Tensor? running_mean, "
      "Tensor running_power) -> Tensor");
  library.def(
      "batch_forward(Tensor x, Tensor? padding, int groups, float eps, Tensor gamma, Tensor beta, float momentum, "
      "bool spread_over_all, Tensor(a!)? running_mean, Tensor(b!) running_power, Tensor(c!) num_updates, "
      "bool moves) -> (Tensor, Tensor)");
  library.def(
      "batch_backward(Tensor dy, Tensor x, Tensor? padding, int groups, Tensor gamma, bool centred, "
      "Tensor work) -> (Tensor, Tensor, Tensor)");
  library.def(
      "power_forward(Tensor x, Tensor? padding, int groups, float eps, Tensor gamma, Tensor beta, float alpha, "
      "int warmup, Tensor(a!) running_psi2, Tensor(b!) num_updates, Tensor? before, bool moves) -> (Tensor, Tensor)");
  library.def(
      "power_backward(Tensor dy, Tensor x, Tensor? padding, int groups, Tensor gamma, float alpha, float loss_scale, "
      "Tensor work, Tensor(a!) nu, bool moves) -> (Tensor, Tensor, Tensor)");
}

STABLE_TORCH_LIBRARY_IMPL(powernorm, CPU, library) {
  library.impl("square_sums", TORCH_BOX(&square_sums_op));
  library.impl("moments", TORCH_BOX(&moments_op));
  library.impl("affine", TORCH_BOX(&affine_op));
  library.impl("backward_sums", TORCH_BOX(&backward_sums_op));
  library.impl("backward", TORCH_BOX(&backward_op));
  library.impl("evaluate", TORCH_BOX(&evaluate));
  library.impl("batch_forward", TORCH_BOX(&batch_forward));
  library.impl("batch_backward", TORCH_BOX(&batch_backward));
  library.impl("power_forward", TORCH_BOX(&power_forward));
  library.impl("power_backward", TORCH_BOX(&power_backward));
}
