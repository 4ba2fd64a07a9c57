"""The language model as MLflow serves it ("models from code": MLflow stores and runs this file, no pickle).

Serve it with `mlflow models serve -m models:/<id> --env-manager local -p 5001`, then post to `/invocations`:
`{"inputs": ["un gato come"], "params": {"top_k": 3}}`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mlflow.models import set_model
from mlflow.pyfunc.model import PythonModel, PythonModelContext
from pydantic import BaseModel


class Word(BaseModel):
    word: str
    probability: float


class Answer(BaseModel):
    """What follows one beginning of a sentence; `unknown` lists its words that the model does not know."""

    prompt: str
    unknown: list[str]
    next: list[Word]


class NextWords(PythonModel):
    """Beginnings of sentences → the next words with their probabilities."""

    def load_context(self, context: PythonModelContext) -> None:
        from stages.model.predict import Predictor

        folder = Path(context.artifacts["model"])
        self.predictor = Predictor.load(folder, folder / "vocab.json")

    def predict(  # type: ignore[override]
        self, model_input: list[str], params: dict[str, Any] | None = None
    ) -> list[Answer]:
        top_k = int((params or {}).get("top_k", 5))
        return [self._answer(text, top_k) for text in model_input]

    def _answer(self, text: str, top_k: int) -> Answer:
        prediction = self.predictor.next_words(text, top_k)
        words = [Word(word=word, probability=probability) for word, probability in prediction.next]
        return Answer(prompt=text, unknown=prediction.unknown, next=words)


set_model(NextWords())
