// A Stan program behind BridgeStan's C interface, for its Python package to load in a test.
//
// BridgeStan fetches its own C++ from the network when it compiles. This stands in for that one file, with the functions
// that its Python package binds; the program in it is Stan's, compiled with the headers in PyStan's wheel.

#include <stan/io/json/json_data.hpp>
#include <stan/model/log_prob_grad.hpp>
#include <stan/model/model_base.hpp>
#include <stan/services/util/create_rng.hpp>

#include <cstring>
#include <sstream>
#include <string>
#include <vector>

stan::model::model_base &new_model(stan::io::var_context &data, unsigned int seed, std::ostream *messages);

namespace {

struct Program {
  stan::model::model_base *model;
  std::string names[2][2], unconstrained;
};

std::string joined(const std::vector<std::string> &names) {
  std::string all;
  for (const auto &name : names) all += (all.empty() ? "" : ",") + name;
  return all;
}

Eigen::VectorXd vector(const double *values, size_t n) { return Eigen::Map<const Eigen::VectorXd>(values, n); }

template <typename F>
int tried(char **error, F run) {
  static thread_local stan::math::ChainableStack tape;
  try {
    run();
    return 0;
  } catch (const std::exception &problem) {
    *error = strdup(problem.what());
    return -1;
  }
}

}  // namespace

extern "C" {

int bs_major_version = MAJOR, bs_minor_version = MINOR, bs_patch_version = PATCH;

void *bs_model_construct(const char *data, unsigned int seed, char **error) {
  Program *made = nullptr;
  tried(error, [&] {
    std::stringstream text(data), ignored;
    stan::json::json_data read(text);
    made = new Program{&new_model(read, seed, &ignored)};
    std::vector<std::string> names;
    for (int tp : {0, 1})
      for (int gq : {0, 1}) {
        names.clear();
        made->model->constrained_param_names(names, tp, gq);
        made->names[tp][gq] = joined(names);
      }
    names.clear();
    made->model->unconstrained_param_names(names, false, false);
    made->unconstrained = joined(names);
  });
  return made;
}

void bs_model_destruct(Program *p) {
  delete p->model;
  delete p;
}
void bs_free_error_msg(char *message) { free(message); }
void bs_set_print_callback(void *, char **) {}
const char *bs_name(Program *) { return "program"; }
const char *bs_model_info(Program *) { return "a test's"; }
const char *bs_param_names(Program *p, bool tp, bool gq) { return p->names[tp][gq].c_str(); }
const char *bs_param_unc_names(Program *p) { return p->unconstrained.c_str(); }
int bs_param_unc_num(Program *p) { return p->model->num_params_r(); }
int bs_param_num(Program *p, bool tp, bool gq) {
  std::vector<std::string> names;
  p->model->constrained_param_names(names, tp, gq);
  return names.size();
}

int bs_param_constrain(Program *p, bool tp, bool gq, const double *theta, double *out, void *, char **error) {
  return tried(error, [&] {
    auto random = stan::services::util::create_rng(1, 1);
    Eigen::VectorXd free = vector(theta, p->model->num_params_r()), found;
    p->model->write_array(random, free, found, tp, gq, nullptr);
    std::copy(found.data(), found.data() + found.size(), out);
  });
}

int bs_param_unconstrain(Program *p, const double *params, double *out, char **error) {
  return tried(error, [&] {
    Eigen::VectorXd own = vector(params, bs_param_num(p, false, false)), found;
    p->model->unconstrain_array(own, found, nullptr);
    std::copy(found.data(), found.data() + found.size(), out);
  });
}

int bs_log_density(Program *p, bool, bool jacobian, const double *theta, double *value, char **error) {
  return tried(error, [&] {
    Eigen::VectorXd free = vector(theta, p->model->num_params_r());
    *value = jacobian ? p->model->log_prob_jacobian(free, nullptr) : p->model->log_prob(free, nullptr);
  });
}

int bs_log_density_gradient(Program *p, bool, bool, const double *theta, double *value, double *slope, char **error) {
  return tried(error, [&] {
    Eigen::VectorXd free = vector(theta, p->model->num_params_r()), found;
    *value = stan::model::log_prob_grad<false, true>(*p->model, free, found, nullptr);
    std::copy(found.data(), found.data() + found.size(), slope);
  });
}

// Bound by the package, and not asked for.
int bs_param_unconstrain_json() { return -1; }
int bs_param_initialize() { return -1; }
int bs_log_density_hessian() { return -1; }
int bs_log_density_hessian_vector_product() { return -1; }
void *bs_rng_construct() {
  static int rng;  // not used: `bs_param_constrain` has its own
  return &rng;
}
void bs_rng_destruct() {}

}  // extern "C"
