// The norms with running statistics, and norms of tokens, for CPUs: whole steps over the passes. What a step does with
// columns is little work, but as many small operations it would take longer than the passes over a narrow layer.
//
// ../ops.py has the schemas, and ../functional.py says what each operator computes; the modules of UN and RBN have
// theirs. x may have any number of dimensions, of which the last is C, and the mask the others.

#include <torch/csrc/stable/library.h>

#include "passes.h"

namespace {

// What a forward begins with. It leaves some columns, and single numbers behind them, for its backward.
struct Forward {
  Rows rows;
  const int64_t width = rows.columns;
  const Floats gamma, beta;
  const Tensor y, columns, scales;
  Floats scale, shift;  // y = (s - centre) * scale + shift
  float count = static_cast<float>(rows.count);

  Forward(const Tensor& x, const MaybeTensor& padding, int64_t groups, double eps, const MaybeTensor& gamma,
          const MaybeTensor& beta, int64_t columns, int64_t numbers)
      : rows(x, padding, groups, eps), gamma(columns_of(gamma, width, 1.0f, "gamma")),
        beta(columns_of(beta, width, 0.0f, "beta")), y(allocate_like(x)),
        columns(allocate({columns * width + numbers})), scales(rows.new_scales()), scale(width), shift(this->beta) {}

  // Means of s^2 of the batch, or from the sums of all processes, whose count it is then.
  void powers(const MaybeTensor& given, float* power) {
    if (!given) {
      square_means(rows, power);
      rows.scales_known = true;
      return;
    }
    const float* sums = floats(*given, width + 1, "given");
    count = sums[width];
    for (int64_t i = 0; i < width; ++i) power[i] = sums[i] / std::max(count, 1.0f);
  }

  Three finish(const float* centre, float* power = nullptr) const {
    affine(rows, centre, scale.data(), shift.data(), y.mutable_data_ptr(), power);
    return {y, columns, scales};
  }
};

// What a backward begins with: dL/ds = dy * a + (s - centre) * b + c, and sums of dy * (s - centre) and of dy.
struct Backward {
  Rows rows;
  const int64_t width = rows.columns;
  const void* dy;
  const Floats gamma;
  const Tensor dx;
  Floats a, b, c, sums;

  Backward(const Tensor& dy, const Tensor& x, const MaybeTensor& padding, int64_t groups, double eps,
           const MaybeTensor& gamma)
      : rows(x, padding, groups, eps), dy(rows.like_x(dy)), gamma(columns_of(gamma, width, 1.0f, "gamma")),
        dx(allocate_like(x)), a(width), b(width), c(width), sums(2 * width) {}

  // Takes the sums of this process; returns those of all processes.
  const float* take_sums(const MaybeTensor& given, const float* centre) {
    gradient_sums(rows, dy, centre, sums.data());
    return given ? floats(*given, 2 * width, "given") : sums.data();
  }

  void finish(const float* centre, float* sums) const {
    gradient(rows, dy, a.data(), b.data(), centre, c.data(), dx.mutable_data_ptr(), sums);
  }

