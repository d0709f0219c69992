"""Named errors: what was wrong, and what to do about it.

Every error that a user's input can cause has a class of its own here, so that a program can tell them apart, and
carries two sentences: `problem` (the argument, what it was, what was wanted) and `advice` (the next step). Its class
has a third one, `public_reason`, for records and certificates. All of them are `PosteraseError`s; each is also the
builtin error that Python users would expect to catch.
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
    """`data` is not a tree of numeric arrays that share their leading axis."""

    public_reason = "The data are not numeric arrays that share their leading axis."


class NonFiniteDataError(PosteraseError, ValueError):
    """`data` holds NaN."""

    public_reason = "The data hold NaN."


class StreamError(PosteraseError, OSError):
    """Rows of a stream that cannot be read, or that are no longer those that they were."""

    public_reason = "Rows of a stream cannot be read, or have changed."


class LikelihoodShapeError(PosteraseError, ValueError):
    """`log_likelihood` does not return one value a row."""

    public_reason = "The likelihood does not return one value a row."


class DensityShapeError(PosteraseError, ValueError):
    """`log_prior` or a masked log density does not return one number."""

    public_reason = "The log prior or a masked log density does not return one number."


class InvalidTransformError(PosteraseError, TypeError):
    """An entry of `transforms` that is not a transform."""

    public_reason = "An entry of transforms that is not a transform."


class NotFactorisedError(PosteraseError, ValueError):
    """The likelihood of a row depends on other rows, though the model says that rows are independent."""

    public_reason = "The likelihood of a row depends on other rows."


class UnknownParameterError(PosteraseError, KeyError):
    """A name that no parameter has."""

    public_reason = "A name that no parameter has."


# --- the rows to remove


class RowsError(PosteraseError, ValueError):
    """Base of what can be wrong with the rows of a change; itself: not a list of row ids nor a mask."""

    public_reason = "The rows of the change are not valid."


class EmptyRemovalError(RowsError):
    """No rows to remove."""

    public_reason = "No rows are to be removed."


class RowsOutOfRangeError(RowsError, IndexError):
    """A row id that the model does not have."""

    public_reason = "A row id that the model does not have."


class DuplicateRowsError(RowsError):
    """A row named twice."""

    public_reason = "A row named twice."


class RowsAlreadyRemovedError(RowsError):
    """A row that an earlier change took out."""

    public_reason = "A row that an earlier change took out."


class NothingKeptError(RowsError):
    """Every row is to be removed."""

    public_reason = "Every row is to be removed."


# --- the draws


class DrawsShapeError(PosteraseError, ValueError):
    """Draws that are not shaped `(chain, draw, …)`, or do not fit the model."""

    public_reason = "The draws do not have the shape that the model needs."


class IntegerParametersError(PosteraseError, TypeError):
    """Parameters that are not real numbers."""

    public_reason = "Parameters that are not real numbers."


class WeightedDrawsError(PosteraseError, ValueError):
    """Draws with log-weights where draws would leave memory: the weights are a function of the removed rows."""

    public_reason = "Weighted draws cannot leave memory: their weights are a function of the removed rows."


class NonFiniteDrawsError(PosteraseError, ValueError):
    """NaN or infinity among the draws or their weights."""

    public_reason = "The draws or their weights hold NaN or infinity."


class OutsideSupportError(PosteraseError, ValueError):
    """Draws outside the support of a parameter's transform."""

    public_reason = "Draws lie outside the support of a parameter."


class DifferentModelError(PosteraseError, ValueError):
    """Draws whose names or shapes are not those of the model's parameters."""

    public_reason = "The draws do not belong to the model."


class WarmupDrawsError(PosteraseError, ValueError):
    """Draws from a sampler's warm-up, which are not draws of the posterior."""

    public_reason = "Draws from a sampler's warm-up, which are not draws of the posterior."


class DifferentDrawsError(PosteraseError, ValueError):
    """Other draws than those that stored log-likelihoods belong to."""

    public_reason = "Other draws than those that stored log-likelihoods belong to."


class ArrayError(PosteraseError, ValueError):
    """An array of other axes than were wanted, or with numbers that are none."""

    public_reason = "An array of other axes than were wanted, or with numbers that are none."


class RepeatedDrawsError(PosteraseError, ValueError):
    """Draws that are all the same, or copies among them where distances between draws are looked at."""

    public_reason = "Draws that are all the same, or copies among them where distances between draws are looked at."


# --- bridges


class UnsupportedModelError(PosteraseError, ValueError):
    """A model of another library that rows cannot be taken out of as it is: the site is named."""

    public_reason = "Rows cannot be removed from this kind of model."


class AmbiguousRowsError(PosteraseError, ValueError):
    """Which axis of the observed data is the rows cannot be told."""

    public_reason = "The axis of the rows is ambiguous."


class CoupledRowsError(PosteraseError, ValueError):
    """A removed row's values are still used by rows that are kept."""

    public_reason = "The values of a removed row are still used by rows that are kept."


class DataChangedError(PosteraseError, ValueError):
    """Data that are not those of the fit."""

    public_reason = "The data are not those of the fit."


class MissingGroupError(PosteraseError, ValueError):
    """A file without a group that is needed."""

    public_reason = "A file without a group that is needed."


class NeedsDensityError(PosteraseError, TypeError):
    """A method that needs the model's density where only log-likelihoods are stored."""

    public_reason = "A method that needs the model's density where only log-likelihoods are stored."


# --- running


