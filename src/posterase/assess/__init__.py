"""Evidence: how well was it forgotten? Numbers with a floor and an error, against refits or closed forms."""

from posterase.assess.calibration import Calibration as Calibration
from posterase.assess.calibration import calibrate as calibrate
from posterase.assess.divergence import divergence as divergence
from posterase.assess.membership import attack as attack
from posterase.assess.moments import moment_errors as moment_errors
from posterase.assess.predictive import predict as predict
from posterase.assess.predictive import prediction_difference as prediction_difference
from posterase.assess.two_sample import TwoSample as TwoSample
from posterase.assess.two_sample import two_sample as two_sample
