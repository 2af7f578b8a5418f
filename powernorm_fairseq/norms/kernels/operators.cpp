// The operators of ../ops.py for CPUs: whole steps of the norms over the passes. What a step does with columns is little
// work, but as many small operations it would take longer than the passes over a narrow layer.
//
// Their schemas are in ops.py, and ../functional.py says what each one computes. x may have any number of dimensions, of
// which the last is C, and the mask the others. Everything that comes in is checked: a wrong size would corrupt memory.
// Only torch's stable ABI is used (torch >= 2.10): this compiles in seconds, and the result fits later versions.

#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/csrc/stable/library.h>
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

namespace {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;
using MaybeTensor = std::optional<Tensor>;
using Two = std::tuple<Tensor, Tensor>;
using Three = std::tuple<Tensor, Tensor, Tensor>;

bool is_half(const Tensor& tensor) { return tensor.scalar_type() == ScalarType::BFloat16; }

// The data of a tensor that has to be float32, without gaps, and of this size.
float* floats(const Tensor& tensor, int64_t size, const char* name) {
  STD_TORCH_CHECK(tensor.scalar_type() == ScalarType::Float, name, " must be float32");
  STD_TORCH_CHECK(tensor.is_contiguous(), name, " must be contiguous");
  STD_TORCH_CHECK(tensor.numel() == size, name, " has ", tensor.numel(), " elements; it must have ", size);
  return static_cast<float*>(tensor.mutable_data_ptr());
}

int64_t* counter(const Tensor& tensor) {
  STD_TORCH_CHECK(tensor.scalar_type() == ScalarType::Long && tensor.numel() == 1, "num_updates must be one int64");
  return static_cast<int64_t*>(tensor.mutable_data_ptr());
}

float number(const MaybeTensor& tensor) { return tensor ? *floats(*tensor, 1, "loss_scale") : 1.0f; }

// Factors or offsets of any type and stride as floats; `otherwise` where there are none.
Floats columns_of(const MaybeTensor& tensor, int64_t width, float otherwise, const char* name) {
  Floats values(width, otherwise);
  if (!tensor) return values;
  STD_TORCH_CHECK(tensor->dim() == 1 && tensor->numel() == width, name, " has ", tensor->numel(),
                  " elements; the width is ", width);
  const bool half = is_half(*tensor);
  STD_TORCH_CHECK(half || tensor->scalar_type() == ScalarType::Float, name, " must be float32 or bfloat16");
  const int64_t stride = tensor->stride(0);
  const void* data = tensor->const_data_ptr();
  for (int64_t i = 0; i < width; ++i)
    values[i] = half ? from_half(static_cast<const uint16_t*>(data)[i * stride])
                     : static_cast<const float*>(data)[i * stride];
  return values;
}

Tensor allocate(const std::vector<int64_t>& sizes, bool half = false) {
  std::vector<int64_t> strides(sizes.size(), 1);
  for (size_t i = sizes.size(); i > 1; --i) strides[i - 2] = strides[i - 1] * sizes[i - 1];
  const int32_t type = half ? aoti_torch_dtype_bfloat16() : aoti_torch_dtype_float32();
  AtenTensorHandle handle;
  STABLE_TORCH_ERROR_CODE_CHECK(aoti_torch_empty_strided(static_cast<int64_t>(sizes.size()), sizes.data(),
                                                         strides.data(), type, aoti_torch_device_type_cpu(), 0, &handle));
  return Tensor(handle);
}

float* data_of(const Tensor& own) { return static_cast<float*>(own.mutable_data_ptr()); }

Tensor allocate_like(const Tensor& x) {
  const auto sizes = x.sizes();
  return allocate(std::vector<int64_t>(sizes.begin(), sizes.end()), is_half(x));
}

// A batch as rows, and a mask as bytes without gaps: masks of T x B are often a transposed view.
struct Batch {
  int64_t width, rows, groups;
  Tensor x;
  std::vector<char> mask;
  const bool* padding = nullptr;

