// DyT, Derf, ScaleNorm and PRepBN for CPUs: each direction is one sweep over rows of tokens, and one more for the
// statistics of a batch. The modules of these norms say what is computed.

#include <torch/csrc/stable/library.h>

#include "passes.h"

namespace {

// ---------------------------------------------------------------- DyT, Derf

// tanh and erf as u P(u^2) / Q(u^2), fitted for the smallest relative error; with the rounding of floats it is 4e-7.
INLINE float tanh_of(float u) {
  const float v = clamp(u, -9.0f, 9.0f), w = v * v;
  const float p = (((1.3354248e-08f * w + 2.0608777e-05f) * w + 3.4955696e-03f) * w + 1.3381010e-01f) * w + 1.0f;
  const float q = (((7.7763866e-07f * w + 3.2856045e-04f) * w + 2.5876911e-02f) * w + 4.6714327e-01f) * w + 1.0f;
  return v * p / q;
}

INLINE float erf_of(float u) {
  const float v = clamp(u, -3.95f, 3.95f), w = v * v;
  const float p = ((((2.0259038e-06f * w + 2.8468354e-04f) * w + 3.8080516e-03f) * w + 5.2875102e-02f) * w +
                   1.9154799e-01f) * w + 1.1283791f;
  const float q = ((((3.7831538e-05f * w + 1.1706959e-03f) * w + 1.5054870e-02f) * w + 1.1455863e-01f) * w +
                   5.0308764e-01f) * w + 1.0f;
  return v * p / q;
}

// e^(-u^2), as 2^n 2^f with |f| <= 1/2.
INLINE float bell_of(float u) {
  constexpr float ROUNDS = 12582912.0f + 127.0f;  // above 2^23 a float has no fraction; 127 is the exponent of 1
  const float z = std::max(u * -1.44269504f * u, -126.0f), rounded = z + ROUNDS, f = z - (rounded - ROUNDS);
  uint32_t bits;
  std::memcpy(&bits, &rounded, sizeof(bits));
  bits <<= 23;  // n + 127 stands in the lowest bits of the rounded number
  float power;
  std::memcpy(&power, &bits, sizeof(power));
  return power * (((((1.32764666e-3f * f + 9.67554189e-3f) * f + 5.55071346e-2f) * f + 2.40221202e-1f) * f +
                   6.93146944e-1f) * f + 1.0f);
}

// y = gamma f(alpha x + shift) + beta, where f is erf or tanh. If a backward `follows`, erf is kept for it, which saves
// half of its work; what is faster to compute again than to read is not: tanh, and for bfloat16 both.
Two pointwise_forward(Tensor x, MaybeTensor padding, MaybeTensor gamma, MaybeTensor beta, MaybeTensor alpha,
                      MaybeTensor shift, double alpha_start, bool erf, bool follows) {
  const Rows rows(x, padding, 0, 0.0);
  const Floats gammas = columns_of(gamma, rows.columns, 1.0f, "gamma");
  const Floats betas = columns_of(beta, rows.columns, 0.0f, "beta");
  const float a = columns_of(alpha, 1, static_cast<float>(alpha_start), "alpha")[0];
  const float c = columns_of(shift, 1, 0.0f, "shift")[0];
  const bool keeps = follows && erf && !rows.half;
  const Tensor y = allocate_like(x), kept = keeps ? allocate_like(x) : allocate({0});
  float* values = data_of(kept);
  const auto pass = [&](auto ERF, auto KEEPS) {
    return [&, ERF, KEEPS](const Slice& slice, const auto* x, auto* to, float*) ALWAYS_INLINE {
      const float *g = gammas.data(), *b = betas.data(), factor = a, offset = c;
      auto* __restrict out = to;
      float* __restrict value = values + (KEEPS ? slice.at : 0);
#pragma omp simd
      for (int64_t i = 0; i < slice.width; ++i) {
        const float u = load(x[i]) * factor + offset, f = ERF ? erf_of(u) : tanh_of(u);
        store(out + i, g[i] * f + b[i]);
        if (KEEPS) value[i] = f;
      }
    };
  };
  void* to = y.mutable_data_ptr();
  if (keeps)
    rows.each<WIDE>(to, pass(std::true_type(), std::true_type()));
  else
    if_constant(erf, [&](auto ERF) { rows.each<WIDE>(to, pass(ERF, std::false_type())); });
  return {y, kept};
}

// Gradients of x, gamma, beta, alpha and shift.
std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> pointwise_backward(Tensor dy, Tensor x, MaybeTensor padding,
                                                                      MaybeTensor gamma, MaybeTensor alpha,
                                                                      MaybeTensor shift, double alpha_start, bool erf,
                                                                      Tensor kept) {
  const Rows rows(x, padding, 0, 0.0);
  const int64_t width = rows.columns;
  Floats gammas = columns_of(gamma, width, 1.0f, "gamma");
  if (erf)
    for (float& value : gammas) value *= 1.12837917f;  // 2 / sqrt(pi)
  const float a = columns_of(alpha, 1, static_cast<float>(alpha_start), "alpha")[0];
  const float c = columns_of(shift, 1, 0.0f, "shift")[0];
  const void* grads = rows.like_x(dy);
  const float* values = floats(kept, erf && !rows.half ? rows.rows * width : 0, "kept");
  const Tensor dx = allocate_like(x);
  Floats sums(2 * width + 2);
  const auto pass = [&](auto ERF) {
    return [&, ERF](const Slice& slice, const auto* x, auto* to, float* sums) ALWAYS_INLINE {
      constexpr bool KEPT = ERF && std::is_same_v<decltype(x), const float*>;
      const auto* grad = beside(x, grads, slice);
      const float *gs = gammas.data(), *value = KEPT ? values + slice.at : nullptr, factor = a, offset = c;
      auto* __restrict out = to;
      float *__restrict of_gamma = sums, *__restrict of_beta = sums + slice.width;
      float of_alpha = 0.0f, of_shift = 0.0f;
#pragma omp simd reduction(+ : of_alpha, of_shift)
      for (int64_t i = 0; i < slice.width; ++i) {
        const float own = load(x[i]), u = own * factor + offset, g = load(grad[i]);
        const float f = KEPT ? value[i] : ERF ? erf_of(u) : tanh_of(u);
        const float h = g * gs[i] * (ERF ? bell_of(u) : 1.0f - f * f);
        store(out + i, h * factor);
        of_gamma[i] += g * f;
        of_beta[i] += g;
        of_alpha += h * own;
        of_shift += h;
      }
      sums[2 * slice.width] += of_alpha;
      sums[2 * slice.width + 1] += of_shift;
    };
  };
  if_constant(erf, [&](auto ERF) { rows.sum<WIDE>(2 * width + 2, sums.data(), dx.mutable_data_ptr(), pass(ERF)); });
  const float* found = sums.data();
  return {dx, copy_of(found, width), copy_of(found + width, width), copy_of(found + 2 * width, 1),
          copy_of(found + 2 * width + 1, 1)};
}

// ---------------------------------------------------------------- ScaleNorm

// y = g x / max(|x|, eps)
Tensor scale_forward(Tensor x, MaybeTensor padding, double eps, double g) {
  const Rows rows(x, padding, 0, eps);
  const Tensor y = allocate_like(x);
  rows.each(y.mutable_data_ptr(), [&](const Slice& slice, const auto* x, auto* to, float*) ALWAYS_INLINE {
    const float squares = sum_of(slice.width, [&](int64_t i) ALWAYS_INLINE { return load(x[i]) * load(x[i]); });
    const float factor = static_cast<float>(g) / std::max(std::sqrt(squares), rows.eps);
    auto* __restrict out = to;
#pragma omp simd
    for (int64_t i = 0; i < slice.width; ++i) store(out + i, load(x[i]) * factor);
  });
  return y;
}

Two scale_backward(Tensor dy, Tensor x, MaybeTensor padding, double eps, double g) {
  const Rows rows(x, padding, 0, eps);
  const void* grads = rows.like_x(dy);
  const Tensor dx = allocate_like(x), of_g = allocate({1});
  const auto pass = [&](const Slice& slice, const auto* x, auto* to, float* sum) ALWAYS_INLINE {
    const auto* grad = beside(x, grads, slice);
    float squares = 0.0f, along = 0.0f;
#pragma omp simd reduction(+ : squares, along)
    for (int64_t i = 0; i < slice.width; ++i) {
      squares += load(x[i]) * load(x[i]);
      along += load(x[i]) * load(grad[i]);
    }
    const float length = std::sqrt(squares), inverse = 1.0f / std::max(length, rows.eps);
    const float factor = static_cast<float>(g) * inverse;
    const float taken = length > rows.eps ? along * inverse * inverse : 0.0f;  // below eps the length is constant
    auto* __restrict out = to;
#pragma omp simd
    for (int64_t i = 0; i < slice.width; ++i) store(out + i, (load(grad[i]) - load(x[i]) * taken) * factor);
    *sum += along * inverse;
  };
  rows.sum(1, data_of(of_g), dx.mutable_data_ptr(), pass);
  return {dx, of_g};
}

// ---------------------------------------------------------------- PRepBN

// y = share * LN(x) + (1 - share) (BN(x) + eta x): x_hat of the token, x and one, each times a column. BN is that of
// the batch where the norm `trains`, and else by the running statistics. Columns: centre, 1 / std, number of tokens;
// saved: mean and 1 / std of each token.
Three mixed_forward(Tensor x, MaybeTensor padding, double eps, MaybeTensor gamma, MaybeTensor beta,
                    MaybeTensor ln_gamma, MaybeTensor ln_beta, MaybeTensor eta, double eta_start, double share,
                    double momentum, Tensor running_mean, Tensor running_var, Tensor num_updates, MaybeTensor given,
                    bool trains, bool moves) {
  const Rows rows(x, padding, 0, eps);
  const int64_t width = rows.columns;
  float *mean = floats(running_mean, width, "running_mean"), *var = floats(running_var, width, "running_var");
  int64_t* updates = counter(num_updates);
  const Tensor y = allocate_like(x), columns = allocate({2 * width + 1}), saved = allocate({2, rows.rows});
  float *centre = data_of(columns), *rstd = centre + width, *means = data_of(saved), *rstds = means + rows.rows;
  float count = static_cast<float>(rows.count);
  Floats variance(var, var + width);
  if (given) {
    const float *own = floats(*given, 2 * width + 2, "given"), *squares = own + width;
    count = squares[width];
    std::copy(own, squares, centre);
    for (int64_t i = 0; i < width; ++i) variance[i] = squares[i] / std::max(count, 1.0f);
  } else if (trains) {
    moments(rows, centre, variance.data());
  } else {
    std::copy(mean, mean + width, centre);
  }
  const float of_ln = static_cast<float>(share), rest = 1.0f - of_ln;
  const float slope = columns_of(eta, 1, static_cast<float>(eta_start), "eta")[0];
  Floats first = columns_of(ln_gamma, width, 1.0f, "ln_gamma"), second = columns_of(gamma, width, 1.0f, "gamma"),
         third = columns_of(beta, width, 0.0f, "beta");
  const Floats offset = columns_of(ln_beta, width, 0.0f, "ln_beta");
  for (int64_t i = 0; i < width; ++i) {
    rstd[i] = 1.0f / std::sqrt(variance[i] + rows.eps);
    first[i] *= of_ln;
    second[i] *= rstd[i];
    third[i] = rest * (third[i] - second[i] * centre[i]) + of_ln * offset[i];
    second[i] = rest * (second[i] + slope);
  }
  rstd[width] = count;
  const auto pass = [&](const Slice& slice, const auto* x, auto* to, float*) ALWAYS_INLINE {
    const auto [mean, rstd] = token_moments(x, slice.width, true, rows.eps);
    const float *of_hat = first.data(), *of_x = second.data(), *of_one = third.data();
    auto* __restrict out = to;
#pragma omp simd
    for (int64_t i = 0; i < slice.width; ++i)
      store(out + i, (load(x[i]) - mean) * rstd * of_hat[i] + load(x[i]) * of_x[i] + of_one[i]);
    means[slice.number] = mean;
    rstds[slice.number] = rstd;
  };
  rows.each(y.mutable_data_ptr(), pass);
  const Floats next_mean = moved(mean, centre, width, momentum);
  const Floats next_var = moved(var, variance.data(), width, momentum);
  move(trains && moves, count, {{next_mean, mean}, {next_var, var}}, updates);
  return {y, columns, saved};
}

// Gradients of x, and of gamma, beta, ln_gamma, ln_beta and eta in a row. BN's and that of eta x are dy, x - centre and
// one, each times a column; LN's is that of a token.
Two mixed_backward(Tensor dy, Tensor x, MaybeTensor padding, double eps, MaybeTensor gamma, MaybeTensor ln_gamma,
                   MaybeTensor eta, double eta_start, double share, Tensor columns, Tensor saved, MaybeTensor given,
                   bool trains) {
  const Rows rows(x, padding, 0, eps);
  const int64_t width = rows.columns;
  const void* grads = rows.like_x(dy);
  const float *centre = floats(columns, 2 * width + 1, "columns"), *rstd = centre + width;
  const float *means = floats(saved, 2 * rows.rows, "saved"), *rstds = means + rows.rows;
  const float count = std::max(rstd[width], 1.0f), of_ln = static_cast<float>(share), rest = 1.0f - of_ln;
  const float slope = columns_of(eta, 1, static_cast<float>(eta_start), "eta")[0];
  Floats a = columns_of(gamma, width, 1.0f, "gamma"), g = columns_of(ln_gamma, width, 1.0f, "ln_gamma"), b(width),
         c(width), sums(3 * width);
  if (trains) gradient_sums(rows, grads, centre, sums.data() + width);
  const float *products = given ? floats(*given, 2 * width, "given") : sums.data() + width, *totals = products + width;
  for (int64_t i = 0; i < width; ++i) {
    g[i] *= of_ln;
    a[i] *= rest * rstd[i];
    if (trains) {
      b[i] = -a[i] * products[i] / count * rstd[i] * rstd[i];
      c[i] = -a[i] * totals[i] / count;
    }
    a[i] += rest * slope;
  }
  const Tensor dx = allocate_like(x), found = allocate({4 * width + 1});
  const auto pass = [&](auto TRAINS) {  // without a sweep for the statistics, this one takes the sums
    return [&, TRAINS](const Slice& slice, const auto* x, auto* to, float* sums) ALWAYS_INLINE {
      const auto* grad = beside(x, grads, slice);
      const float mean = means[slice.number], rstd = rstds[slice.number];
      const float *a_ = a.data(), *b_ = b.data(), *c_ = c.data(), *g_ = g.data(), *m = centre;
      const auto [level, along] = token_gradient(x, grad, g_, slice.width, true, {mean, rstd});
      auto* __restrict out = to;
      float *__restrict of_hat = sums, *__restrict product = of_hat + width, *__restrict total = product + width;
#pragma omp simd
      for (int64_t i = 0; i < slice.width; ++i) {
        const float own = load(grad[i]), d = load(x[i]) - m[i], x_hat = (load(x[i]) - mean) * rstd;
        const float of_bn = own * a_[i] + (TRAINS ? d * b_[i] + c_[i] : 0.0f);
        store(out + i, (own * g_[i] - level - x_hat * along) * rstd + of_bn);
        of_hat[i] += own * x_hat;
        if (!TRAINS) {
          product[i] += own * d;
          total[i] += own;
        }
      }
    };
  };
  if_constant(trains, [&](auto TRAINS) {
    rows.sum(TRAINS ? width : 3 * width, sums.data(), dx.mutable_data_ptr(), pass(TRAINS));
  });
  float *of_gamma = data_of(found), *of_beta = of_gamma + width, *of_ln_gamma = of_beta + width,
        *of_ln_beta = of_ln_gamma + width, *of_eta = of_ln_beta + width;
  double along = 0.0;
  for (int64_t i = 0; i < width; ++i) {
    const float product = sums[width + i], total = sums[2 * width + i];
    of_gamma[i] = rest * product * rstd[i];
    of_beta[i] = rest * total;
    of_ln_gamma[i] = of_ln * sums[i];
    of_ln_beta[i] = of_ln * total;
    along += product + centre[i] * total;
  }
  *of_eta = static_cast<float>(rest * along);
  return {dx, found};
}

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(powernorm, library) {
  library.def(
      "pointwise_forward(Tensor x, Tensor? padding, Tensor? gamma, Tensor? beta, Tensor? alpha, Tensor? shift, "
      "float alpha_start, bool erf, bool follows) -> (Tensor, Tensor)");
  library.def(
      "pointwise_backward(Tensor dy, Tensor x, Tensor? padding, Tensor? gamma, Tensor? alpha, Tensor? shift, "
      "float alpha_start, bool erf, Tensor kept) -> (Tensor, Tensor, Tensor, Tensor, Tensor)");
  library.def("scale_forward(Tensor x, Tensor? padding, float eps, float g) -> Tensor");
  library.def("scale_backward(Tensor dy, Tensor x, Tensor? padding, float eps, float g) -> (Tensor, Tensor)");
  library.def(
      "mixed_forward(Tensor x, Tensor? padding, float eps, Tensor? gamma, Tensor? beta, Tensor? ln_gamma, "
      "Tensor? ln_beta, Tensor? eta, float eta_start, float share, float momentum, Tensor(a!) running_mean, "
      "Tensor(b!) running_var, Tensor(c!) num_updates, Tensor? given, bool trains, bool moves)"
      " -> (Tensor, Tensor, Tensor)");
  library.def(
      "mixed_backward(Tensor dy, Tensor x, Tensor? padding, float eps, Tensor? gamma, Tensor? ln_gamma, Tensor? eta, "
      "float eta_start, float share, Tensor columns, Tensor saved, Tensor? given, bool trains) -> (Tensor, Tensor)");
}

STABLE_TORCH_LIBRARY_IMPL(powernorm, CPU, library) {
  library.impl("pointwise_forward", TORCH_BOX(&pointwise_forward));
  library.impl("pointwise_backward", TORCH_BOX(&pointwise_backward));
  library.impl("scale_forward", TORCH_BOX(&scale_forward));
  library.impl("scale_backward", TORCH_BOX(&scale_backward));
  library.impl("mixed_forward", TORCH_BOX(&mixed_forward));
  library.impl("mixed_backward", TORCH_BOX(&mixed_backward));
}
