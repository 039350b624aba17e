"""Predict how fast a training will be: ``predict(PredictRequest(model="resnet50", device="a100"))``."""

from paceline.studies.predict.prediction import Prediction
from paceline.studies.predict.request import PredictRequest
from paceline.studies.predict.study import predict

__all__ = ["PredictRequest", "Prediction", "predict"]
