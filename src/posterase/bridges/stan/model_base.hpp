// The class that a compiled Stan program derives from, in place of Stan's own (stan/model/model_base_crtp.hpp).
//
// Stan's compiles a program's density sixteen times: with and without constants, with and without the Jacobian, in
// doubles and with derivatives, from Eigen's vectors and from standard ones. library.cpp and the sampler evaluate
// four of these. Only they are compiled here, which takes half the time; the others throw.

#ifndef STAN_MODEL_MODEL_BASE_CRTP_HPP
#define STAN_MODEL_MODEL_BASE_CRTP_HPP

#include <stan/model/model_base.hpp>

#include <ostream>
#include <stdexcept>
#include <vector>

namespace stan {
namespace model {

template <typename M>
class model_base_crtp : public model_base {
  using Var = math::var;
  using Numbers = Eigen::VectorXd;
  using Vars = Eigen::Matrix<Var, -1, 1>;
  using Messages = std::ostream *;
  template <typename T>
  using Standard = std::vector<T>;

 public:
  explicit model_base_crtp(size_t num_params_r) : model_base(num_params_r) {}

  double log_prob(Numbers &at, Messages out) const override { return self().template log_prob<false, false>(at, out); }
  double log_prob_jacobian(Numbers &at, Messages out) const override {
    return self().template log_prob<false, true>(at, out);
  }
  Var log_prob_jacobian(Vars &at, Messages out) const override {
    return self().template log_prob<false, true>(at, out);
  }
  Var log_prob_propto_jacobian(Vars &at, Messages out) const override {
    return self().template log_prob<true, true>(at, out);
  }

  // The sampler's first point is in standard vectors.
  double log_prob_jacobian(Standard<double> &at, Standard<int> &, Messages out) const override {
    Numbers own = as_eigen(at);
    return log_prob_jacobian(own, out);
  }
  Var log_prob_propto_jacobian(Standard<Var> &at, Standard<int> &, Messages out) const override {
    Vars own = as_eigen(at);
    return log_prob_propto_jacobian(own, out);
  }

  Var log_prob(Vars &, Messages) const override { return left_out(); }
  double log_prob_propto(Numbers &, Messages) const override { return left_out(); }
  Var log_prob_propto(Vars &, Messages) const override { return left_out(); }
  double log_prob_propto_jacobian(Numbers &, Messages) const override { return left_out(); }
  double log_prob(Standard<double> &, Standard<int> &, Messages) const override { return left_out(); }
  Var log_prob(Standard<Var> &, Standard<int> &, Messages) const override { return left_out(); }
  Var log_prob_jacobian(Standard<Var> &, Standard<int> &, Messages) const override { return left_out(); }
  double log_prob_propto(Standard<double> &, Standard<int> &, Messages) const override { return left_out(); }
  Var log_prob_propto(Standard<Var> &, Standard<int> &, Messages) const override { return left_out(); }
  double log_prob_propto_jacobian(Standard<double> &, Standard<int> &, Messages) const override { return left_out(); }

  void write_array(rng_t &random, Numbers &at, Numbers &values, bool transformed, bool generated,
                   Messages out) const override {
    self().write_array(random, at, values, transformed, generated, out);
  }
  void write_array(rng_t &random, Standard<double> &at, Standard<int> &, Standard<double> &values, bool transformed,
                   bool generated, Messages out) const override {
    Numbers own = as_eigen(at), found;
    write_array(random, own, found, transformed, generated, out);
    values.assign(found.data(), found.data() + found.size());
  }

  void unconstrain_array(const Numbers &params, Numbers &found, Messages out) const override {
    self().unconstrain_array(params, found, out);
  }
  void unconstrain_array(const Standard<double> &, Standard<double> &, Messages) const override { left_out(); }
  void transform_inits(const io::var_context &start, Numbers &found, Messages out) const override {
    self().transform_inits(start, found, out);
  }

 private:
  const M &self() const { return static_cast<const M &>(*this); }

  template <typename T>
  static Eigen::Matrix<T, -1, 1> as_eigen(const Standard<T> &values) {
    return Eigen::Map<const Eigen::Matrix<T, -1, 1>>(values.data(), values.size());
  }

  static double left_out() { throw std::logic_error("this density was not compiled"); }
};

}  // namespace model
}  // namespace stan

#endif
