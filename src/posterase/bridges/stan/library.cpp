// A Stan program as a library that Python can call: many draws in one call, data read once, from any thread.
//
// It is compiled in one piece with the C++ that Stan's compiler makes of a program (which defines new_model), since most
// of the time goes into reading the headers, which PyStan's wheel carries. Arrays are rows of doubles, one draw each.

#include <stan/io/array_var_context.hpp>
#include <stan/model/log_prob_grad.hpp>
#include <stan/model/model_base.hpp>
#include <stan/services/util/create_rng.hpp>

#include <cstring>
#include <limits>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

stan::model::model_base &new_model(stan::io::var_context &data, unsigned int seed, std::ostream *messages);

namespace {

using Model = stan::model::model_base;
using Vector = Eigen::Map<const Eigen::VectorXd>;

// What derivatives are kept in, for every thread that asks for one.
void prepare() { static thread_local stan::math::ChainableStack tape; }

void tell(const std::string &what, char *message, int room) {
  if (room > 0) {
    std::strncpy(message, what.c_str(), room - 1);
    message[room - 1] = '\0';
  }
}

}  // namespace

extern "C" {

// The program with data; null where Stan refuses them. Names are a line each; of each array, in turn, whether it is
// whole numbers, its rank and its lengths; then all real numbers and all whole ones, columns first.
void *pe_load(const char *names, const int *shapes, const double *reals, const int *wholes, char *message, int room) {
  try {
    std::vector<std::string> real_names, whole_names;
    std::vector<std::vector<size_t>> real_shapes, whole_shapes;
    size_t n_reals = 0, n_wholes = 0;
    std::stringstream lines(names), ignored;
    for (std::string name; std::getline(lines, name);) {
      const bool whole = *shapes++ != 0;
      const int rank = *shapes++;
      std::vector<size_t> shape(shapes, shapes + rank);
      shapes += rank;
      size_t size = 1;
      for (size_t length : shape) size *= length;
      (whole ? n_wholes : n_reals) += size;
      (whole ? whole_names : real_names).push_back(name);
      (whole ? whole_shapes : real_shapes).push_back(shape);
    }
    stan::io::array_var_context data(real_names, std::vector<double>(reals, reals + n_reals), real_shapes, whole_names,
                                     std::vector<int>(wholes, wholes + n_wholes), whole_shapes);
    return &new_model(data, 1, &ignored);
  } catch (const std::exception &error) {
    tell(error.what(), message, room);
    return nullptr;
  }
}

void pe_free(void *program) { delete static_cast<Model *>(program); }

// Names of elements, a line each. 0: unconstrained; 1: parameters; 2: with transformed ones; 3: with generated quantities.
int pe_names(void *program, int kind, char *text, int room) {
  auto &model = *static_cast<Model *>(program);
  std::vector<std::string> names;
  if (kind == 0)
    model.unconstrained_param_names(names, false, false);
  else
    model.constrained_param_names(names, kind > 1, kind > 2);
  std::string all;
  for (const auto &name : names) all += name + "\n";
  tell(all, text, room);
  return static_cast<int>(all.size()) + 1;
}

// log p(parameters, data), all constants in it; minus infinity where it is not defined.
void pe_density(void *program, const double *thetas, int n, int jacobian, double *values) {
  prepare();
  auto &model = *static_cast<Model *>(program);
  const int d = static_cast<int>(model.num_params_r());
  std::stringstream ignored;
  for (int i = 0; i < n; ++i) {
    try {
      Eigen::VectorXd theta = Vector(thetas + static_cast<size_t>(i) * d, d);
      values[i] = jacobian ? model.log_prob_jacobian(theta, &ignored) : model.log_prob(theta, &ignored);
    } catch (const std::exception &) {
      values[i] = -std::numeric_limits<double>::infinity();
    }
  }
}

// The same with its gradient, Jacobian included; the gradient is not a number where it is not defined.
void pe_gradient(void *program, const double *thetas, int n, double *values, double *slopes) {
  prepare();
  auto &model = *static_cast<Model *>(program);
  const int d = static_cast<int>(model.num_params_r());
  std::stringstream ignored;
  for (int i = 0; i < n; ++i) {
    const double *at = thetas + static_cast<size_t>(i) * d;
    double *slope = slopes + static_cast<size_t>(i) * d;
    try {
      Eigen::VectorXd theta = Vector(at, d), found;
      values[i] = stan::model::log_prob_grad<false, true>(model, theta, found, &ignored);
      std::copy(found.data(), found.data() + d, slope);
    } catch (const std::exception &) {
      stan::math::recover_memory();
      values[i] = -std::numeric_limits<double>::infinity();
      std::fill(slope, slope + d, std::numeric_limits<double>::quiet_NaN());
    }
  }
}

// Parameters on their own scale. Transformed ones follow where `kind` is 2 or 3, and generated quantities, with random
// numbers by this seed, where it is 3. Not a number where Stan refuses.
void pe_constrain(void *program, const double *thetas, int n, int kind, unsigned int seed, int width, double *values) {
  prepare();
  auto &model = *static_cast<Model *>(program);
  const int d = static_cast<int>(model.num_params_r());
  auto random = stan::services::util::create_rng(seed, 1);
  std::stringstream ignored;
  for (int i = 0; i < n; ++i) {
    double *row = values + static_cast<size_t>(i) * width;
    try {
      Eigen::VectorXd theta = Vector(thetas + static_cast<size_t>(i) * d, d), found;
      model.write_array(random, theta, found, kind > 1, kind > 2, &ignored);
      std::copy(found.data(), found.data() + width, row);
    } catch (const std::exception &) {
      std::fill(row, row + width, std::numeric_limits<double>::quiet_NaN());
    }
  }
}

// Unconstrained parameters; not a number where Stan refuses, and the last message.
void pe_unconstrain(void *program, const double *params, int n, int width, double *thetas, char *message, int room) {
  prepare();
  auto &model = *static_cast<Model *>(program);
  const int d = static_cast<int>(model.num_params_r());
  std::stringstream ignored;
  for (int i = 0; i < n; ++i) {
    double *theta = thetas + static_cast<size_t>(i) * d;
    try {
      Eigen::VectorXd own = Vector(params + static_cast<size_t>(i) * width, width), found;
      model.unconstrain_array(own, found, &ignored);
      std::copy(found.data(), found.data() + d, theta);
    } catch (const std::exception &error) {
      std::fill(theta, theta + d, std::numeric_limits<double>::quiet_NaN());
      tell(error.what(), message, room);
    }
  }
}

}  // extern "C"
