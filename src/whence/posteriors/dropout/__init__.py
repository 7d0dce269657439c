"""MC dropout: masks are the draws."""

from whence.posteriors.dropout.posterior import Dropout, dropout

__all__ = ["Dropout", "dropout"]
