"""A trained model on disk: weights as safetensors, everything else as JSON, no pickle."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
from torch import Tensor

from stages import files
from stages.errors import ArtifactError
from stages.model.language_model import LanguageModel, LanguageModelConfig

WEIGHTS, CONFIG = "weights.safetensors", "config.json"
SNAPSHOTS = "snapshots"  # weights on the way of a training, each named by the number of updates done


def save_model(model: LanguageModel, folder: Path, about: dict[str, Any]) -> None:
    """Write weights and configuration into an existing folder; `about` is kept beside the configuration."""
    save_weights({name: weight.detach() for name, weight in model.named_parameters()}, model.config, folder, about)


def save_weights(
    weights: Mapping[str, Tensor], config: LanguageModelConfig, folder: Path, about: dict[str, Any]
) -> None:
    """`save_model` of weights that are in no model, under the names of its parameters."""
    safetensors.torch.save_file({name: weight.contiguous() for name, weight in weights.items()}, folder / WEIGHTS)
    files.as_usual(folder / WEIGHTS)
    files.write_json(folder / CONFIG, {"model": config.model_dump(), **about})


def load_model(folder: Path) -> tuple[LanguageModel, dict[str, Any]]:
    """The model of a folder, and its whole configuration.

    Raises:
        ArtifactError: missing, damaged, not safetensors, or weights of another shape.
    """
    content = files.read_json(folder / CONFIG)
    weights = folder / WEIGHTS
    try:
        model = LanguageModel(LanguageModelConfig.model_validate(content["model"]))
    except (KeyError, TypeError, ValueError) as error:
        raise ArtifactError(folder / CONFIG, f"not the configuration of a model ({error})") from None
    load_weights(model, weights)
    return model, content


def load_weights(model: LanguageModel, weights: Path) -> None:
    """Put the weights of a file into a model.

    Raises:
        ArtifactError: missing, damaged, not safetensors, or weights of another shape.
    """
    try:
        tensors = safetensors.torch.load_file(weights)
    except FileNotFoundError:
        raise ArtifactError(weights, "not there; `dvc repro` makes it, `dvc checkout` restores it") from None
    except safetensors.SafetensorError as error:
        raise ArtifactError(weights, f"not readable as safetensors ({error})") from None
    parameters = dict(model.named_parameters())
    if {name: tensor.shape for name, tensor in tensors.items()} != {n: p.shape for n, p in parameters.items()}:
        raise ArtifactError(weights, f"its tensors are not those of the model in {CONFIG}")
    for name, tensor in tensors.items():
        parameters[name].data = tensor
