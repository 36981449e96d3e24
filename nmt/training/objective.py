"""What training minimises: ids in, a loss out, as one module, so that every device wrapper sees one forward pass."""

from torch import Tensor, nn

from nmt.data.subwords import PAD
from nmt.models.base import Packing, TranslationModel
from nmt.training.loss import smoothed_cross_entropy


class Objective(nn.Module):
    """A model and the loss that it is trained on."""

    def __init__(self, model: TranslationModel, smoothing: float) -> None:
        super().__init__()
        self.model = model
        self.smoothing = smoothing

    def forward(
        self, src_seq: Tensor, trg_seq: Tensor, gold: Tensor, packing: tuple[Packing, Packing] | None = None
    ) -> Tensor:
        """(B, S), (B, T), (B, T) -> sum over gold tokens of the label-smoothed cross-entropy."""
        hidden = self.model.decode_hidden(src_seq, trg_seq, packing)
        return smoothed_cross_entropy(
            hidden,
            self.model.output_weight,
            gold,
            smoothing=self.smoothing,
            scale=self.model.logit_scale,
            pad_idx=PAD,
        )