class InvalidKeyError(PosteraseError, TypeError):
    """`key` is neither a jax key nor a seed."""

    public_reason = "The random seed is neither a jax key nor a seed."


class InvalidTypeError(PosteraseError, TypeError):
    """An argument of another type than was wanted."""

    public_reason = "An argument has the wrong type."


class InsideJitError(PosteraseError, TypeError):
    """Something that needs numbers was called where there are only traced ones."""

    public_reason = "Something that needs numbers was called where there are only traced ones."


class PrecisionError(PosteraseError, TypeError):
    """A density that cannot be evaluated precisely enough for weights."""

    public_reason = "A density that cannot be evaluated precisely enough for weights."


class UnusedParameterError(PosteraseError, ValueError):
    """A parameter that the model's density does not depend on."""

    public_reason = "A parameter that the model's density does not depend on."


class ImproperPosteriorError(PosteraseError, ValueError):
    """Without the removed rows nothing is known of a parameter: its prior is flat, and there is no posterior."""

    public_reason = "Without the removed rows the posterior is improper: a parameter has a flat prior and no data."


class NoDensityError(PosteraseError, ValueError):
    """A log density that is infinite, or not a number, at the draws."""

    public_reason = "A log density that is infinite, or not a number, at the draws."


class InvalidOptionError(PosteraseError, ValueError):
    """An option of a method or a solver outside its range."""

    public_reason = "An option is out of its range."


class MeshError(PosteraseError, ValueError):
    """A mesh of devices that cannot be made, or that has other axes than chains and rows."""

    public_reason = "A mesh of devices that cannot be made, or that has other axes than chains and rows."


class PeerLostError(PosteraseError, RuntimeError):
    """Another process of the same run ended, or cannot be reached."""

    public_reason = "Another process of the same run ended or cannot be reached."


class StanProgramError(PosteraseError, ValueError):
    """A Stan program that does not compile, or that Stan refuses with its data or parameters."""

    public_reason = "The Stan program does not compile, or does not take its data or parameters."


class NonFiniteResultError(PosteraseError, ArithmeticError):
    """A computation that ended in NaN or infinity: the result is refused, the input is untouched."""

    public_reason = "The computation ended in NaN or infinity."


class RefusedError(PosteraseError, RuntimeError):
    """Draws were asked for where the verdict is a refusal."""

    public_reason = "The erasure was refused."


class ScheduleError(PosteraseError, ValueError):
    """A step-size schedule under which draws do not converge to the posterior."""

    public_reason = "A step-size schedule under which draws do not converge to the posterior."


class BatchError(PosteraseError, ValueError):
    """A mini-batch that cannot be drawn from the rows."""

    public_reason = "A mini-batch that cannot be drawn from the rows."


class DivergedError(PosteraseError, ArithmeticError):
    """A chain that left the finite numbers."""

    public_reason = "A chain that left the finite numbers."


class ResumeError(PosteraseError, ValueError):
    """A saved state that belongs to another run."""

    public_reason = "A saved state that belongs to another run."


class CoarseRowsWarning(UserWarning):
    """Rows are evaluated in float32 where float64 was wanted."""


class MeaninglessDimensionWarning(UserWarning):
    """Nearest neighbours in so many dimensions say nothing of a divergence."""


class DiscretisedChainWarning(UserWarning):
    """A constant step size samples the discretised chain, not the posterior."""


class OutputError(PosteraseError, OSError):
    """A file or folder that cannot be written."""

    public_reason = "A file or folder cannot be written."


class InputFileError(PosteraseError, OSError):
    """A file that cannot be read as draws."""

    public_reason = "A file cannot be read as draws."


class DatasetError(PosteraseError, OSError):
    """Files of a data set that are not here and cannot be fetched, or are not the official ones."""

    public_reason = "The files of a data set are missing, or are not the official ones."


class MissingExtraError(PosteraseError, ImportError):
    """An optional dependency that is not installed."""

    public_reason = "An optional dependency is not installed."


# --- the record


class RecordError(PosteraseError, RuntimeError):
    """Something that the record cannot do as it stands; itself: the database, or the state of a request."""

    public_reason = "The record cannot do this."


class RequestError(RecordError, ValueError):
    """A request that cannot be taken: its id, its times, its regulation."""

    public_reason = "The request is not valid."


class NotFoundError(RequestError):
    """There is nothing of this name or number in the record."""

    public_reason = "The record has nothing of this name or number."


class WrongStateError(RequestError):
    """A request, or something else in the record, is not in a state where this can be done."""

    public_reason = "The state of the request does not allow this."


class ProjectError(RecordError, ValueError):
    """A project or job file that cannot be read, or whose parts cannot be found."""

    public_reason = "The project or job file is not valid."


class ClockError(RecordError):
    """The clock shows a time before the last entry of the ledger."""

    public_reason = "The clock shows a time before the last entry of the ledger."


class KeyFileError(RecordError, ValueError):
    """A key that is missing, that others can read, or that is none."""

    public_reason = "A key is missing, not valid, or readable by others."


class LedgerError(RecordError, ValueError):
    """A ledger, certificate or checkpoint that is not what was signed: says which entry."""

    public_reason = "The ledger, certificate or checkpoint is not what was signed."


class NoteError(LedgerError):
    """A signed note that is wrong, or that nobody trusted has signed."""

    public_reason = "A signed note that is wrong, or that nobody trusted has signed."


class CanonicalFormError(LedgerError):
    """A value that canonical JSON has no bytes for, or bytes that are not canonical."""

    public_reason = "A value that canonical JSON has no bytes for, or bytes that are not canonical."
