"""Named errors: what was wrong, and what to do about it.

Each class holds the errors that a program would catch together. An error carries two sentences: `problem` (the
argument, its value, what was expected) and `advice` (the next step). Its class has a third one, `public_reason`, for
records and certificates. All of them are `PosteraseError`s; each is also the builtin error that Python users would
expect to catch.
"""

from __future__ import annotations

from typing import ClassVar


class PosteraseError(Exception):
    """Base of all errors that posterase raises on purpose."""

    public_reason: ClassVar[str] = "The computation failed."
    """What was wrong, in a sentence that may be published: `problem` may hold values of rows, this never does."""

    def __init__(self, problem: str, advice: str):
        super().__init__(f"{problem}\n  What to do: {advice}")
        self.problem = problem
        self.advice = advice

    def __str__(self) -> str:  # KeyError would print a repr, OSError its arguments as errno and text
        return f"{self.problem}\n  What to do: {self.advice}"

    def __reduce__(self) -> tuple[type, tuple[str, str]]:
        return type(self), (self.problem, self.advice)


# --- the model and its data


class DataError(PosteraseError, ValueError):
    """`data`, or another array argument, is not numeric, has the wrong shape, or holds NaN."""

    public_reason = "The data are not numeric arrays of the right shape, without NaN."


class StreamError(PosteraseError, OSError):
    """Rows of a stream cannot be read, or have changed."""

    public_reason = "Rows of a stream cannot be read, or have changed."


class ModelError(PosteraseError, ValueError):
    """A function of the model returns the wrong shape, is not precise enough, or does not depend on a parameter."""

    public_reason = "The functions of the model do not give a log density for every parameter."


class NotFactorisedError(ModelError):
    """The likelihood of a row depends on other rows, but the model says that rows are independent."""

    public_reason = "The likelihood of a row depends on other rows."


# --- the rows to remove


class RowsError(PosteraseError, ValueError):
    """Rows that are not a valid list of ids, mask or condition: out of range, named twice, or removed before."""

    public_reason = "The rows of the request are not valid."


class EmptyRemovalError(RowsError):
    """There are no rows to remove."""

    public_reason = "No rows are to be removed."


class NothingKeptError(RowsError):
    """Every row would be removed."""

    public_reason = "Every row is to be removed."


# --- the draws


class DrawsShapeError(PosteraseError, ValueError):
    """Draws are not shaped `(chain, draw, …)`, or do not fit the model."""

    public_reason = "The draws do not have the shape that the model needs."


class WeightedDrawsError(PosteraseError, ValueError):
    """Draws with log-weights would leave memory. The weights are a function of the removed rows."""

    public_reason = "Weighted draws cannot leave memory: their weights are a function of the removed rows."


class NonFiniteDrawsError(PosteraseError, ValueError):
    """Draws or their weights hold NaN or infinity."""

    public_reason = "The draws or their weights hold NaN or infinity."


class OutsideSupportError(PosteraseError, ValueError):
    """Draws lie outside the support: of a parameter's transform, or where the log density is not finite."""

    public_reason = "Draws lie outside the support of the model."


class DifferentModelError(PosteraseError, ValueError):
    """Draws are not posterior draws of this model: other names or data, warm-up, or a sampler that never moved."""

    public_reason = "The draws do not belong to the model."


# --- bridges


class UnsupportedModelError(PosteraseError, ValueError):
    """Rows cannot be removed from a model of another library as it is. The message names the site."""

    public_reason = "Rows cannot be removed from this kind of model."


class AmbiguousRowsError(PosteraseError, ValueError):
    """Several axes of the observed data could be the rows."""

    public_reason = "The axis of the rows is ambiguous."


class CoupledRowsError(PosteraseError, ValueError):
    """The values of a removed row are still used by rows that are kept."""

    public_reason = "The values of a removed row are still used by rows that are kept."


class DataChangedError(PosteraseError, ValueError):
    """The data are not those of the fit."""

    public_reason = "The data are not those of the fit."