  Batch(const Tensor& x, const MaybeTensor& padding_mask, int64_t groups)
      : width(x.dim() > 0 ? x.size(x.dim() - 1) : 0), rows(width > 0 ? x.numel() / width : 0), groups(groups), x(x) {
    STD_TORCH_CHECK(is_half(x) || x.scalar_type() == ScalarType::Float, "x must be float32 or bfloat16");
    STD_TORCH_CHECK(width > 0 && x.is_contiguous(), "x must be contiguous and have a width");
    STD_TORCH_CHECK(groups >= 0 && (groups == 0 || width % groups == 0), "groups must divide the width");
    if (!padding_mask) {
      mask.resize(rows);
      padding = reinterpret_cast<const bool*>(mask.data());
      return;
    }
    STD_TORCH_CHECK(padding_mask->scalar_type() == ScalarType::Bool, "padding must be bool");
    STD_TORCH_CHECK(padding_mask->numel() == rows, "padding has ", padding_mask->numel(), " elements; there are ", rows,
                    " tokens");
    padding = static_cast<const bool*>(padding_mask->const_data_ptr());
    if (padding_mask->is_contiguous()) return;
    mask.resize(rows);
    gather(*padding_mask, 0, padding, mask.data());
    padding = reinterpret_cast<const bool*>(mask.data());
  }

  // Copies one dimension of the mask and those inside it; returns the end of what was written.
  static char* gather(const Tensor& mask, int64_t dimension, const bool* from, char* to) {
    const int64_t size = mask.size(dimension), stride = mask.stride(dimension);
    const bool innermost = dimension == mask.dim() - 1;
    for (int64_t i = 0; innermost && i < size; ++i) to[i] = from[i * stride];
    if (innermost) return to + size;
    for (int64_t i = 0; i < size; ++i) to = gather(mask, dimension + 1, from + i * stride, to);
    return to;
  }

  int64_t scale_count() const { return rows * groups; }

  // Room for the factors of the layer-scale.
  Tensor new_scales() const { return groups > 0 ? allocate({rows, groups}) : allocate({0}); }

  Rows with(float* scales, bool known, double eps) const {
    return {rows,    width,          std::max<int64_t>(groups, 1), is_half(x), x.const_data_ptr(),
            padding, groups ? scales : nullptr, known, static_cast<float>(eps)};
  }

