"""Pictures: files into tensors, the size and normalisation that a model expects, random changes in training."""

from clearhead.images.picture_augmentation import Augmentation
from clearhead.images.picture_files import convert_image, read_picture
from clearhead.images.preprocessing import Preprocessing

__all__ = ["Augmentation", "Preprocessing", "convert_image", "read_picture"]
