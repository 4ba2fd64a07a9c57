"""The language model as MLflow serves it ("models from code": MLflow stores and runs this file, no pickle).

`noam serve` serves it; so does `mlflow models serve -m models:/<id> --env-manager local -p 5001`. Post to
`/invocations`: `{"inputs": ["un gato come"], "params": {"top_k": 3}}`.

Whatever cannot be answered is a `BAD_REQUEST` (status 400) with one sentence.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mlflow.exceptions import MlflowException
from mlflow.models import set_model
from mlflow.protos.databricks_pb2 import BAD_REQUEST
from mlflow.pyfunc.model import PythonModel, PythonModelContext
from pydantic import BaseModel

MAX_TEXTS, MAX_TOP_K = 64, 1000  # of one request


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
        """The next words of each text.

        Args:
            model_input: 1 to 64 texts, each within the model's window.
            params: `top_k`, 1 to 1000: how many words, 5 if it is not there.

        Raises:
            MlflowException: BAD_REQUEST: a number out of range, a text too long, or a model that diverged.
        """
        top_k = (params or {}).get("top_k", 5)
        if not 1 <= len(model_input) <= MAX_TEXTS:
            raise _refusal(f"{len(model_input)} texts: expected 1 to {MAX_TEXTS}")
        if not 1 <= top_k <= MAX_TOP_K:
            raise _refusal(f"top_k = {top_k}: expected a whole number from 1 to {MAX_TOP_K}")
        window = self.predictor.window
        for place, text in enumerate(model_input, start=1):
            if (count := len(self.predictor.encode(text))) > window:
                raise _refusal(f"text {place} has {count} tokens, [bos] included: expected at most {window}")
        return [self._answer(text, int(top_k)) for text in model_input]

    def _answer(self, text: str, top_k: int) -> Answer:
        prediction = self.predictor.next_words(text, top_k)
        if not prediction.finite:
            raise _refusal(self.predictor.not_finite)
        words = [Word(word=word, probability=probability) for word, probability in prediction.next]
        return Answer(prompt=text, unknown=prediction.unknown, next=words)


def _refusal(sentence: str) -> MlflowException:
    return MlflowException(sentence, error_code=BAD_REQUEST)


set_model(NextWords())
