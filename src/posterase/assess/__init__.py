"""Evidence: how well was it forgotten? Numbers with a floor and an error, against refits or closed forms.

`assess` runs every metric that applies and prints them as a table. Each metric is also a function of arrays.
"""

from posterase.assess.assessment import assess as assess
from posterase.assess.bounds import Bounds as Bounds
from posterase.assess.bounds import measured as measured
from posterase.assess.bounds import path_bound as path_bound
from posterase.assess.bounds import smoothing_bound as smoothing_bound
from posterase.assess.calibration import Calibration as Calibration
from posterase.assess.calibration import calibrate as calibrate
from posterase.assess.comparison import Compared as Compared
from posterase.assess.comparison import Comparison as Comparison
from posterase.assess.divergence import divergence as divergence
from posterase.assess.forget_sets import ForgetSets as ForgetSets
from posterase.assess.forget_sets import forget_sets as forget_sets
from posterase.assess.forget_sets import row_influence as row_influence
from posterase.assess.margins import KLoM as KLoM
from posterase.assess.margins import ULira as ULira
from posterase.assess.margins import klom as klom
from posterase.assess.margins import logit_margin as logit_margin
from posterase.assess.margins import u_lira as u_lira
from posterase.assess.membership import membership_attack as membership_attack
from posterase.assess.moments import moment_errors as moment_errors
from posterase.assess.nearest_neighbours import KnowledgeRemoval as KnowledgeRemoval
from posterase.assess.nearest_neighbours import knowledge_removal as knowledge_removal
from posterase.assess.nearest_neighbours import nearest_neighbour_kl as nearest_neighbour_kl
from posterase.assess.pac_bayes import PacBayes as PacBayes
from posterase.assess.pac_bayes import pac_bayes as pac_bayes
from posterase.assess.pac_bayes import pac_bayes_change as pac_bayes_change
from posterase.assess.predictive import error_rate as error_rate
from posterase.assess.predictive import predict as predict
from posterase.assess.predictive import prediction_difference as prediction_difference
from posterase.assess.stein import Stein as Stein
from posterase.assess.stein import kernel_stein as kernel_stein
from posterase.assess.table import Assessment as Assessment
from posterase.assess.table import Figure as Figure
from posterase.assess.table import NotMeasured as NotMeasured
from posterase.assess.timing import Timed as Timed
from posterase.assess.timing import timed as timed
from posterase.assess.two_sample import TwoSample as TwoSample
from posterase.assess.two_sample import tell_apart as tell_apart
from posterase.assess.two_sample import two_sample as two_sample
from posterase.assess.worlds import Worlds as Worlds
from posterase.assess.worlds import worlds as worlds
from posterase.numerics.weights import Estimate as Estimate
from posterase.numerics.weights import jeffreys as jeffreys
from posterase.numerics.weights import total_variation as total_variation
