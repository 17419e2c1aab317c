"""Names that pages still import from here; they are in `ladder`. And what another article published."""

from walkthrough.compare.ladder import DEVICE as DEVICE
from walkthrough.compare.ladder import MODEL as MODEL
from walkthrough.compare.ladder import PUBLISHED as PUBLISHED
from walkthrough.compare.ladder import RELATIVE as RELATIVE

# Of another article with steps like the walkthrough's: resnet18 on a V100, one run. Mixed precision at batch 1024:
# Tensor Cores' share of the kernels' time, and images/s, before and after.
ARTICLE = "https://towardsdatascience.com/pytorch-model-performance-analysis-and-optimization-10c3c5822869"
ARTICLE_TENSOR_CORES = (0.0, 0.263)
ARTICLE_IMAGES_PER_SECOND = (1670, 2477)
