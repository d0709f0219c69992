// Stan's NUTS for a Stan program in a library (library.cpp): apart from it, since few requests sample, and reading
// the sampler's headers takes as long as compiling a program. The same for all programs.

#include <stan/callbacks/interrupt.hpp>
#include <stan/callbacks/logger.hpp>
#include <stan/callbacks/writer.hpp>
#include <stan/io/json/json_data.hpp>
#include <stan/model/model_base.hpp>
#include <stan/services/sample/hmc_nuts_dense_e_adapt.hpp>
#include <stan/services/sample/hmc_nuts_diag_e_adapt.hpp>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <sstream>
#include <string>
#include <vector>

namespace {

using Model = stan::model::model_base;

// What derivatives are kept in, for every thread that asks for one.
void prepare() { static thread_local stan::math::ChainableStack tape; }

void tell(const std::string &what, char *message, int room) {
  if (room > 0) {
    std::strncpy(message, what.c_str(), room - 1);
    message[room - 1] = '\0';
  }
}

// Rows of numbers as a sampler writes them.
class Rows : public stan::callbacks::writer {
 public:
  Rows(double *values, int most) : values_(values), most_(most) {}
  void operator()(const std::vector<std::string> &) override {}
  void operator()(const std::vector<double> &row) override {
    if (written_ < most_) std::copy(row.begin(), row.end(), values_ + written_++ * row.size());
  }
  void operator()(const std::string &) override {}
  void operator()() override {}
  int written() const { return written_; }

 private:
  double *values_;
  int most_, written_ = 0;
};

// Whether chains that run are to stop; asked between two transitions.
std::atomic<bool> stopped{false};

class Interrupt : public stan::callbacks::interrupt {
 public:
  void operator()() override {
    if (stopped) throw std::runtime_error("stopped");
  }
};

// The last thing that went wrong.
class Log : public stan::callbacks::logger {
 public:
  void error(const std::string &message) override { last_ = message; }
  void error(const std::stringstream &message) override { last_ = message.str(); }
  void info(const std::string &message) override { keep(message); }
  void info(const std::stringstream &message) override { keep(message.str()); }
  const std::string &last() const { return last_; }

 private:
  void keep(const std::string &message) {
    if (!message.empty()) last_ = message;
  }
  std::string last_;
};

const double shrinkage = 0.05, decay = 0.75, offset = 10.0;  // Stan's defaults for the step size

// NUTS with a dense metric that is given, an inverse mass matrix, and stays as it is: no windows are set in which it
// would be adapted. Only the step size is.
int with_metric(Model &model, const stan::io::var_context &start, const double *inverse_mass, unsigned int seed,
                unsigned int chain, int warmup, int draws, double step, double delta, int max_depth,
                stan::callbacks::interrupt &interrupt, stan::callbacks::logger &log, stan::callbacks::writer &rows) {
  namespace util = stan::services::util;
  stan::callbacks::writer nothing;
  auto rng = util::create_rng(seed, chain);
  std::vector<double> at = util::initialize(model, start, rng, 2.0, false, log, nothing);
  stan::mcmc::adapt_dense_e_nuts<Model, decltype(rng)> sampler(model, rng);
  const Eigen::MatrixXd metric = Eigen::Map<const Eigen::MatrixXd>(inverse_mass, at.size(), at.size());
  sampler.set_metric(metric);
  sampler.set_nominal_stepsize(step);
  sampler.set_stepsize_jitter(0);
  sampler.set_max_depth(max_depth);
  auto &adaptation = sampler.get_stepsize_adaptation();
  adaptation.set_mu(std::log(10 * step));
  adaptation.set_delta(delta);
  adaptation.set_gamma(shrinkage);
  adaptation.set_kappa(decay);
  adaptation.set_t0(offset);
  util::run_adaptive_sampler(sampler, model, at, warmup, draws, 1, 0, true, rng, interrupt, log, rows, nothing);
  return 0;
}

}  // namespace

extern "C" {

void pe_stop(int stop) { stopped = stop != 0; }

// One chain of NUTS with a diagonal metric, adapted, or with the one that is given: warm-up and draws, a row each. Seven
// numbers are the sampler's (its log density, acceptance, step size, tree depth, leapfrog steps, divergence, energy),
// then what the program computes.
int pe_sample(void *program, const char *initial, const double *inverse_mass, double step, unsigned int seed,
              unsigned int chain, int warmup, int draws, double delta, int max_depth, double *values, char *message,
              int room) {
  prepare();
  auto &model = *static_cast<Model *>(program);
  Log log;
  try {
    std::stringstream text(initial);
    stan::json::json_data start(text);
    Interrupt interrupt;
    stan::callbacks::writer nothing;
    Rows rows(values, warmup + draws);
    int failed =
        inverse_mass != nullptr
            ? with_metric(model, start, inverse_mass, seed, chain, warmup, draws, step, delta, max_depth, interrupt,
                          log, rows)
            : stan::services::sample::hmc_nuts_diag_e_adapt(
                  model, start, seed, chain, 2.0, warmup, draws, 1, true, 0, step, 0.0, max_depth, delta, shrinkage,
                  decay, offset, 75, 50, 25, interrupt, log, nothing, rows, nothing);
    if (failed == 0 && rows.written() == warmup + draws) return 0;
    tell(log.last(), message, room);
  } catch (const std::exception &error) {
    tell(error.what(), message, room);
  }
  return 1;
}

}  // extern "C"
