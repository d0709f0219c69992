"""Every mistake gets an error of its own that says what was wrong and what to do, before any work starts."""

import inspect
import pickle
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import pytest

import posterase as pe
from posterase import errors

Y = np.linspace(-1, 1, 20)


@pytest.fixture(autouse=True)
def as_users_run_it() -> Iterator[None]:
    """Without the type checks of the tests, which would speak before our own."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


def counted_model(**changes):
    """A model that counts how often its likelihood is really evaluated (tracing does not count)."""
    runs = []

    def log_likelihood(p, data):
        jax.debug.callback(lambda: runs.append(1))
        return -0.5 * (data["y"] - p["mu"]) ** 2

    arguments = {
        "log_prior": lambda p: -0.5 * p["mu"] ** 2,
        "log_likelihood": log_likelihood,
        "data": {"y": Y},
        **changes,
    }
    return pe.Model(**arguments), runs


GOOD = {"mu": np.zeros((2, 50))}

ROWS = {
    "empty": ([], errors.EmptyRemovalError, "nothing to remove"),
    "empty mask": (np.zeros(20, bool), errors.EmptyRemovalError, "nothing to remove"),
    "too large": ([3, 20], errors.RowsError, "row 20 does not exist"),
    "negative": ([-1], errors.RowsError, "row ids go from 0 to 19"),
    "twice": ([3, 5, 3], errors.RowsError, "row 3 is given 2 times"),
    "more often": ([3, 3, 5, 5, 5], errors.RowsError, r"row 3 is given 2 times \(2 such\)"),
    "everything": (range(20), errors.NothingKeptError, "all 20 rows"),
    "a mask of everything": (np.ones(20, bool), errors.NothingKeptError, "sample it instead"),
    "a short mask": ([True, False], errors.RowsError, "mask of 2 values for 20 rows"),
    "fractions": ([1.5], errors.RowsError, "whole numbers"),
    "text": (["a"], errors.RowsError, "whole numbers"),
    "a single number": (3, errors.RowsError, "list of row ids"),
    "a table": ([[1, 2]], errors.RowsError, "2 dimensions"),
    "ragged": ([[1], [2, 3]], errors.RowsError, "flat list"),
}


@pytest.mark.parametrize(("rows", "error", "words"), ROWS.values(), ids=ROWS)
def test_rows(rows, error, words):
    model, runs = counted_model()
    with pytest.raises(error, match=words) as caught:
        model.change(remove=rows)
    assert "What to do:" in str(caught.value)
    assert not runs


DATA = {
    "nothing": ({}, errors.DataError, "no arrays"),
    "unequal lengths": ({"x": np.zeros(3), "y": np.zeros(4)}, errors.DataError, r"has 3 rows and data\['y'\] has 4"),
    "a constant": ({"y": Y, "n": 3}, errors.DataError, "single number"),
    "text": ({"y": np.array(["a", "b"])}, errors.DataError, "not real numbers"),
    "complex numbers": ({"y": np.ones(3, complex)}, errors.DataError, "not real numbers"),
    "a masked array": ({"y": np.ma.masked_less(Y, 0)}, errors.DataError, "mask would be lost"),
    "numbers beyond float32": ({"y": np.array([1e40, 1.0])}, errors.DataError, "infinite"),
    "NaN": ({"y": np.where(Y > 0.9, np.nan, Y)}, errors.DataError, r"NaN at \[19\]"),
    "NaN in a jax array": ({"y": jnp.array([0.0, jnp.nan])}, errors.DataError, r"NaN at \[1\]"),
    "one row": ({"y": np.zeros(1)}, errors.DataError, "at least two rows"),
    "huge integers": ({"y": np.array([2**40, 1])}, errors.DataError, "wrap round"),
}


@pytest.mark.parametrize(("data", "error", "words"), DATA.values(), ids=DATA)
def test_data(data, error, words):
    with pytest.raises(error, match=words):
        counted_model(data=data)


FUNCTIONS = {
    "a likelihood that returns a scalar": (
        {"log_likelihood": lambda p, data: -jnp.sum((data["y"] - p["mu"]) ** 2)},
        errors.ModelError,
        "one value a row, without summing",
    ),
    "a likelihood with an axis too many": (
        {"log_likelihood": lambda p, data: data["y"][:, None] - p["mu"] * jnp.ones(2)},
        errors.ModelError,
        r"shape \(20, 2\) for 20 rows",
    ),
    "a likelihood of integers": (
        {"log_likelihood": lambda p, data: (data["y"] > p["mu"]).astype(int)},
        errors.ModelError,
        "int32",
    ),
    "a likelihood that fails": (
        {"log_likelihood": lambda p, data: data["x"] - p["mu"]},
        errors.ModelError,
        "KeyError: 'x'",
    ),
    "a prior that returns a vector": (
        {"log_prior": lambda p: -(p["mu"] ** 2) * jnp.ones(3)},
        errors.ModelError,
        "one real number",
    ),
    "a typo in transforms": ({"transforms": {"mv": pe.positive}}, errors.InvalidOptionError, "names 'mv'"),
    "a prior that returns nothing": ({"log_prior": lambda p: None}, errors.ModelError, "returns None"),
}


@pytest.mark.parametrize(("changes", "error", "words"), FUNCTIONS.values(), ids=FUNCTIONS)
@pytest.mark.parametrize("when", ["at construction", "at the first draws"])
def test_functions(changes, error, words, when):
    if when == "at construction":
        with pytest.raises(error, match=words):
            counted_model(**changes, params={"mu": 0.0})
    else:
        model, _ = counted_model(**changes)
        with pytest.raises(error, match=words):
            pe.Reweight()(0, model, pe.Draws(GOOD), model.change(remove=[1]))


def test_a_masked_density_that_returns_rows():
    with pytest.raises(errors.ModelError, match="sum over"):
        pe.MaskedModel(lambda p, data, present: data["y"] * p["mu"], {"y": Y}, params={"mu": 0.0})


DRAWS = {
    "nothing": ({}, errors.DrawsShapeError, "no arrays"),
    "one axis": ({"mu": np.zeros(5)}, errors.DrawsShapeError, r"array\[None\]"),
    "unequal draws": ({"a": np.zeros((2, 5)), "b": np.zeros((2, 6))}, errors.DrawsShapeError, "b has 2 of 6"),
    "no draws": ({"mu": np.zeros((2, 0))}, errors.DrawsShapeError, "at least one draw"),
    "no elements": ({"a": np.zeros((2, 5)), "b": np.zeros((2, 5, 0))}, errors.DrawsShapeError, "b has no elements"),
    "integers": ({"mu": np.zeros((2, 5), int)}, errors.InvalidTypeError, "must be real"),
    "truth values": ({"mu": np.zeros((2, 5), bool)}, errors.InvalidTypeError, "must be real"),
    "NaN": ({"mu": np.full((2, 5, 3), np.nan)}, errors.NonFiniteDrawsError, r"chain 0, draw 0, element \[0\]"),
    "infinity": (
        {"mu": np.where(np.arange(10).reshape(2, 5) == 7, np.inf, 0.0)},
        errors.NonFiniteDrawsError,
        "mu is inf in chain 1, draw 2",
    ),
}


@pytest.mark.parametrize(("params", "error", "words"), DRAWS.values(), ids=DRAWS)
def test_draws(params, error, words):
    with pytest.raises(error, match=words):
        pe.Draws(params)


WEIGHTS = {
    "another shape": (np.zeros(50), errors.DrawsShapeError, r"shape \(2, 50\)"),
    "NaN": (np.full((2, 50), np.nan), errors.NonFiniteDrawsError, "NaN and"),
    "text": (np.full((2, 50), "a"), errors.DrawsShapeError, "no numbers"),
    "no weight at all": (np.full((2, 50), -np.inf), errors.NonFiniteDrawsError, "every log-weight"),
}


@pytest.mark.parametrize(("weights", "error", "words"), WEIGHTS.values(), ids=WEIGHTS)
def test_weights(weights, error, words):
    with pytest.raises(error, match=words):
        pe.Draws(GOOD, weights)


def test_labels():
    with pytest.raises(errors.DrawsShapeError, match="names 2 axes of 0"):
        pe.Draws(GOOD, dims={"mu": ["a", "b"]})
    with pytest.raises(errors.InvalidOptionError, match="did you mean 'mu'"):
        pe.Draws(GOOD, dims={"muu": []})
    with pytest.raises(errors.DrawsShapeError, match="whose coordinate has 3"):
        pe.Draws(GOOD, coords={"draw": [1, 2, 3]})


def test_arviz_objects():
    with pytest.raises(errors.DrawsShapeError, match="no posterior group"):
        pe.Draws.from_arviz(pe.Draws(GOOD).to_arviz()["posterior"])
    stacked = pe.Draws(GOOD).to_arviz()["posterior"].to_dataset().stack(sample=("chain", "draw"))
    with pytest.raises(errors.DrawsShapeError, match="unstack"):
        pe.Draws.from_arviz(stacked)
    with pytest.raises(errors.InvalidOptionError, match="did you mean 'mu'"):
        pe.Draws.from_arviz(pe.Draws(GOOD).to_arviz(), var_names=["muu"])


@pytest.mark.parametrize("step", [0, -1, 51, 1.5])
def test_thinning(step):
    with pytest.raises(errors.InvalidOptionError, match="from 1 to 50"):
        pe.Draws(GOOD).thin(step)
    assert pe.Draws(GOOD).thin(np.int64(5)).n_draws == 10


def test_transforms():
    with pytest.raises(errors.InvalidTypeError, match=r"pe\.positive"):
        counted_model(transforms={"mu": jnp.exp})
    model, runs = counted_model(transforms={"sigma": pe.positive})
    with pytest.raises(errors.InvalidOptionError, match="transforms names 'sigma'") as caught:
        pe.Reweight()(0, model, pe.Draws(GOOD), model.change(remove=[1]))
    assert "\\n" not in str(caught.value)
    assert not runs


def test_draws_outside_the_support():
    model, runs = counted_model(transforms={"mu": pe.positive})
    draws = pe.Draws({"mu": np.where(np.arange(100).reshape(2, 50) == 60, -0.5, 1.0)})
    for method in (pe.Reweight(), pe.InfluenceShift()):
        with pytest.raises(errors.OutsideSupportError, match=r"positive, and is -0.5 in chain 1, draw 10"):
            method(0, model, draws, model.change(remove=[1]))
    assert not runs


def test_lists_are_arrays():
    model, _ = counted_model(data={"y": [0.1, 0.2, 0.3]})
    assert model.n_rows == 3


def test_functions_that_are_none():
    with pytest.raises(errors.InvalidTypeError, match="pass a function"):
        counted_model(log_prior=3.0)
    with pytest.raises(errors.InvalidTypeError, match="by parameter name"):
        counted_model(transforms=[pe.positive])


@pytest.mark.parametrize("transform", [pe.ordered, pe.simplex])
def test_vector_transforms_on_numbers(transform):
    model, _ = counted_model(transforms={"mu": transform})
    with pytest.raises(errors.OutsideSupportError, match="at least two elements"):
        pe.Reweight()(0, model, pe.Draws(GOOD), model.change(remove=[1]))


@pytest.mark.parametrize("key", ["0", None, 0.5, True, 2**70, np.zeros(3), jax.random.split(jax.random.key(0))])
def test_keys(key):
    model, runs = counted_model()
    for method in (pe.Reweight(), pe.InfluenceShift()):
        with pytest.raises(errors.InvalidTypeError, match="not a random key"):
            method(key, model, pe.Draws(GOOD), model.change(remove=[1]))
    with pytest.raises(errors.InvalidTypeError):
        pe.Draws(GOOD).resample(key)
    assert not runs


def test_keys_of_every_kind_are_taken():
    model, _ = counted_model()
    draws, change = pe.Draws(GOOD), model.change(remove=[1])
    shifts = [
        pe.InfluenceShift(samples=10)(key, model, draws, change).details.shift["mu"]
        for key in (0, np.int64(0), jax.random.key(0), jax.random.PRNGKey(0))
    ]
    assert len({float(shift) for shift in shifts}) == 1


def test_things_that_are_not_draws_or_removals():
    model, _ = counted_model()
    with pytest.raises(errors.InvalidTypeError, match="wrap them"):
        pe.Reweight()(0, model, GOOD, model.change(remove=[1]))
    with pytest.raises(errors.InvalidTypeError, match=r"model\.change"):
        pe.Reweight()(0, model, pe.Draws(GOOD), [1])
    with pytest.raises(errors.InvalidTypeError, match=r"pe\.Model"):
        pe.Reweight()(0, "model", pe.Draws(GOOD), model.change(remove=[1]))
    for function in (model.without, lambda rows: pe.split(model, rows)):
        with pytest.raises(errors.InvalidTypeError, match=r"model\.change"):
            function([1])


def test_erasers_inside_jit():
    model, _ = counted_model()
    change = model.change(remove=[1])
    with pytest.raises(errors.InvalidTypeError, match="call it outside"):
        jax.jit(lambda draws: pe.Reweight()(0, model, draws, change).draws)(pe.Draws(GOOD))


def test_parameters_that_the_density_ignores():
    """Deterministic quantities among the draws: weights are right for them, a shift is not."""
    model, _ = counted_model()
    draws = pe.Draws({**GOOD, "yhat": np.ones((2, 50, 3))})
    assert pe.Reweight()(0, model, draws, model.change(remove=[1])).draws.names == ["mu", "yhat"]
    for solver in (pe.CG(), pe.Neumann(order=3, scale=0.01)):
        with pytest.raises(errors.ModelError, match="does not depend on yhat"):
            pe.InfluenceShift(solver=solver)(0, model, draws, model.change(remove=[1]))


def test_a_masked_density_bound_to_float32():
    def log_density(p, data, present):
        return jax.lax.fori_loop(0, 1, lambda _, c: c - jnp.sum(present * (data - p) ** 2), jnp.zeros((), jnp.float32))

    model = pe.MaskedModel(log_density, np.arange(5.0))
    with pytest.warns(errors.CoarseRowsWarning), pytest.raises(errors.ModelError, match="two large float32 sums"):
        pe.Reweight()(0, model, pe.Draws(np.zeros((1, 50))), model.change(remove=[1]))


def test_names_that_collide_or_cannot_be_stored():
    with pytest.raises(errors.DrawsShapeError, match=r"two parameters are called 'a\.b'"):
        pe.Draws({"a": {"b": np.zeros((1, 2))}, "a.b": np.zeros((1, 2))})
    with pytest.raises(errors.DrawsShapeError, match="slash"):
        pe.Draws({"a/b": np.zeros((1, 2))}).to_arviz()


def test_a_removal_of_another_model_or_carried_out_before():
    model, _ = counted_model()
    change = model.change(remove=[1, 19])
    smaller, _ = counted_model(data={"y": Y[:10]})
    with pytest.raises(errors.RowsError):
        pe.Reweight()(0, smaller, pe.Draws(GOOD), change)
    with pytest.raises(errors.RowsError):
        pe.Reweight()(0, model.without(change), pe.Draws(GOOD), change)


OPTIONS = {
    "hessian": (lambda: pe.InfluenceShift(hessian="newton"), "'kept'"),
    "samples": (lambda: pe.InfluenceShift(samples=0), "samples is 0"),
    "solver": (lambda: pe.InfluenceShift(solver="cg"), r"CG\(\)"),
    "order": (lambda: pe.Neumann(order=-1, scale=1.0), "order is -1"),
    "scale": (lambda: pe.Neumann(order=3, scale=0.0), "scale is 0.0"),
    "a negative scale in an array": (lambda: pe.Neumann(order=3, scale=np.array(-1.0)), "scale is"),
    "tolerance": (lambda: pe.CG(rtol=-1.0), "rtol=-1.0"),
}


@pytest.mark.parametrize(("make", "words"), OPTIONS.values(), ids=OPTIONS)
def test_options(make, words):
    with pytest.raises(errors.InvalidOptionError, match=words):
        make()


def test_more_samples_than_draws():
    model, runs = counted_model()
    with pytest.raises(errors.InvalidOptionError, match="101, of 100 draws"):
        pe.InfluenceShift(samples=101)(0, model, pe.Draws(GOOD), model.change(remove=[1]))
    assert not runs


def test_files(tmp_path):
    draws = pe.Draws(GOOD)
    with pytest.raises(errors.OutputError, match="no folder"):
        draws.save(tmp_path / "missing" / "draws.nc")
    with pytest.raises(errors.OutputError, match="is a folder"):
        draws.save(tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(errors.OutputError):
        draws.save(tmp_path / "file" / "draws.nc")
    with pytest.raises(errors.OutputError, match="cannot be written to"):
        draws.save("/proc/draws.nc")
    with pytest.raises(errors.InputFileError, match="no file"):
        pe.Draws.load(tmp_path / "none.nc")
    (tmp_path / "text.nc").write_text("not netCDF")
    with pytest.raises(errors.InputFileError, match="cannot be read"):
        pe.Draws.load(tmp_path / "text.nc")


def test_an_existing_file_is_overwritten_only_where_asked(tmp_path):
    path = pe.Draws(GOOD).save(tmp_path / "draws.nc")
    before, other = path.read_bytes(), pe.Draws({"mu": np.ones((2, 50))})
    with pytest.raises(errors.OutputError, match=r"already exists(.|\n)*overwrite=True"):
        other.save(path)
    assert path.read_bytes() == before
    other.save(path, overwrite=True)
    assert list(pe.Draws.load(path).params) == ["mu"]
    assert path.read_bytes() != before


def test_a_misspelt_entry_of_a_policy_is_answered_with_the_nearest():
    for wrong, meant in {"eps": "epsilon", "epsilom": "epsilon", "ESS": "ess", "zz": "use pareto_k, ess"}.items():
        with pytest.raises(errors.InvalidOptionError, match=f"no {wrong!r}(.|\n)*{meant}"):
            pe.Policy(**{wrong: 0.01})
    with pytest.raises(errors.InvalidOptionError, match="by name"):
        pe.Policy(0.5, 400.0)
    assert list(inspect.signature(pe.Policy).parameters)[:3] == ["pareto_k", "ess", "epsilon"]


def test_a_failed_save_leaves_the_old_file(tmp_path, monkeypatch):
    path = pe.Draws(GOOD).save(tmp_path / "draws.nc")
    before = path.read_bytes()

    def fail(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("xarray.DataTree.to_netcdf", fail)
    with pytest.raises(KeyboardInterrupt):
        pe.Draws({"mu": np.ones((2, 50))}).save(path, overwrite=True)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("error", errors.PosteraseError.__subclasses__(), ids=lambda error: error.__name__)
def test_errors_print_and_travel(error):
    made = error("x is 3.", "use 4.")
    assert str(made) == "x is 3.\n  What to do: use 4."
    again = pickle.loads(pickle.dumps(made))
    assert (type(again), again.problem, again.advice) == (error, "x is 3.", "use 4.")


# --- results that are not numbers


def test_nan_likelihoods_are_refused():
    model, _ = counted_model(log_likelihood=lambda p, data: jnp.sqrt(p["mu"] - 10) + 0 * data["y"])
    for method in (pe.Reweight(), pe.InfluenceShift()):
        with pytest.raises(errors.NonFiniteResultError, match="NaN"):
            method(0, model, pe.Draws(GOOD), model.change(remove=[1]))


def test_a_curvature_that_is_not_positive_is_refused():
    model, _ = counted_model(log_prior=lambda p: 20 * p["mu"] ** 2)
    with pytest.raises(errors.NonFiniteResultError, match="not positive definite"):
        pe.InfluenceShift()(0, model, pe.Draws(GOOD), model.change(remove=[1]))


def test_a_series_that_overflows_is_refused():
    model, _ = counted_model()
    diverging = pe.InfluenceShift(solver=pe.Neumann(order=500, scale=1.0))
    with pytest.raises(errors.NonFiniteResultError, match=r"diverges.*outside \(0, 2/scale\), the farthest 20"):
        diverging(0, model, pe.Draws(GOOD), model.change(remove=[1]))


def test_a_shift_out_of_the_support_is_refused():
    """A positive parameter shifted so far down that float32 has only zero left for it."""
    model = pe.Model(
        lambda p: 0.0 * p["s"],
        lambda p, y: -1e-3 * jnp.log(p["s"]) ** 2 + y * jnp.log(p["s"]),
        np.concatenate([[2.0], np.zeros(5)]),
        transforms={"s": pe.positive},
    )
    with pytest.raises(errors.NonFiniteResultError, match="after the shift s must be positive"):
        pe.InfluenceShift()(0, model, pe.Draws({"s": np.full((1, 50), 1.0)}), model.change(remove=[0]))