class NeedsDensityError(PosteraseError, TypeError):
    """A method needs the model's density, and only log-likelihoods are stored."""

    public_reason = "A method needs a density, and only log-likelihoods are stored."


# --- running


class InvalidTypeError(PosteraseError, TypeError):
    """An argument has the wrong type: a seed, a transform, a parameter of integers, a traced array."""

    public_reason = "An argument has the wrong type."


class ImproperPosteriorError(PosteraseError, ValueError):
    """Without the removed rows the posterior is improper: a parameter has a flat prior and no data."""

    public_reason = "Without the removed rows the posterior is improper: a parameter has a flat prior and no data."


class InvalidOptionError(PosteraseError, ValueError):
    """An option is out of its range, or names something unknown: of a method, a sampler, a mesh or a policy."""

    public_reason = "An option is out of its range, or names something unknown."


class PeerLostError(PosteraseError, RuntimeError):
    """Another process of the same run ended or cannot be reached."""

    public_reason = "Another process of the same run ended or cannot be reached."


class StanProgramError(PosteraseError, ValueError):
    """A Stan program does not compile, or Stan refuses it with its data or parameters."""

    public_reason = "The Stan program does not compile, or does not take its data or parameters."


class NonFiniteResultError(PosteraseError, ArithmeticError):
    """A computation or a chain ended in NaN or infinity. The result is refused, the input is untouched."""

    public_reason = "The computation ended in NaN or infinity."


class RefusedError(PosteraseError, RuntimeError):
    """Draws were requested of an erasure whose verdict is a refusal."""

    public_reason = "The erasure was refused."


# --- files


class OutputError(PosteraseError, OSError):
    """A file or folder cannot be written."""

    public_reason = "A file or folder cannot be written."


class InputFileError(PosteraseError, OSError):
    """A file or DataTree cannot be read as draws or as a saved state: a group is missing, or it is of another run."""

    public_reason = "A file cannot be read as draws or as a saved state."


class DatasetError(PosteraseError, OSError):
    """Files of a data set are missing and cannot be fetched, or are not the official ones."""

    public_reason = "The files of a data set are missing, or are not the official ones."


class MissingExtraError(PosteraseError, ImportError):
    """An optional dependency is not installed."""

    public_reason = "An optional dependency is not installed."


# --- the record


class RecordError(PosteraseError, RuntimeError):
    """The record cannot do something in its present state. Base of the errors of a record."""

    public_reason = "The record cannot do this."


class RequestError(RecordError, ValueError):
    """A request is not valid: its id, its times, its regulation."""

    public_reason = "The request is not valid."


class NotFoundError(RequestError):
    """The record has nothing of this name or number."""

    public_reason = "The record has nothing of this name or number."


class WrongStateError(RequestError):
    """The state of a request, or of something else in the record, does not allow this."""

    public_reason = "The state of the request does not allow this."


class ProjectError(RecordError, ValueError):
    """A project or job file cannot be read, or its parts cannot be found."""

    public_reason = "The project or job file is not valid."


class KeyFileError(RecordError, ValueError):
    """A key is missing, not valid, or readable by others."""

    public_reason = "A key is missing, not valid, or readable by others."


class LedgerError(RecordError, ValueError):
    """A ledger, certificate or checkpoint is not what was signed. The message names the entry."""

    public_reason = "The ledger, certificate or checkpoint is not what was signed."


class LedgerFormatError(LedgerError):
    """A part of a ledger is not canonical JSON or not a signed note, or its signature is wrong."""

    public_reason = "A part of the ledger is malformed, or its signature is wrong."


# --- warnings


class CoarseRowsWarning(UserWarning):
    """Rows are evaluated in float32 where float64 was wanted."""


class MeaninglessDimensionWarning(UserWarning):
    """Nearest neighbours in so many dimensions say nothing of a divergence."""


class DiscretisedChainWarning(UserWarning):
    """A constant step size samples the discretised chain, not the posterior."""
