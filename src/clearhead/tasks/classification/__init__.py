"""Classification: predicts the label of a text or of a pair of texts, or several labels."""

from clearhead.tasks.classification.classifier_examples import LabelledTexts, TextExamples
from clearhead.tasks.classification.classifier_settings import ClassificationRecipe, LabelOptions
from clearhead.tasks.classification.classifier_task import Classification
from clearhead.tasks.classification.label_prediction import LabelPrediction

__all__ = [
    "Classification",
    "ClassificationRecipe",
    "LabelOptions",
    "LabelPrediction",
    "LabelledTexts",
    "TextExamples",
]
