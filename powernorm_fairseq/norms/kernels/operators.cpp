// The passes as operators of torch, and whole steps of norms on top of them: what a step does with columns is little work,
// but as many small operations it would take longer than the passes over a narrow layer.
//
// Only torch's stable ABI is used (torch >= 2.10): this compiles in seconds, and the result fits later versions.

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/core/ScalarType.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <vector>

#include "passes.h"

namespace {

using torch::stable::Tensor;
using MaybeTensor = std::optional<Tensor>;

float* floats(const Tensor& tensor) { return static_cast<float*>(tensor.mutable_data_ptr()); }

float* floats(const MaybeTensor& tensor) { return tensor ? floats(*tensor) : nullptr; }

Rows rows_of(const Tensor& x, const MaybeTensor& padding, const MaybeTensor& scales, bool scales_known, double eps) {
  return {x.size(0),
          x.size(1),
          scales ? scales->size(1) : 1,
          x.scalar_type() == torch::headeronly::ScalarType::BFloat16,
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

// BN, or PN-V if not `centred`: forward by the batch's own statistics, with `momentum` the weight of the batch in the
// running ones, which are moved if `moves`. `spread_over_all` divides squares by the number of all rows. `columns`
// (2 x C + 2) receives the centre, 1 / std, and the numbers of tokens that sums and squares are over.
void batch_forward(Tensor x, MaybeTensor padding, MaybeTensor scales, double eps, Tensor gamma, Tensor beta,
                   bool centred, bool spread_over_all, double momentum, MaybeTensor running_mean, Tensor running_power,
                   Tensor num_updates, bool moves, Tensor y, Tensor columns) {
  Rows rows = rows_of(x, padding, scales, false, eps);
  const int64_t width = rows.columns;
  const float *gammas = floats(gamma), *betas = floats(beta);
  float *centre = floats(columns), *rstd = centre + width;
  const float count = static_cast<float>(rows.count());
  const float spread = spread_over_all ? static_cast<float>(rows.rows) : count;
  std::vector<float> power(width), scale(width), shift(width);
  if (centred) {
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
  rstd[width] = count;
  rstd[width + 1] = spread;
  if (!moves || count == 0) return;
  const float weight = static_cast<float>(momentum);
  std::vector<float> next_mean(running_mean ? width : 0), next_power(width);
  for (int64_t i = 0; i < width; ++i) next_power[i] = (1 - weight) * floats(running_power)[i] + weight * power[i];
  for (size_t i = 0; i < next_mean.size(); ++i)
    next_mean[i] = (1 - weight) * floats(running_mean)[i] + weight * centre[i];
  if (!all_finite(next_power) || !all_finite(next_mean)) return;
  std::copy(next_power.begin(), next_power.end(), floats(running_power));
  std::copy(next_mean.begin(), next_mean.end(), floats(running_mean));
  *floats(num_updates) += 1.0f;
}

// The lemmas on the gradients of BN and PN-V; of_gamma and of_beta (2 x C) are `grads`.
void batch_backward(Tensor dy, Tensor x, MaybeTensor padding, MaybeTensor scales, double eps, Tensor gamma,
                    bool centred, Tensor columns, Tensor dx, Tensor grads) {
  const Rows rows = rows_of(x, padding, scales, true, eps);
  const int64_t width = rows.columns;
  const float *gammas = floats(gamma), *centre = floats(columns), *rstd = centre + width;
  const float count = std::max(rstd[width], 1.0f), spread = std::max(rstd[width + 1], 1.0f);
  float *products = floats(grads), *totals = products + width;
  backward_sums(rows, dy.const_data_ptr(), centred ? centre : nullptr, products);
  std::vector<float> a(width), b(width), c(width);
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
}

// PN, Algorithm 2, forward. `before` (C + 1) holds psi^2 and the number of updates before this step: written, or read if
// the step is done `again`. The buffers are moved if `moves`. `columns` (2 x C + 1) receives 1 / psi, the sums of s^2 and
// the number of tokens.
void power_forward(Tensor x, MaybeTensor padding, MaybeTensor scales, double eps, Tensor gamma, Tensor beta,
                   double alpha, int64_t warmup, Tensor running_psi2, Tensor num_updates, Tensor before, bool again,
                   bool moves, Tensor y, Tensor columns) {
  Rows rows = rows_of(x, padding, scales, false, eps);
  const int64_t width = rows.columns;
  float *old = floats(before), *rstd = floats(columns), *squares = rstd + width;
  if (!again) {
    std::copy(floats(running_psi2), floats(running_psi2) + width, old);
    old[width] = *floats(num_updates);
  }
  const float* gammas = floats(gamma);
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
  affine(rows, scale.data(), floats(beta), y.mutable_data_ptr(), warm ? nullptr : squares);
  squares[width] = count;
  if (!moves || count == 0) return;
  const float weight = warm ? 1.0f / t : static_cast<float>(1.0 - alpha);  // of the batch in the next psi^2
  std::vector<float> next(width);
  for (int64_t i = 0; i < width; ++i) next[i] = old[i] + (squares[i] / count - old[i]) * weight;
  if (!all_finite(next)) return;
  std::copy(next.begin(), next.end(), floats(running_psi2));
  *floats(num_updates) = t;
}

// PN, Algorithm 2, backward. `nu` is the buffer, moved if `moves`; of_gamma and of_beta (2 x C) are `grads`.
void power_backward(Tensor dy, Tensor x, MaybeTensor padding, MaybeTensor scales, double eps, Tensor gamma,
                    double alpha, double loss_scale, Tensor columns, Tensor nu, bool moves, Tensor dx, Tensor grads) {
  const Rows rows = rows_of(x, padding, scales, true, eps);
  const int64_t width = rows.columns;
  const float *rstd = floats(columns), *squares = rstd + width, *gammas = floats(gamma);
  const float count = squares[width], unit = static_cast<float>(loss_scale);
  float *nus = floats(nu), *products = floats(grads);
  std::vector<float> a(width), b(width);
  for (int64_t i = 0; i < width; ++i) {  // dL/dX = (G - nu * X^) / psi with G = gamma * dy, X^ = s / psi
    a[i] = gammas[i] * rstd[i];
    b[i] = -unit * nus[i] * rstd[i] * rstd[i];
  }
  backward(rows, dy.const_data_ptr(), a.data(), b.data(), nullptr, dx.mutable_data_ptr(), products);
  for (int64_t i = 0; i < width; ++i) products[i] *= rstd[i];  // sum of dy * x_hat
  if (!moves || count == 0) return;
  const float weight = static_cast<float>(1.0 - alpha);
  std::vector<float> next(width);
  for (int64_t i = 0; i < width; ++i) {
    const float big_gamma = squares[i] * rstd[i] * rstd[i] / count;
    const float big_lambda = gammas[i] * products[i] / count / unit;
    next[i] = nus[i] * (1.0f - weight * big_gamma) + weight * big_lambda;
  }
  if (all_finite(next)) std::copy(next.begin(), next.end(), nus);
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
      "batch_forward(Tensor x, Tensor? padding, Tensor(a!)? scales, float eps, Tensor gamma, Tensor beta, "
      "bool centred, bool spread_over_all, float momentum, Tensor(b!)? running_mean, Tensor(c!) running_power, "
      "Tensor(d!) num_updates, bool moves, Tensor(e!) y, Tensor(f!) columns) -> ()");
  library.def(
      "batch_backward(Tensor dy, Tensor x, Tensor? padding, Tensor? scales, float eps, Tensor gamma, bool centred, "
      "Tensor columns, Tensor(a!) dx, Tensor(b!) grads) -> ()");
  library.def(
      "power_forward(Tensor x, Tensor? padding, Tensor(a!)? scales, float eps, Tensor gamma, Tensor beta, float alpha, "
      "int warmup, Tensor(b!) running_psi2, Tensor(c!) num_updates, Tensor(d!) before, bool again, bool moves, "
      "Tensor(e!) y, Tensor(f!) columns) -> ()");
  library.def(
      "power_backward(Tensor dy, Tensor x, Tensor? padding, Tensor? scales, float eps, Tensor gamma, float alpha, "
      "float loss_scale, Tensor columns, Tensor(a!) nu, bool moves, Tensor(b!) dx, Tensor(c!) grads) -> ()");
}

STABLE_TORCH_LIBRARY_IMPL(powernorm, CPU, library) {
  library.impl("square_sums", TORCH_BOX(&square_sums_op));
  library.impl("moments", TORCH_BOX(&moments_op));
  library.impl("affine", TORCH_BOX(&affine_op));
  library.impl("backward_sums", TORCH_BOX(&backward_sums_op));
  library.impl("backward", TORCH_BOX(&backward_op));
  library.impl("batch_forward", TORCH_BOX(&batch_forward));
  library.impl("batch_backward", TORCH_BOX(&batch_backward));
  library.impl("power_forward", TORCH_BOX(&power_forward));
  library.impl("power_backward", TORCH_BOX(&power_backward));
}
