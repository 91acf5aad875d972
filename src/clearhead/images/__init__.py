"""Pictures: files into tensors, the size and normalisation that a model expects, random changes in training."""

from clearhead.images.picture_augmentation import Augmentation
from clearhead.images.picture_files import read_picture
from clearhead.images.preprocessing import Preprocessing

__all__ = ["Augmentation", "Preprocessing", "read_picture"]
