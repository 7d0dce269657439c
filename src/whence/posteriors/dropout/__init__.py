"""MC dropout: the draws are masks."""

from whence.posteriors.dropout.posterior import Dropout, dropout

__all__ = ["Dropout", "dropout"]
