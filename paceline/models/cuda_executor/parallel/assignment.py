"""`CudaAssignment`: what a rank of a model over several GPUs needs to join it."""

from dataclasses import dataclass

from paceline.models.cuda_executor.attention import AttentionName
from paceline.models.cuda_executor.model import CudaModel
from paceline.models.cuda_executor.parallel.following import Follower
from paceline.models.cuda_executor.parallel.leading import LeadingModel
from paceline.models.cuda_executor.peers import LinkedPeers
from paceline.models.cuda_executor.stages import StagedPeers
from paceline.models.torch_executor.parallel import Assignment
from paceline.models.torch_executor.parallel.links import Links


@dataclass(frozen=True, eq=False, slots=True)
class CudaAssignment(Assignment):
    """An `Assignment` for this executor.

    Attributes:
        attention, deterministic: as of `CudaModel`.
    """

    attention: AttentionName = "auto"
    deterministic: bool = False

    def load(self, links: Links) -> LeadingModel | Follower:
        """See `Assignment.load`; errors as of `CudaModel`."""
        kind = CudaModel if self.rank else LeadingModel
        is_staged, in_one_order = len(self.layout.stages) > 1, self.deterministic
        model = kind(
            self.checkpoint, self.device, self.dtype, attention=self.attention, deterministic=self.deterministic,
            peers=StagedPeers(links, in_one_order) if is_staged else LinkedPeers(links.shard, links, in_one_order),
        )  # fmt: skip
        links.connect()
        return model if isinstance(model, LeadingModel) else Follower(model, links)