  const void* gradient(const Tensor& dy) const {
    STD_TORCH_CHECK(dy.scalar_type() == x.scalar_type() && dy.is_contiguous() && dy.numel() == x.numel(),
                    "dy must be contiguous, and of the size and type of x");
    return dy.const_data_ptr();
  }
};

bool all_finite(const Floats& values) {
  return std::all_of(values.begin(), values.end(), [](float value) { return std::isfinite(value); });
}

// Gradients of gamma and beta from their sums.
Three gradients(const Tensor& dx, const float* of_gamma, const float* of_beta, int64_t width) {
  Tensor first = allocate({width}), second = allocate({width});
  std::copy(of_gamma, of_gamma + width, data_of(first));
  std::copy(of_beta, of_beta + width, data_of(second));
  return {dx, first, second};
}

Tensor statistics(Tensor x, MaybeTensor padding, int64_t groups, double eps, bool centred) {
  const Batch batch(x, padding, groups);
  const int64_t width = batch.width;
  Floats scales(batch.scale_count());
  const Rows rows = batch.with(scales.data(), false, eps);
  const Tensor result = allocate({centred ? 2 * width + 2 : width + 1});
  float *to = data_of(result), *power = centred ? to + width : to;
  const float count = static_cast<float>(rows.count());
  centred ? moments(rows, to, power) : square_means(rows, power);
  for (int64_t i = 0; i < width; ++i) power[i] *= count;
  power[width] = count;
  if (centred) power[width + 1] = static_cast<float>(rows.rows);
  return result;
}

Tensor gradient_sums_of(Tensor dy, Tensor x, MaybeTensor padding, int64_t groups, double eps, MaybeTensor centre) {
  const Batch batch(x, padding, groups);
  Floats scales(batch.scale_count());
  const Tensor sums = allocate({2 * batch.width});
  const float* middle = centre ? floats(*centre, batch.width, "centre") : nullptr;
  gradient_sums(batch.with(scales.data(), false, eps), batch.gradient(dy), middle, data_of(sums));
  return sums;
}

// Divides columns by sqrt(power + eps), if there is a power.
void divide(Floats& columns, const MaybeTensor& power, float eps) {
  if (!power) return;
  const float* powers = floats(*power, static_cast<int64_t>(columns.size()), "power");
  for (size_t i = 0; i < columns.size(); ++i) columns[i] /= std::sqrt(powers[i] + eps);
}

Tensor evaluate(Tensor x, MaybeTensor padding, int64_t groups, double eps, MaybeTensor gamma, MaybeTensor beta,
                MaybeTensor centre, MaybeTensor power) {
  const Batch batch(x, padding, groups);
  const int64_t width = batch.width;
  const Tensor y = allocate_like(x);
  Floats scale = columns_of(gamma, width, 1.0f, "gamma"), scales(batch.scale_count());
  const Floats shift = columns_of(beta, width, 0.0f, "beta");
  const float* middle = centre ? floats(*centre, width, "centre") : nullptr;
  const Rows rows = batch.with(scales.data(), false, eps);
  divide(scale, power, rows.eps);
  affine(rows, middle, scale.data(), shift.data(), y.mutable_data_ptr(), nullptr);
  return y;
}

Three evaluate_backward(Tensor dy, Tensor x, MaybeTensor padding, int64_t groups, double eps, MaybeTensor gamma,
                        MaybeTensor centre, MaybeTensor power) {
  const Batch batch(x, padding, groups);
  const int64_t width = batch.width;
  const Tensor dx = allocate_like(x);
  Floats a = columns_of(gamma, width, 1.0f, "gamma"), scales(batch.scale_count()), zeros(width), sums(2 * width);
  const float* middle = centre ? floats(*centre, width, "centre") : nullptr;
  const Rows rows = batch.with(scales.data(), false, eps);
  divide(a, power, rows.eps);
  gradient(rows, batch.gradient(dy), a.data(), zeros.data(), middle, centre ? zeros.data() : nullptr,
           dx.mutable_data_ptr(), sums.data());
  Floats products(sums.begin(), sums.begin() + width);
  divide(products, power, rows.eps);
  return gradients(dx, products.data(), sums.data() + width, width);
}

// Columns: centre, 1 / std, r, d, the number of tokens, and what squares are divided by.
Three batch_forward(Tensor x, MaybeTensor padding, int64_t groups, double eps, MaybeTensor gamma, MaybeTensor beta,
                    double momentum, bool released, int64_t warmup, int64_t rise, MaybeTensor running_mean,
                    Tensor running_power, Tensor num_updates, MaybeTensor given, bool moves) {
  const Batch batch(x, padding, groups);
  const int64_t width = batch.width;
  const bool centred = running_mean.has_value();
  float *old_power = floats(running_power, width, "running_power"),
        *old_mean = centred ? floats(*running_mean, width, "running_mean") : nullptr;
  int64_t* updates = counter(num_updates);
  const Floats gammas = columns_of(gamma, width, 1.0f, "gamma"), betas = columns_of(beta, width, 0.0f, "beta");
  const Tensor y = allocate_like(x), columns = allocate({4 * width + 2}), scales = batch.new_scales();
  float *centre = data_of(columns), *rstd = centre + width, *r = rstd + width, *d = r + width, *counts = d + width;
  Rows rows = batch.with(data_of(scales), false, eps);
  float count = static_cast<float>(rows.count()), spread = released ? static_cast<float>(rows.rows) : count;
  Floats power(width), scale(width), shift(width);
  std::fill(centre, centre + width, 0.0f);
  if (given) {
    const float* sums = floats(*given, centred ? 2 * width + 2 : width + 1, "given");
    if (centred) std::copy(sums, sums + width, centre), sums += width;
    count = sums[width];
    spread = released ? sums[width + 1] : count;
    for (int64_t i = 0; i < width; ++i) power[i] = sums[i] / std::max(spread, 1.0f);
  } else {
    centred ? moments(rows, centre, power.data()) : square_means(rows, power.data());
    rows.scales_known = true;
    if (released)
      for (int64_t i = 0; i < width; ++i) power[i] *= count / std::max(spread, 1.0f);
  }
  float r_max = 1.0f, d_max = 0.0f;
  if (rise >= 0) {
    const float risen = static_cast<float>(*updates + 1 - warmup) / static_cast<float>(std::max<int64_t>(rise, 1));
    r_max = 1.0f + 2.0f * std::min(std::max(risen, 0.0f), 1.0f);
    d_max = 5.0f * std::min(std::max(risen, 0.0f), 1.0f);
  }
  for (int64_t i = 0; i < width; ++i) {
    const float std_ = std::sqrt(power[i] + rows.eps), old_std = rise >= 0 ? std::sqrt(old_power[i] + rows.eps) : 1.0f;
    rstd[i] = 1.0f / std_;
    r[i] = rise >= 0 ? std::min(std::max(std_ / old_std, 1.0f / r_max), r_max) : 1.0f;
    d[i] = rise >= 0 ? std::min(std::max((centre[i] - old_mean[i]) / old_std, -d_max), d_max) : 0.0f;
    scale[i] = gammas[i] * r[i] * rstd[i];
    shift[i] = betas[i] + gammas[i] * d[i];
  }
  affine(rows, centred ? centre : nullptr, scale.data(), shift.data(), y.mutable_data_ptr(), nullptr);
  counts[0] = count;
  counts[1] = spread;
  if (!moves || count == 0) return {y, columns, scales};
  const float weight = static_cast<float>(momentum);
  Floats next_mean(centred ? width : 0), next_power(width);
  for (int64_t i = 0; i < width; ++i) next_power[i] = old_power[i] + weight * (power[i] - old_power[i]);
  for (size_t i = 0; i < next_mean.size(); ++i) next_mean[i] = old_mean[i] + weight * (centre[i] - old_mean[i]);
  if (!all_finite(next_power) || !all_finite(next_mean)) return {y, columns, scales};
  std::copy(next_power.begin(), next_power.end(), old_power);
  std::copy(next_mean.begin(), next_mean.end(), old_mean);
  ++*updates;
  return {y, columns, scales};
}

Three batch_backward(Tensor dy, Tensor x, MaybeTensor padding, int64_t groups, double eps, MaybeTensor gamma,
                     bool centred, Tensor columns, Tensor scales, MaybeTensor given, MaybeTensor extra) {
  const Batch batch(x, padding, groups);
  const int64_t width = batch.width;
  const Tensor dx = allocate_like(x);
  const float* more = extra ? floats(*extra, 2 * width, "extra") : nullptr;
  const float *centre = floats(columns, 4 * width + 2, "columns"), *rstd = centre + width, *r = rstd + width,
              *d = r + width, *counts = d + width;
  const Rows rows = batch.with(floats(scales, batch.scale_count(), "scales"), true, eps);
  const Floats gammas = columns_of(gamma, width, 1.0f, "gamma");
  const float count = std::max(counts[0], 1.0f), spread = std::max(counts[1], 1.0f);
  const float* middle = centred ? centre : nullptr;
  Floats sums(2 * width), a(width), b(width), c(width);
  gradient_sums(rows, batch.gradient(dy), middle, sums.data());
  const float *products = given ? floats(*given, 2 * width, "given") : sums.data(), *totals = products + width;
  for (int64_t i = 0; i < width; ++i) {
    const float g = gammas[i] * r[i];
    a[i] = g * rstd[i];
    b[i] = -g * products[i] * rstd[i] / spread * rstd[i] * rstd[i];
    c[i] = -g * totals[i] / count * rstd[i];
    if (more == nullptr) continue;
    c[i] += more[i];
    b[i] += more[width + i];
  }
  gradient(rows, batch.gradient(dy), a.data(), b.data(), middle, centred ? c.data() : nullptr, dx.mutable_data_ptr(),
           nullptr);
  for (int64_t i = 0; i < width; ++i) sums[i] = sums[i] * rstd[i] * r[i] + sums[width + i] * d[i];
  return gradients(dx, sums.data(), sums.data() + width, width);
}

// Columns: 1 / psi, psi_B^2, the number of tokens.
Three power_forward(Tensor x, MaybeTensor padding, int64_t groups, double eps, MaybeTensor gamma, MaybeTensor beta,
                    double alpha, int64_t warmup, Tensor running_psi2, Tensor num_updates, MaybeTensor given,
                    bool moves) {
  const Batch batch(x, padding, groups);
  const int64_t width = batch.width;
  float* psi2 = floats(running_psi2, width, "running_psi2");
  int64_t* updates = counter(num_updates);
  const Floats gammas = columns_of(gamma, width, 1.0f, "gamma"), betas = columns_of(beta, width, 0.0f, "beta");
  const Tensor y = allocate_like(x), columns = allocate({2 * width + 1}), scales = batch.new_scales();
  float *rstd = data_of(columns), *batch_psi2 = rstd + width;
  Rows rows = batch.with(data_of(scales), false, eps);
  const int64_t t = *updates + 1;
  const bool warm = t <= warmup;
  float count = static_cast<float>(rows.count());
  if (given) {
    const float* sums = floats(*given, width + 1, "given");
    count = sums[width];
    for (int64_t i = 0; i < width; ++i) batch_psi2[i] = sums[i] / std::max(count, 1.0f);
  } else if (warm) {
    square_means(rows, batch_psi2);
    rows.scales_known = true;
  }
  Floats scale(width);
  for (int64_t i = 0; i < width; ++i) {
    rstd[i] = 1.0f / std::sqrt((warm ? batch_psi2[i] : psi2[i]) + rows.eps);
    scale[i] = gammas[i] * rstd[i];
  }
  affine(rows, nullptr, scale.data(), betas.data(), y.mutable_data_ptr(), warm || given ? nullptr : batch_psi2);
  batch_psi2[width] = count;
  if (!moves || count == 0) return {y, columns, scales};
  const float weight = warm ? 1.0f / static_cast<float>(t) : static_cast<float>(1.0 - alpha);
  Floats next(width);
  for (int64_t i = 0; i < width; ++i) next[i] = psi2[i] + (batch_psi2[i] - psi2[i]) * weight;
  if (!all_finite(next)) return {y, columns, scales};
  std::copy(next.begin(), next.end(), psi2);
  *updates = t;
  return {y, columns, scales};
}

// Found: the gradients of gamma and beta, and the nu that was used.
Two power_backward(Tensor dy, Tensor x, MaybeTensor padding, int64_t groups, double eps, MaybeTensor gamma,
                   double alpha, MaybeTensor loss_scale, Tensor columns, Tensor scales, Tensor nu, bool moves) {
  const Batch batch(x, padding, groups);
  const int64_t width = batch.width;
  const Tensor dx = allocate_like(x), found = allocate({3, width});
  const float *rstd = floats(columns, 2 * width + 1, "columns"), *batch_psi2 = rstd + width;
  const Rows rows = batch.with(floats(scales, batch.scale_count(), "scales"), true, eps);
  const Floats gammas = columns_of(gamma, width, 1.0f, "gamma");
  const float count = batch_psi2[width], unit = number(loss_scale);
  float *nus = floats(nu, width, "nu"), *sums = data_of(found);
  Floats a(width), b(width);
  std::copy(nus, nus + width, sums + 2 * width);
  for (int64_t i = 0; i < width; ++i) {  // dL/dX = (G - nu * X^) / psi with G = gamma * dy, X^ = s / psi
    a[i] = gammas[i] * rstd[i];
    b[i] = -unit * nus[i] * rstd[i] * rstd[i];
  }
  gradient(rows, batch.gradient(dy), a.data(), b.data(), nullptr, nullptr, dx.mutable_data_ptr(), sums);
  for (int64_t i = 0; i < width; ++i) sums[i] *= rstd[i];  // sum of dy * X^
  if (moves && count > 0) {
    const float weight = static_cast<float>(1.0 - alpha);
    Floats next(width);
    for (int64_t i = 0; i < width; ++i) {
      const float big_gamma = batch_psi2[i] * rstd[i] * rstd[i], big_lambda = gammas[i] * sums[i] / count / unit;
      next[i] = nus[i] * (1.0f - weight * big_gamma) + weight * big_lambda;
    }
    if (all_finite(next)) std::copy(next.begin(), next.end(), nus);
  }
  return {dx, found};
}

// Mean of each column over the rows of a window.
float window_mean(const float* window, int64_t size, int64_t width, int64_t column) {
  float sum = 0.0f;
  for (int64_t slot = 0; slot < size; ++slot) sum += window[slot * width + column];
  return sum / static_cast<float>(size);
}

// Columns: 1 / chi, r, whether the batch's own means are used, its slot in the window, the number of tokens.
Three window_forward(Tensor x, MaybeTensor padding, int64_t groups, double eps, MaybeTensor gamma, MaybeTensor beta,
                     double momentum, int64_t warmup, Tensor running_chi2, Tensor psi2_window, Tensor num_updates,
                     MaybeTensor given, bool moves) {
  const Batch batch(x, padding, groups);
  const int64_t width = batch.width, size = psi2_window.numel() / width;
  float *running = floats(running_chi2, width, "running_chi2"), *window = floats(psi2_window, size * width, "window");
  int64_t* updates = counter(num_updates);
  STD_TORCH_CHECK(size > 0, "the window is empty");
  const Floats gammas = columns_of(gamma, width, 1.0f, "gamma"), betas = columns_of(beta, width, 0.0f, "beta");
  const Tensor y = allocate_like(x), columns = allocate({2 * width + 3}), scales = batch.new_scales();
  float *rchi = data_of(columns), *r = rchi + width, *facts = r + width;
  Rows rows = batch.with(data_of(scales), false, eps);
  float count = static_cast<float>(rows.count());
  Floats power(width), scale(width), chi2(width);
  if (given) {
    const float* sums = floats(*given, width + 1, "given");
    count = sums[width];
    for (int64_t i = 0; i < width; ++i) power[i] = sums[i] / std::max(count, 1.0f);
  } else {
    square_means(rows, power.data());
    rows.scales_known = true;
  }
  const int64_t t = *updates + 1, slot = (t - 1) % size;
  const bool own = t <= std::max(warmup, size);
  Floats next_window(window, window + size * width), next_running(width);
  std::copy(power.begin(), power.end(), next_window.begin() + slot * width);
  for (int64_t i = 0; i < width; ++i) {
    chi2[i] = own ? power[i] : window_mean(next_window.data(), size, width, i);
    const float chi = std::sqrt(chi2[i] + rows.eps);
    rchi[i] = 1.0f / chi;
    r[i] = t <= warmup ? 1.0f : std::min(std::max(chi / std::sqrt(running[i] + rows.eps), 0.2f), 5.0f);
    scale[i] = gammas[i] * r[i] * rchi[i];
    next_running[i] = running[i] + static_cast<float>(momentum) * (chi2[i] - running[i]);
  }
  affine(rows, nullptr, scale.data(), betas.data(), y.mutable_data_ptr(), nullptr);
  facts[0] = own;
  facts[1] = static_cast<float>(slot);
  facts[2] = count;
  if (!moves || count == 0 || !all_finite(next_running) || !all_finite(next_window)) return {y, columns, scales};
  std::copy(next_running.begin(), next_running.end(), running);
  std::copy(next_window.begin(), next_window.end(), window);
  *updates = t;
  return {y, columns, scales};
}

Three window_backward(Tensor dy, Tensor x, MaybeTensor padding, int64_t groups, double eps, MaybeTensor gamma,
                      MaybeTensor loss_scale, Tensor columns, Tensor scales, MaybeTensor given, Tensor grad_window,
                      bool moves) {
  const Batch batch(x, padding, groups);
  const int64_t width = batch.width, size = grad_window.numel() / width;
  const Tensor dx = allocate_like(x);
  const float *rchi = floats(columns, 2 * width + 3, "columns"), *r = rchi + width, *facts = r + width;
  const Rows rows = batch.with(floats(scales, batch.scale_count(), "scales"), true, eps);
  const Floats gammas = columns_of(gamma, width, 1.0f, "gamma");
  float* window = floats(grad_window, size * width, "grad_window");
  const int64_t slot = static_cast<int64_t>(facts[1]);
  STD_TORCH_CHECK(slot >= 0 && slot < size, "the window is shorter than in the forward");
  const float unit = number(loss_scale);
  Floats sums(2 * width), a(width), b(width), next(window, window + size * width);
  gradient_sums(rows, batch.gradient(dy), nullptr, sums.data());
  const float* products = given ? floats(*given, 2 * width, "given") : sums.data();
  for (int64_t i = 0; i < width; ++i) {
    const float g = gammas[i] * r[i], own = g * products[i] * rchi[i] / std::max(facts[2], 1.0f);
    next[slot * width + i] = own / unit;
    const float used = facts[0] > 0 ? own : window_mean(next.data(), size, width, i) * unit;
    a[i] = g * rchi[i];
    b[i] = -used * rchi[i] * rchi[i];
    sums[i] *= r[i] * rchi[i];
  }
  gradient(rows, batch.gradient(dy), a.data(), b.data(), nullptr, nullptr, dx.mutable_data_ptr(), nullptr);
  if (moves && facts[2] > 0 && all_finite(next)) std::copy(next.begin(), next.end(), window);
  return gradients(dx, sums.data(), sums.data() + width, width);
}

// Columns: means and 1 / std of each slice.
Two token_forward(Tensor x, MaybeTensor padding, int64_t groups, double eps, MaybeTensor gamma, MaybeTensor beta,
                  bool centred) {
  const Batch batch(x, padding, groups);
  STD_TORCH_CHECK(groups > 0, "there must be a group");
  const Floats gammas = columns_of(gamma, batch.width, 1.0f, "gamma"), betas = columns_of(beta, batch.width, 0.0f, "beta");
  const Tensor y = allocate_like(x), columns = allocate({2, batch.rows, groups});
  float* means = data_of(columns);
  token_norm(batch.with(means, true, eps), centred, gammas.data(), betas.data(), y.mutable_data_ptr(), means,
             means + batch.scale_count());
  return {y, columns};
}

Three token_backward(Tensor dy, Tensor x, MaybeTensor padding, int64_t groups, double eps, MaybeTensor gamma,
                     bool centred, Tensor columns) {
  const Batch batch(x, padding, groups);
  STD_TORCH_CHECK(groups > 0, "there must be a group");
  const Floats gammas = columns_of(gamma, batch.width, 1.0f, "gamma");
  float* means = floats(columns, 2 * batch.scale_count(), "columns");
  const Tensor dx = allocate_like(x);
  Floats sums(2 * batch.width);
  token_gradient(batch.with(means, true, eps), centred, batch.gradient(dy), gammas.data(), means,
                 means + batch.scale_count(), dx.mutable_data_ptr(), sums.data());
  return gradients(dx, sums.data(), sums.data() + batch.width, batch.width);
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(powernorm, CPU, library) {
  library.impl("statistics", TORCH_BOX(&statistics));
  library.impl("gradient_sums", TORCH_BOX(&gradient_sums_of));
  library.impl("evaluate", TORCH_BOX(&evaluate));
  library.impl("evaluate_backward", TORCH_BOX(&evaluate_backward));
  library.impl("batch_forward", TORCH_BOX(&batch_forward));
  library.impl("batch_backward", TORCH_BOX(&batch_backward));
  library.impl("power_forward", TORCH_BOX(&power_forward));
  library.impl("power_backward", TORCH_BOX(&power_backward));
  library.impl("window_forward", TORCH_BOX(&window_forward));
  library.impl("window_backward", TORCH_BOX(&window_backward));
  library.impl("token_forward", TORCH_BOX(&token_forward));
  library.impl("token_backward", TORCH_BOX(&token_backward));
}
