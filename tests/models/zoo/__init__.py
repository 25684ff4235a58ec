"""Models to try the library on: a chosen few by hand, and every architecture of transformers.

`python -m tests.models.zoo` builds them all and writes docs/models.md.
"""

from tests.models.zoo.chosen import INTERFACE as INTERFACE
from tests.models.zoo.chosen import TAPPED as TAPPED
from tests.models.zoo.chosen import build as build
from tests.models.zoo.chosen import eager_maps as eager_maps
from tests.models.zoo.chosen import first_output as first_output
from tests.models.zoo.chosen import inputs as inputs
