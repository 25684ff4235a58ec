"""Modules over attend(): attention layers, scales, positions, norms, losses, guards.

Every layer takes [B,N,embed_dim] and returns Attended(out, stats); True in a mask means visible.
"""

from attentropy.core.scores import ALiBi as ALiBi
from attentropy.nn.guards import qk_clip_ as qk_clip_
from attentropy.nn.guards import sigma_reparam as sigma_reparam
from attentropy.nn.init import expected_entropy as expected_entropy
from attentropy.nn.init import logit_spread as logit_spread
from attentropy.nn.init import score_variance as score_variance
from attentropy.nn.init import xavier as xavier
from attentropy.nn.layers.cache import KVCache as KVCache
from attentropy.nn.layers.decay import DecayAttention as DecayAttention
from attentropy.nn.layers.gau import GatedAttentionUnit as GatedAttentionUnit
from attentropy.nn.layers.invariant import EntropyInvariantAttention as EntropyInvariantAttention
from attentropy.nn.layers.long import hierarchical as hierarchical
from attentropy.nn.layers.long import join as join
from attentropy.nn.layers.long import segmented as segmented
from attentropy.nn.layers.multihead import MultiheadAttention as MultiheadAttention
from attentropy.nn.layers.recent import ASEntmaxAttention as ASEntmaxAttention
from attentropy.nn.layers.recent import DifferentialAttention as DifferentialAttention
from attentropy.nn.layers.recent import GatedAttention as GatedAttention
from attentropy.nn.layers.recent import ScaleInvariantAttention as ScaleInvariantAttention
from attentropy.nn.layers.recent import SelectiveAttention as SelectiveAttention
from attentropy.nn.layers.variants import AdditiveAttention as AdditiveAttention
from attentropy.nn.layers.variants import AdditiveScore as AdditiveScore
from attentropy.nn.layers.variants import CosineAttention as CosineAttention
from attentropy.nn.layers.variants import LinearAttention as LinearAttention
from attentropy.nn.losses import EntropyLoss as EntropyLoss
from attentropy.nn.losses import ZLoss as ZLoss
from attentropy.nn.norms import QKNorm as QKNorm
from attentropy.nn.positions.encodings import DistanceBias as DistanceBias
from attentropy.nn.positions.encodings import Positions as Positions
from attentropy.nn.positions.encodings import RelativeBias as RelativeBias
from attentropy.nn.positions.encodings import SinusoidalPositions as SinusoidalPositions
from attentropy.nn.positions.rotary import NTK as NTK
from attentropy.nn.positions.rotary import Interpolated as Interpolated
from attentropy.nn.positions.rotary import RotaryPositions as RotaryPositions
from attentropy.nn.positions.rotary import YaRN as YaRN
from attentropy.nn.scales.adaptive import AdaptiveScale as AdaptiveScale
from attentropy.nn.scales.learned import LearnedScale as LearnedScale
from attentropy.nn.scales.learned import SSMax as SSMax
