"""Modules over attend(): attention layers, scales, positions, norms, losses, guards.

Every layer takes [B,N,embed_dim] and returns Attended(out, stats); True in a mask means visible.
"""

from attentropy.nn.adaptive import AdaptiveScale as AdaptiveScale
from attentropy.nn.cache import KVCache as KVCache
from attentropy.nn.decay import DecayAttention as DecayAttention
from attentropy.nn.gau import GatedAttentionUnit as GatedAttentionUnit
from attentropy.nn.guards import qk_clip_ as qk_clip_
from attentropy.nn.guards import sigma_reparam as sigma_reparam
from attentropy.nn.init import expected_entropy as expected_entropy
from attentropy.nn.init import logit_spread as logit_spread
from attentropy.nn.init import score_variance as score_variance
from attentropy.nn.init import xavier as xavier
from attentropy.nn.invariant import EntropyInvariantAttention as EntropyInvariantAttention
from attentropy.nn.long import hierarchical as hierarchical
from attentropy.nn.long import join as join
from attentropy.nn.long import segmented as segmented
from attentropy.nn.losses import EntropyLoss as EntropyLoss
from attentropy.nn.losses import ZLoss as ZLoss
from attentropy.nn.multihead import MultiheadAttention as MultiheadAttention
from attentropy.nn.norms import QKNorm as QKNorm
from attentropy.nn.positions import ALiBi as ALiBi
from attentropy.nn.positions import Positions as Positions
from attentropy.nn.positions import RelativeBias as RelativeBias
from attentropy.nn.positions import SinusoidalPositions as SinusoidalPositions
from attentropy.nn.rotary import NTK as NTK
from attentropy.nn.rotary import Interpolated as Interpolated
from attentropy.nn.rotary import RotaryPositions as RotaryPositions
from attentropy.nn.rotary import YaRN as YaRN
from attentropy.nn.scales import LearnedScale as LearnedScale
from attentropy.nn.scales import SSMax as SSMax
from attentropy.nn.variants import AdditiveAttention as AdditiveAttention
from attentropy.nn.variants import AdditiveScore as AdditiveScore
from attentropy.nn.variants import CosineAttention as CosineAttention
from attentropy.nn.variants import LinearAttention as LinearAttention
