"""Analysis of a layer from its q, k, v or its weights; options are those of attend().

Nothing here holds an n x n table, except functions whose name says dense.
"""

from attentropy.analysis.gradient import Flow as Flow
from attentropy.analysis.gradient import expected_flow as expected_flow
from attentropy.analysis.gradient import flow_by_scale as flow_by_scale
from attentropy.analysis.gradient import jacobian_norm as jacobian_norm
from attentropy.analysis.gradient import live_keys as live_keys
from attentropy.analysis.gradient import saturated as saturated
from attentropy.analysis.heads import HeadComparison as HeadComparison
from attentropy.analysis.heads import compare_heads as compare_heads
from attentropy.analysis.heads import divergence as divergence
from attentropy.analysis.heads import duplicate_heads as duplicate_heads
from attentropy.analysis.heads import entropy_of_mean as entropy_of_mean
from attentropy.analysis.heads import mutual_information as mutual_information
from attentropy.analysis.heads import position_entropy as position_entropy
from attentropy.analysis.positional import positional_share as positional_share
from attentropy.analysis.robustness import Noise as Noise
from attentropy.analysis.robustness import Robustness as Robustness
from attentropy.analysis.robustness import certified_error as certified_error
from attentropy.analysis.robustness import compare_errors as compare_errors
from attentropy.analysis.robustness import diameter as diameter
from attentropy.analysis.robustness import measured_error as measured_error
from attentropy.analysis.robustness import predicted_error as predicted_error
from attentropy.analysis.robustness import predicted_error_dense as predicted_error_dense
from attentropy.analysis.robustness import worst_error as worst_error
from attentropy.analysis.spectrum import CausalRank as CausalRank
from attentropy.analysis.spectrum import ProjectionSpectrum as ProjectionSpectrum
from attentropy.analysis.spectrum import causal_rank_dense as causal_rank_dense
from attentropy.analysis.spectrum import effective_rank as effective_rank
from attentropy.analysis.spectrum import effective_rank_dense as effective_rank_dense
from attentropy.analysis.spectrum import eigenvalues_dense as eigenvalues_dense
from attentropy.analysis.spectrum import map_dense as map_dense
from attentropy.analysis.spectrum import projection_spectrum as projection_spectrum
from attentropy.analysis.spectrum import singular_values_dense as singular_values_dense
from attentropy.analysis.temperature import EntropyRange as EntropyRange
from attentropy.analysis.temperature import entropy_range as entropy_range
from attentropy.analysis.temperature import tau_for_entropy as tau_for_entropy