  Three gradients() const { return {dx, copy_of(sums.data(), width), copy_of(sums.data() + width, width)}; }
};

// ---------------------------------------------------------------- parts of a step, for several processes

Tensor statistics(Tensor x, MaybeTensor padding, int64_t groups, double eps, bool centred) {
  Rows rows(x, padding, groups, eps);
  rows.new_scales();
  const int64_t width = rows.columns;
  const Tensor result = allocate({centred ? 2 * width + 2 : width + 1});
  float *to = data_of(result), *power = centred ? to + width : to;
  const float count = static_cast<float>(rows.count);
  centred ? moments(rows, to, power) : square_means(rows, power);
  for (int64_t i = 0; i < width; ++i) power[i] *= count;
  power[width] = count;
  if (centred) power[width + 1] = static_cast<float>(rows.rows);
  return result;
}

Tensor gradient_sums_of(Tensor dy, Tensor x, MaybeTensor padding, int64_t groups, double eps, MaybeTensor centre) {
  Rows rows(x, padding, groups, eps);
  rows.new_scales();
  const Tensor sums = allocate({2 * rows.columns});
  const float* middle = centre ? floats(*centre, rows.columns, "centre") : nullptr;
  gradient_sums(rows, rows.like_x(dy), middle, data_of(sums));
  return sums;
}

// ---------------------------------------------------------------- evaluation

// Divides columns by sqrt(power + eps), if there is a power.
void divide(float* columns, int64_t width, const MaybeTensor& power, float eps) {
  if (!power) return;
  const float* powers = floats(*power, width, "power");
  for (int64_t i = 0; i < width; ++i) columns[i] /= std::sqrt(powers[i] + eps);
}

Tensor evaluate(Tensor x, MaybeTensor padding, int64_t groups, double eps, MaybeTensor gamma, MaybeTensor beta,
                MaybeTensor centre, MaybeTensor power) {
  Forward step(x, padding, groups, eps, gamma, beta, 0, 0);
  step.scale = step.gamma;
  divide(step.scale.data(), step.width, power, step.rows.eps);
  step.finish(centre ? floats(*centre, step.width, "centre") : nullptr);
  return step.y;
}

Three evaluate_backward(Tensor dy, Tensor x, MaybeTensor padding, int64_t groups, double eps, MaybeTensor gamma,
                        MaybeTensor centre, MaybeTensor power) {
  Backward step(dy, x, padding, groups, eps, gamma);
  step.rows.new_scales();
  step.a = step.gamma;
  divide(step.a.data(), step.width, power, step.rows.eps);
  step.finish(centre ? floats(*centre, step.width, "centre") : nullptr, step.sums.data());
  divide(step.sums.data(), step.width, power, step.rows.eps);
  return step.gradients();
}

// ---------------------------------------------------------------- BN, BRN, PN-V

// Columns: centre, 1 / std, r, d, the number of tokens, and what squares are divided by.
Three batch_forward(Tensor x, MaybeTensor padding, int64_t groups, double eps, MaybeTensor gamma, MaybeTensor beta,
                    double momentum, bool released, int64_t warmup, int64_t rise, MaybeTensor running_mean,
                    Tensor running_power, Tensor num_updates, MaybeTensor given, bool moves) {
  Forward step(x, padding, groups, eps, gamma, beta, 4, 2);
  Rows& rows = step.rows;
  const int64_t width = step.width;
  const bool centred = running_mean.has_value();
  float *old_power = floats(running_power, width, "running_power"),
        *old_mean = centred ? floats(*running_mean, width, "running_mean") : nullptr;
  int64_t* updates = counter(num_updates);
  float *centre = data_of(step.columns), *rstd = centre + width, *r = rstd + width, *d = r + width, *counts = d + width;
  float spread = released ? static_cast<float>(rows.rows) : step.count;
  Floats power(width);
  if (given && centred) {
    const float *means = floats(*given, 2 * width + 2, "given"), *sums = means + width;
    std::copy(means, sums, centre);
    step.count = sums[width];
    spread = released ? sums[width + 1] : step.count;
    for (int64_t i = 0; i < width; ++i) power[i] = sums[i] / std::max(spread, 1.0f);
  } else if (centred) {
    moments(rows, centre, power.data());
    rows.scales_known = true;
    if (released)
      for (float& value : power) value *= step.count / std::max(spread, 1.0f);
  } else {
    std::fill(centre, rstd, 0.0f);
    step.powers(given, power.data());
    spread = step.count;
  }
  const float risen = static_cast<float>(*updates + 1 - warmup) / static_cast<float>(std::max<int64_t>(rise, 1));
  const float r_max = 1.0f + 2.0f * clamp(risen, 0.0f, 1.0f), d_max = 5.0f * clamp(risen, 0.0f, 1.0f);
  for (int64_t i = 0; i < width; ++i) {
    const float std_ = std::sqrt(power[i] + rows.eps), old_std = std::sqrt(old_power[i] + rows.eps);
    rstd[i] = 1.0f / std_;
    r[i] = rise < 0 ? 1.0f : clamp(std_ / old_std, 1.0f / r_max, r_max);
    d[i] = rise < 0 ? 0.0f : clamp((centre[i] - old_mean[i]) / old_std, -d_max, d_max);
    step.scale[i] = step.gamma[i] * r[i] * rstd[i];
    step.shift[i] += step.gamma[i] * d[i];
  }
  counts[0] = step.count;
  counts[1] = spread;
  const Floats next_power = moved(old_power, power.data(), width, momentum);
  const Floats next_mean = moved(old_mean, centre, centred ? width : 0, momentum);
  move(moves, step.count, {{next_power, old_power}, {next_mean, old_mean}}, updates);
  return step.finish(centred ? centre : nullptr);
}

Three batch_backward(Tensor dy, Tensor x, MaybeTensor padding, int64_t groups, double eps, MaybeTensor gamma,
                     bool centred, Tensor columns, Tensor scales, MaybeTensor given, MaybeTensor extra) {
  Backward step(dy, x, padding, groups, eps, gamma);
  step.rows.use_scales(scales);
  const int64_t width = step.width;
  const float *centre = floats(columns, 4 * width + 2, "columns"), *rstd = centre + width, *r = rstd + width,
              *d = r + width, *counts = d + width, *middle = centred ? centre : nullptr;
  const float count = std::max(counts[0], 1.0f), spread = std::max(counts[1], 1.0f);
  const float *products = step.take_sums(given, middle), *totals = products + width;
  for (int64_t i = 0; i < width; ++i) {
    step.a[i] = step.gamma[i] * r[i] * rstd[i];
    step.b[i] = -step.a[i] * products[i] / spread * rstd[i] * rstd[i];
    step.c[i] = -step.a[i] * totals[i] / count;
  }
  if (extra) {  // RBN's
    const float* more = floats(*extra, 2 * width, "extra");
    for (int64_t i = 0; i < width; ++i) step.c[i] += more[i], step.b[i] += more[width + i];
  }
  step.finish(middle, nullptr);
  for (int64_t i = 0; i < width; ++i) step.sums[i] = step.sums[i] * rstd[i] * r[i] + step.sums[width + i] * d[i];
  return step.gradients();
}

// RBN: BN, its penalty, the gradients of that (what adds to dL/ds, and to it times s - centre), and the running
// statistics as they were.
std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor> regularised_forward(
    Tensor x, MaybeTensor padding, int64_t groups, double eps, MaybeTensor gamma, MaybeTensor beta, double momentum,
    Tensor running_mean, Tensor running_var, Tensor num_updates, MaybeTensor given, bool moves, double of_mean,
    double of_var) {
  const int64_t width = running_mean.numel();
  const Tensor old_mean = copy_of(floats(running_mean, width, "running_mean"), width);
  const Tensor old_var = copy_of(floats(running_var, width, "running_var"), width);
  const auto [y, columns, scales] = batch_forward(x, padding, groups, eps, gamma, beta, momentum, false, 0, -1,
                                                  running_mean, running_var, num_updates, given, moves);
  const float *centre = data_of(columns), *rstd = centre + width, *mean = data_of(old_mean), *var = data_of(old_var);
  const float count = centre[4 * width];
  const Tensor penalty = allocate({}), extra = allocate({2 * width});
  float* to = data_of(extra);
  const double real = count > 0 ? 1.0 : 0.0, share = 2.0 * real / std::max(count, 1.0f);
  double means = 0.0, vars = 0.0;
  for (int64_t i = 0; i < width; ++i) {
    const double gap = centre[i] - mean[i], spread = 1.0 / (static_cast<double>(rstd[i]) * rstd[i]) - eps - var[i];
    means += gap * gap;
    vars += std::abs(spread);
    to[i] = static_cast<float>(of_mean * share * gap);
    to[width + i] = static_cast<float>(of_var * share * ((spread > 0) - (spread < 0)));
  }
  *data_of(penalty) = static_cast<float>(real * (of_mean * means + of_var * vars));
  return {y, columns, scales, penalty, extra, old_mean, old_var};
}

Three regularised_backward(Tensor dy, Tensor x, MaybeTensor padding, int64_t groups, double eps, MaybeTensor gamma,
                           Tensor columns, Tensor scales, Tensor extra, Tensor of_penalty) {
  const int64_t size = extra.numel();
  const Tensor scaled = copy_of(floats(extra, size, "extra"), size);
  const float factor = number(of_penalty);
  for (int64_t i = 0; i < size; ++i) data_of(scaled)[i] *= factor;
  return batch_backward(dy, x, padding, groups, eps, gamma, true, columns, scales, {}, scaled);
}

// ---------------------------------------------------------------- PN

// Columns: 1 / psi, psi_B^2, the number of tokens.
Three power_forward(Tensor x, MaybeTensor padding, int64_t groups, double eps, MaybeTensor gamma, MaybeTensor beta,
                    double alpha, int64_t warmup, Tensor running_psi2, Tensor num_updates, MaybeTensor given,
                    bool moves) {
  Forward step(x, padding, groups, eps, gamma, beta, 2, 1);
  const int64_t width = step.width;
  float *psi2 = floats(running_psi2, width, "running_psi2"), *rstd = data_of(step.columns), *batch_psi2 = rstd + width;
  int64_t* updates = counter(num_updates);
  const int64_t t = *updates + 1;
  const bool warm = t <= warmup, early = warm || given;  // whether psi_B^2 is known before the output
  if (early) step.powers(given, batch_psi2);
  for (int64_t i = 0; i < width; ++i) {
    rstd[i] = 1.0f / std::sqrt((warm ? batch_psi2[i] : psi2[i]) + step.rows.eps);
    step.scale[i] = step.gamma[i] * rstd[i];
  }
  const Three result = step.finish(nullptr, early ? nullptr : batch_psi2);
  batch_psi2[width] = step.count;
  const double weight = warm ? 1.0 / static_cast<double>(t) : 1.0 - alpha;
  move(moves, step.count, {{moved(psi2, batch_psi2, width, weight), psi2}}, updates);
  return result;
}

// Found: the gradients of gamma and beta, and the nu that was used.
Two power_backward(Tensor dy, Tensor x, MaybeTensor padding, int64_t groups, double eps, MaybeTensor gamma,
                   double alpha, MaybeTensor loss_scale, Tensor columns, Tensor scales, Tensor nu, bool moves) {
  Backward step(dy, x, padding, groups, eps, gamma);
  step.rows.use_scales(scales);
  const int64_t width = step.width;
  const Tensor found = allocate({3, width});
  const float *rstd = floats(columns, 2 * width + 1, "columns"), *batch_psi2 = rstd + width, count = batch_psi2[width];
  const float unit = number(loss_scale), weight = static_cast<float>(1.0 - alpha);
  float *nus = floats(nu, width, "nu"), *sums = data_of(found);
  Floats next(width);
  std::copy(nus, nus + width, sums + 2 * width);
  for (int64_t i = 0; i < width; ++i) {  // dL/dX = (G - nu * X^) / psi with G = gamma * dy, X^ = s / psi
    step.a[i] = step.gamma[i] * rstd[i];
    step.b[i] = -unit * nus[i] * rstd[i] * rstd[i];
  }
  step.finish(nullptr, sums);
  for (int64_t i = 0; i < width; ++i) {
    sums[i] *= rstd[i];  // sum of dy * X^
    const float big_gamma = batch_psi2[i] * rstd[i] * rstd[i];
    const float big_lambda = step.gamma[i] * sums[i] / std::max(count, 1.0f) / unit;
    next[i] = nus[i] * (1.0f - weight * big_gamma) + weight * big_lambda;
  }
  move(moves, count, {{next, nus}});
  return {step.dx, found};
}

// ---------------------------------------------------------------- MABN, UN

// What the two do with a window of quadratic means. UN's mean is geometric, its r is in the gradient alone, and it may
// leave out outliers.
struct Window {
  int64_t own_steps;  // so many use the batch's own means
  int64_t plain_steps;  // so many have r = 1
  bool unified, outliers;
};

// Mean of each column over a window (size x width) whose row `slot` is replaced by `fresh`.
Floats window_mean(const float* window, int64_t size, int64_t slot, const Floats& fresh, bool geometric) {
  const int64_t width = static_cast<int64_t>(fresh.size());
  Floats mean(width);
  for (int64_t row = 0; row < size; ++row) {
    const float* values = row == slot ? fresh.data() : window + row * width;
    for (int64_t i = 0; i < width; ++i) mean[i] += geometric ? std::log(values[i]) : values[i];
  }
  for (float& value : mean) {
    value /= static_cast<float>(size);
    if (geometric) value = std::exp(value);
  }
  return mean;
}

// Whether, in any column, the arithmetic mean exceeds the geometric one by more than `size` times the variance of all
// square roots in the window before.
bool is_outlier(const float* window, int64_t size, const Floats& arithmetic, const Floats& geometric) {
  const int64_t width = static_cast<int64_t>(geometric.size()), all = size * width;
  double mean = 0.0, squares = 0.0;
  for (int64_t i = 0; i < all; ++i) mean += std::sqrt(window[i]) / static_cast<double>(all);
  for (int64_t i = 0; i < all; ++i) squares += (std::sqrt(window[i]) - mean) * (std::sqrt(window[i]) - mean);
  for (int64_t i = 0; i < width; ++i)
    if (arithmetic[i] - geometric[i] > squares / static_cast<double>(width)) return true;
  return false;
}

// Columns: 1 / chi, r, whether the batch's own means are used (2: it is an outlier), its slot in the window, the number
// of tokens.
Three step_forward(const Window& kind, Tensor x, MaybeTensor padding, int64_t groups, double eps, MaybeTensor gamma,
                   MaybeTensor beta, double momentum, Tensor running_chi2, Tensor psi2_window, Tensor num_updates,
                   MaybeTensor given, bool moves) {
  Forward step(x, padding, groups, eps, gamma, beta, 2, 3);
  const int64_t width = step.width, size = psi2_window.numel() / width;
  STD_TORCH_CHECK(size > 0, "the window is empty");
  float *running = floats(running_chi2, width, "running"), *window = floats(psi2_window, size * width, "window");
  int64_t* updates = counter(num_updates);
  float *rchi = data_of(step.columns), *r = rchi + width, *facts = r + width;
  Floats power(width);
  step.powers(given, power.data());
  const int64_t t = *updates + 1, slot = (t - 1) % size;
  bool own = t <= std::max(kind.own_steps, size), outlier = false;
  Floats chi2 = own ? power : window_mean(window, size, slot, power, kind.unified);
  if (!own && kind.outliers && is_outlier(window, size, window_mean(window, size, slot, power, false), chi2)) {
    own = outlier = true;
    chi2 = power;
  }
  for (int64_t i = 0; i < width; ++i) {
    const float chi = std::sqrt(chi2[i] + step.rows.eps), ratio = chi / std::sqrt(running[i] + step.rows.eps);
    rchi[i] = 1.0f / chi;
    r[i] = outlier || t <= kind.plain_steps ? 1.0f : clamp(ratio, 0.2f, 5.0f);
    step.scale[i] = step.gamma[i] * (kind.unified ? 1.0f : r[i]) * rchi[i];
  }
  facts[0] = outlier ? 2.0f : own;
  facts[1] = static_cast<float>(slot);
  facts[2] = step.count;
  const Floats next = moved(running, chi2.data(), width, momentum);
  if (outlier) power.assign(running, running + width);  // takes its place in the window
  move(moves, step.count, {{power, window + slot * width}, {next, running}}, updates);
  return step.finish(nullptr);
}

// UN's gradient takes the running mean e of the window's means, which the step has moved; MABN's takes those means.
Three step_backward(Tensor dy, Tensor x, MaybeTensor padding, int64_t groups, double eps, MaybeTensor gamma,
                    MaybeTensor loss_scale, Tensor columns, Tensor scales, MaybeTensor given, Tensor grad_window,
                    MaybeTensor grad_mean, double momentum, bool moves) {
  Backward step(dy, x, padding, groups, eps, gamma);
  step.rows.use_scales(scales);
  const int64_t width = step.width, size = grad_window.numel() / width;
  const float *rchi = floats(columns, 2 * width + 3, "columns"), *r = rchi + width, *facts = r + width;
  const bool own = facts[0] > 0.0f, outlier = facts[0] > 1.0f;
  const int64_t slot = static_cast<int64_t>(facts[1]);
  STD_TORCH_CHECK(slot >= 0 && slot < size, "the window is shorter than in the forward");
  float *window = floats(grad_window, size * width, "grad_window"),
        *e = grad_mean ? floats(*grad_mean, width, "grad_mean") : nullptr;
  const float unit = number(loss_scale), *products = step.take_sums(given, nullptr);
  Floats q(width);
  for (int64_t i = 0; i < width; ++i) {
    step.a[i] = step.gamma[i] * r[i] * rchi[i];
    q[i] = step.a[i] * products[i] / std::max(facts[2], 1.0f) / unit;  // mean of G z
  }
  const Floats place = outlier ? Floats(e, e + width) : q;  // what takes the batch's place in the window
  Floats used = own ? q : window_mean(window, size, slot, place, false);
  if (e) used = moved(e, used.data(), width, momentum);
  for (int64_t i = 0; i < width; ++i) {
    step.b[i] = -used[i] * unit * rchi[i] * rchi[i];
    step.sums[i] *= r[i] * rchi[i];
  }
  step.finish(nullptr, nullptr);
  if (e) move(moves, facts[2], {{place, window + slot * width}, {used, e}});
  else move(moves, facts[2], {{place, window + slot * width}});
  return step.gradients();
}

Three window_forward(Tensor x, MaybeTensor padding, int64_t groups, double eps, MaybeTensor gamma, MaybeTensor beta,
                     double momentum, int64_t warmup, Tensor running_chi2, Tensor psi2_window, Tensor num_updates,
                     MaybeTensor given, bool moves) {
  return step_forward({warmup, warmup, false, false}, x, padding, groups, eps, gamma, beta, momentum, running_chi2,
                      psi2_window, num_updates, given, moves);
}

Three window_backward(Tensor dy, Tensor x, MaybeTensor padding, int64_t groups, double eps, MaybeTensor gamma,
                      MaybeTensor loss_scale, Tensor columns, Tensor scales, MaybeTensor given, Tensor grad_window,
                      bool moves) {
  return step_backward(dy, x, padding, groups, eps, gamma, loss_scale, columns, scales, given, grad_window,
                       std::nullopt, 0.0, moves);
}

Three unified_forward(Tensor x, MaybeTensor padding, int64_t groups, double eps, MaybeTensor gamma, MaybeTensor beta,
                      double momentum, int64_t warmup, int64_t first_steps, bool outliers, Tensor running_psi2,
                      Tensor psi2_window, Tensor num_updates, MaybeTensor given, bool moves) {
  return step_forward({warmup - 1, std::max(first_steps, warmup), true, outliers}, x, padding, groups, eps, gamma, beta,
                      momentum, running_psi2, psi2_window, num_updates, given, moves);
}

// ---------------------------------------------------------------- LN, RMS, GN

// Columns: means and 1 / std of each slice.
Two token_forward(Tensor x, MaybeTensor padding, int64_t groups, double eps, MaybeTensor gamma, MaybeTensor beta,
                  bool centred) {
  const Rows rows(x, padding, groups, eps);
  const Floats gammas = columns_of(gamma, rows.columns, 1.0f, "gamma");
  const Floats betas = columns_of(beta, rows.columns, 0.0f, "beta");
  const Tensor y = allocate_like(x), columns = allocate({2, rows.rows, rows.groups});
  float *means = data_of(columns), *rstds = means + rows.rows * rows.groups;
  const auto first = [&](const Slice& slice, const auto* x) ALWAYS_INLINE {
    const auto [mean, rstd] = token_moments(x, slice.width, centred, rows.eps);
    means[slice.number] = mean;
    rstds[slice.number] = rstd;
  };
  const auto pass = [&](const Slice& slice, const auto* x, auto* to, float*) ALWAYS_INLINE {
    const float *a = gammas.data() + slice.column, *b = betas.data() + slice.column;
    const float mean = means[slice.number], rstd = rstds[slice.number];
    auto* __restrict out = to;
#pragma omp simd
    for (int64_t i = 0; i < slice.width; ++i) store(out + i, (load(x[i]) - mean) * rstd * a[i] + b[i]);
  };
  rows.each<UNROLLED>(y.mutable_data_ptr(), first, pass);
  return {y, columns};
}

Three token_backward(Tensor dy, Tensor x, MaybeTensor padding, int64_t groups, double eps, MaybeTensor gamma,
                     bool centred, Tensor columns) {
  Backward step(dy, x, padding, groups, eps, gamma);
  const int64_t width = step.width, slices = step.rows.rows * step.rows.groups;
  const float *means = floats(columns, 2 * slices, "columns"), *rstds = means + slices;
  const auto pass = [&](const Slice& slice, const auto* x, auto* to, float* sums) ALWAYS_INLINE {
    const auto* grad = beside(x, step.dy, slice);
    const float *a = step.gamma.data() + slice.column, mean = means[slice.number], rstd = rstds[slice.number];
    const auto [level, along] = token_gradient(x, grad, a, slice.width, centred, {mean, rstd});
    auto* __restrict out = to;
    float *__restrict product = sums + slice.column, *__restrict total = product + width;
#pragma omp simd
    for (int64_t i = 0; i < slice.width; ++i) {
      const float g = load(grad[i]), x_hat = (load(x[i]) - mean) * rstd;
      store(out + i, (g * a[i] - level - x_hat * along) * rstd);
      product[i] += g * x_hat;
      total[i] += g;
    }
  };
  step.rows.sum<UNROLLED>(2 * width, step.sums.data(), step.dx.mutable_data_ptr(), pass);
  return step.gradients();
}

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(powernorm, library) {
  library.def(
      "regularised_forward(Tensor x, Tensor? padding, int groups, float eps, Tensor? gamma, Tensor? beta, "
      "float momentum, Tensor(a!) running_mean, Tensor(b!) running_var, Tensor(c!) num_updates, Tensor? given, "
      "bool moves, float of_mean, float of_var) -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)");
  library.def(
      "regularised_backward(Tensor dy, Tensor x, Tensor? padding, int groups, float eps, Tensor? gamma, "
      "Tensor columns, Tensor scales, Tensor extra, Tensor of_penalty) -> (Tensor, Tensor, Tensor)");
  library.def(
      "unified_forward(Tensor x, Tensor? padding, int groups, float eps, Tensor? gamma, Tensor? beta, float momentum, "
      "int warmup, int first_steps, bool outliers, Tensor(a!) running_psi2, Tensor(b!) psi2_window, "
      "Tensor(c!) num_updates, Tensor? given, bool moves) -> (Tensor, Tensor, Tensor)");
  library.def(
      "unified_backward(Tensor dy, Tensor x, Tensor? padding, int groups, float eps, Tensor? gamma, "
      "Tensor? loss_scale, Tensor columns, Tensor scales, Tensor? given, Tensor(a!) grad_window, "
      "Tensor(b!)? grad_mean, float momentum, bool moves) -> (Tensor, Tensor, Tensor)");
}

STABLE_TORCH_LIBRARY_IMPL(powernorm, CPU, library) {
  library.impl("statistics", TORCH_BOX(&statistics));
  library.impl("gradient_sums", TORCH_BOX(&gradient_sums_of));
  library.impl("evaluate", TORCH_BOX(&evaluate));
  library.impl("evaluate_backward", TORCH_BOX(&evaluate_backward));
  library.impl("batch_forward", TORCH_BOX(&batch_forward));
  library.impl("batch_backward", TORCH_BOX(&batch_backward));
  library.impl("regularised_forward", TORCH_BOX(&regularised_forward));
  library.impl("regularised_backward", TORCH_BOX(&regularised_backward));
  library.impl("power_forward", TORCH_BOX(&power_forward));
  library.impl("power_backward", TORCH_BOX(&power_backward));
  library.impl("window_forward", TORCH_BOX(&window_forward));
  library.impl("window_backward", TORCH_BOX(&window_backward));
  library.impl("unified_forward", TORCH_BOX(&unified_forward));
  library.impl("unified_backward", TORCH_BOX(&step_backward));
  library.impl("token_forward", TORCH_BOX(&token_forward));
  library.impl("token_backward", TORCH_BOX(&token_backward));
}
