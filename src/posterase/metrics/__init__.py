"""Evidence: how well was it forgotten? Numbers with a floor and an error, against refits or closed forms.

`assess` runs every metric that applies and prints them as a table. Each metric is also a function of arrays.
"""

from posterase.metrics.bounds import Bounds as Bounds
from posterase.metrics.bounds import measured as measured
from posterase.metrics.bounds import path_bound as path_bound
from posterase.metrics.bounds import smoothing_bound as smoothing_bound
from posterase.metrics.calibration import Calibration as Calibration
from posterase.metrics.calibration import calibrate as calibrate
from posterase.metrics.comparison import Compared as Compared
from posterase.metrics.comparison import Comparison as Comparison
from posterase.metrics.divergence import divergence as divergence
from posterase.metrics.forget_sets import ForgetSets as ForgetSets
from posterase.metrics.forget_sets import forget_sets as forget_sets
from posterase.metrics.forget_sets import row_influence as row_influence
from posterase.metrics.margins import KLoM as KLoM
from posterase.metrics.margins import ULira as ULira
from posterase.metrics.margins import klom as klom
from posterase.metrics.margins import logit_margin as logit_margin
from posterase.metrics.margins import u_lira as u_lira
from posterase.metrics.membership import membership_attack as membership_attack
from posterase.metrics.moments import moment_errors as moment_errors
from posterase.metrics.nearest_neighbours import KnowledgeRemoval as KnowledgeRemoval
from posterase.metrics.nearest_neighbours import knowledge_removal as knowledge_removal
from posterase.metrics.nearest_neighbours import nearest_neighbour_kl as nearest_neighbour_kl
from posterase.metrics.pac_bayes import PacBayes as PacBayes
from posterase.metrics.pac_bayes import pac_bayes as pac_bayes
from posterase.metrics.pac_bayes import pac_bayes_change as pac_bayes_change
from posterase.metrics.predictive import error_rate as error_rate
from posterase.metrics.predictive import predict as predict
from posterase.metrics.predictive import prediction_difference as prediction_difference
from posterase.metrics.shadow_models import ShadowModels as ShadowModels
from posterase.metrics.shadow_models import shadow_models as shadow_models
from posterase.metrics.stein import Stein as Stein
from posterase.metrics.stein import kernel_stein as kernel_stein
from posterase.metrics.table import Assessment as Assessment
from posterase.metrics.table import Figure as Figure
from posterase.metrics.table import NotMeasured as NotMeasured
from posterase.metrics.timing import Timed as Timed
from posterase.metrics.timing import timed as timed
from posterase.metrics.two_sample import TwoSample as TwoSample
from posterase.metrics.two_sample import tell_apart as tell_apart
from posterase.metrics.two_sample import two_sample as two_sample
from posterase.numerics.weights import Estimate as Estimate
from posterase.numerics.weights import jeffreys as jeffreys
from posterase.numerics.weights import total_variation as total_variation
