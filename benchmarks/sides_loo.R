# R loo and iwmm on a request that `benchmarks/sides.py` has written into a folder.
#
#     Rscript sides_loo.R FOLDER REPEATS
#
# A request is handed to loo as one observation, whose log-likelihood is the sum over the removed rows. Every array is
# a file of doubles, named in shapes.csv; what comes back is, for each method, NAME.draws, NAME.log_weights, and a line
# in found.csv.

given <- commandArgs(trailingOnly = TRUE)
folder <- given[1]
repeats <- as.integer(given[2])

shapes <- read.csv(file.path(folder, "shapes.csv"), row.names = "name")
read <- function(name) {
  rows <- shapes[name, "rows"]
  columns <- shapes[name, "columns"]
  matrix(readBin(file.path(folder, name), "double", rows * columns), rows, columns, byrow = TRUE)
}
write_out <- function(values, name) writeBin(as.vector(t(values)), file.path(folder, name))

draws <- read("draws")
chains <- shapes["log_likelihood", "columns"]
removed_rows <- as.vector(read("removed")) + 1

# --- the two posteriors, as one writes them in R: over a matrix of unconstrained draws, all at once

log1p_exp <- function(x) pmax(x, 0) + log1p(exp(-abs(x)))

logistic <- function() {
  x <- read("x")
  y <- as.vector(read("y"))
  likelihood <- function(theta, rows) {
    eta <- tcrossprod(theta, x[rows, , drop = FALSE])
    as.vector(eta %*% y[rows]) - rowSums(log1p_exp(eta))
  }
  list(rows = seq_along(y), likelihood = likelihood, prior = function(theta) -0.5 * rowSums(theta^2))
}

hierarchy <- function() {
  county <- as.vector(read("county")) + 1
  floor <- as.vector(read("floor"))
  log_radon <- as.vector(read("log_radon"))
  names <- readLines(file.path(folder, "columns.txt"))
  at <- function(theta, name) theta[, names == name]
  likelihood <- function(theta, rows) {
    sigma_y <- exp(at(theta, "sigma_y"))
    level <- at(theta, "mu") + exp(at(theta, "sigma_alpha")) * at(theta, "alpha")[, county[rows], drop = FALSE] +
      outer(at(theta, "beta"), floor[rows])
    off <- sweep(level, 2, log_radon[rows]) / sigma_y
    -0.5 * rowSums(off^2) - length(rows) * log(sigma_y)
  }
  prior <- function(theta) {
    wide <- (at(theta, "mu") / 10)^2 + (at(theta, "beta") / 10)^2
    scales <- exp(2 * at(theta, "sigma_alpha")) + exp(2 * at(theta, "sigma_y"))
    -0.5 * (wide + scales + rowSums(at(theta, "alpha")^2)) + at(theta, "sigma_alpha") + at(theta, "sigma_y")
  }
  list(rows = seq_along(county), likelihood = likelihood, prior = prior)
}

model <- if ("x" %in% rownames(shapes)) logistic() else hierarchy()
full <- function(theta) model$prior(theta) + model$likelihood(theta, model$rows)
removed <- function(theta) model$likelihood(theta, removed_rows)

# --- the methods: each gives draws, their log weights, and k

by_loo <- function() {
  log_likelihood <- array(removed(draws), c(nrow(draws) / chains, chains, 1))
  suppressWarnings(loo::loo(log_likelihood, r_eff = loo::relative_eff(exp(log_likelihood)), save_psis = TRUE))
}

weights_by_loo <- function() {
  found <- by_loo()
  list(draws = draws, log_weights = weights(found$psis_object)[, 1], k = found$diagnostics$pareto_k)
}

moments_by_loo <- function() {
  before <- by_loo()
  asked <- draws
  after <- suppressWarnings(loo::loo_moment_match(
    NULL, before,
    post_draws = function(x, ...) draws,
    log_lik_i = function(x, i, ...) matrix(removed(draws), ncol = chains),
    unconstrain_pars = function(x, pars, ...) pars,
    log_prob_upars = function(x, upars, ...) full(upars),
    log_lik_i_upars = function(x, upars, i, ...) {
      asked <<- upars # it does not return the draws that it moved: the last it asks about are those it weighs
      removed(upars)
    }
  ))
  log_weights <- after$psis_object$log_weights[, 1]
  log_weights <- log_weights - matrixStats::logSumExp(log_weights)
  if (after$diagnostics$pareto_k == before$diagnostics$pareto_k) asked <- draws
  stopifnot(all.equal(matrixStats::logSumExp(removed(asked) + log_weights), after$pointwise[1, "elpd_loo"][[1]]))
  list(draws = asked, log_weights = log_weights, k = after$diagnostics$pareto_k)
}

moments_by_iwmm <- function() {
  found <- iwmm::moment_match(
    draws,
    log_prob_prop_fun = function(draws, ...) full(draws),
    log_ratio_fun = function(draws, ...) -removed(draws)
  )
  list(draws = found$draws, log_weights = found$log_weights, k = found$diagnostics$pareto_k)
}

methods <- list(loo_weights = weights_by_loo, loo_moments = moments_by_loo)
if (requireNamespace("iwmm", quietly = TRUE)) methods$iwmm <- moments_by_iwmm

seconds_of <- function(run) system.time(run(), gcFirst = TRUE)[["elapsed"]]
found <- lapply(names(methods), function(name) {
  run <- methods[[name]]
  first <- seconds_of(run)
  seconds <- median(replicate(repeats, seconds_of(run)))
  result <- run()
  write_out(result$draws, paste0(name, ".draws"))
  write_out(result$log_weights, paste0(name, ".log_weights"))
  data.frame(name = name, k = result$k, first = first, seconds = seconds)
})
write.csv(do.call(rbind, found), file.path(folder, "found.csv"), row.names = FALSE)
write_out(full(draws) - removed(draws), "kept")

version <- function(name) {
  note <- packageDescription(name)$Note # where an installation is not the published one, this says so
  paste0(name, " ", packageVersion(name), if (!is.null(note)) paste0(" (", note, ")"))
}
versions <- vapply(c("loo", intersect("iwmm", names(methods))), version, "")
writeLines(paste(c(paste("R", getRversion()), versions), collapse = ", "), file.path(folder, "versions.txt"))
