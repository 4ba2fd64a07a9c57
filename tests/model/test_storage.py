"""A model on disk, and predictions from it."""

from __future__ import annotations

import math
import os
import pickle
from collections.abc import Callable
from pathlib import Path

import pytest
import safetensors
import torch

from stages import files
from stages.errors import ArtifactError
from stages.model.language_model import LanguageModel
from stages.model.predict import Predictor
from stages.model.storage import CONFIG, WEIGHTS, load_model, save_model
from stages.text.vocabulary import TextSettings, Vocabulary

NewModel = Callable[..., LanguageModel]
IDS_BT = torch.tensor([[1, 4, 5, 6]])


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("block", ["notebook", "post", "pre"])
def test_a_saved_model_comes_back_whole(new_model: NewModel, block: str, tied: bool, tmp_path: Path) -> None:
    model = new_model(block=block, tied_output=tied)
    folders = [tmp_path / "one", tmp_path / "two"]
    for folder in folders:
        folder.mkdir()
        save_model(model, folder, {"updates": 7})
    for name in (WEIGHTS, CONFIG):
        assert (folders[0] / name).read_bytes() == (folders[1] / name).read_bytes()

    loaded, content = load_model(folders[0])
    assert content == {"model": model.config.model_dump(), "updates": 7}
    assert loaded.config == model.config
    assert torch.equal(loaded(IDS_BT)[0], model(IDS_BT)[0])
    assert (loaded.output.weight is loaded.embedding.weight) == tied
    with safetensors.safe_open(folders[0] / WEIGHTS, "pt") as saved:
        names = set(saved.keys())
    assert names == {name for name, _ in model.named_parameters()}
    assert ("output.weight" in names) is not tied


class Call:
    """A pickle that creates a folder when it is loaded."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Callable[..., None], tuple[str]]:
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("dump", [pickle.dumps, lambda value: _torch_bytes(value)])
def test_a_pickle_in_the_weights_place_is_refused_unread(
    new_model: NewModel, dump: Callable[[object], bytes], tmp_path: Path
) -> None:
    save_model(new_model(), tmp_path, {})
    (tmp_path / WEIGHTS).write_bytes(dump(Call(tmp_path / "executed")))
    with pytest.raises(ArtifactError, match=r"weights\.safetensors: not readable as safetensors"):
        load_model(tmp_path)
    assert not (tmp_path / "executed").exists()
    pickle.loads(pickle.dumps(Call(tmp_path / "executed")))
    assert (tmp_path / "executed").exists()  # the pickle was a live one


def _torch_bytes(value: object) -> bytes:
    import io

    file = io.BytesIO()
    torch.save(value, file)
    return file.getvalue()


def test_missing_and_damaged_files_are_named(new_model: NewModel, tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match=r"config\.json: not there; `dvc repro` makes it"):
        load_model(tmp_path)
    save_model(new_model(), tmp_path, {})
    weights = (tmp_path / WEIGHTS).read_bytes()
    for damaged in (b"", weights[:100], weights[:-4]):
        (tmp_path / WEIGHTS).write_bytes(damaged)
        with pytest.raises(ArtifactError, match=r"weights\.safetensors: not readable"):
            load_model(tmp_path)
    (tmp_path / WEIGHTS).unlink()
    with pytest.raises(ArtifactError, match=r"weights\.safetensors: not there"):
        load_model(tmp_path)
    files.write_json(tmp_path / CONFIG, {"model": {"d_model": 12}})
    with pytest.raises(ArtifactError, match=r"config\.json: not the configuration of a model"):
        load_model(tmp_path)


def test_weights_of_another_shape_are_refused(new_model: NewModel, tmp_path: Path) -> None:
    save_model(new_model(hidden=11), tmp_path, {})
    files.write_json(tmp_path / CONFIG, {"model": new_model().config.model_dump()})
    with pytest.raises(ArtifactError, match=r"its tensors are not those of the model in config\.json"):
        load_model(tmp_path)


@pytest.fixture
def predictor(new_model: NewModel, tmp_path: Path) -> Predictor:
    vocabulary = Vocabulary(["el", "gato", "[bos]"], [3, 2, 1], TextSettings(lowercase=True))
    files.write_json(tmp_path / "vocab.json", vocabulary.to_dict())
    save_model(new_model(vocab_size=7), tmp_path, {"vocab_md5": files.md5_file(tmp_path / "vocab.json")})
    return Predictor.load(tmp_path)


def test_another_vocabulary_is_found_out_by_its_digest(predictor: Predictor, tmp_path: Path) -> None:
    other = Vocabulary(["el", "perro", "[bos]"], [3, 2, 1], TextSettings(lowercase=True))  # of the same size
    files.write_json(tmp_path / "other.json", other.to_dict())
    with pytest.raises(ArtifactError, match=r"other\.json: not the vocabulary that the model in .* was trained on"):
        Predictor.load(tmp_path, tmp_path / "other.json")


@pytest.mark.parametrize(
    ("text", "tokens", "unknown"),
    [
        ("El GATO", ["[bos]", "el", "gato"], []),
        ("el dragón", ["[bos]", "el", "[unk]"], ["dragón"]),
        ("", ["[bos]"], []),
        (" \t", ["[bos]"], []),
        ("[bos] [eos]", ["[bos]", "\\[bos]", "[unk]"], ["[eos]"]),
    ],
)
def test_next_words(predictor: Predictor, text: str, tokens: list[str], unknown: list[str]) -> None:
    prediction = predictor.next_words(text, 3)
    assert (prediction.prompt, prediction.tokens, prediction.unknown) == (text, tokens, unknown)
    everything = dict(predictor.next_words(text, 99).next)
    assert len(everything) == 7
    assert sum(everything.values()) == pytest.approx(1)
    assert [p for _, p in prediction.next] == sorted(everything.values(), reverse=True)[:3]
    assert dict(prediction.next).items() <= everything.items()
    ids = [1, *predictor.vocabulary.encode(text)]
    logits = predictor.model(torch.tensor([ids]))[0][0, -1].tolist()
    share = math.exp(logits[4]) / sum(map(math.exp, logits))
    assert everything["el"] == pytest.approx(share, rel=1e-5)
    assert prediction.to_dict()["next"][0] == {"word": prediction.next[0][0], "probability": prediction.next[0][1]}


def test_equally_likely_words_come_in_the_order_of_their_ids(predictor: Predictor) -> None:
    with torch.no_grad():
        predictor.model.output.weight.zero_()
        predictor.model.output.bias.zero_()
    words = [word for word, _ in predictor.next_words("el", 7).next]
    assert words == [predictor.vocabulary.label(i) for i in range(7)]


def test_a_prediction_is_explained_by_the_weights_of_its_own_pass(predictor: Predictor) -> None:
    prediction, weights_LHTT = predictor.explain("el gato el", 3)
    assert prediction == predictor.next_words("el gato el", 3)
    assert weights_LHTT.shape == (2, 3, 4, 4)
    assert torch.equal(weights_LHTT, predictor.explain("el gato el", 3)[1])
    shown = predictor.model(torch.tensor([[1, 4, 5, 4]]), return_weights=True)[1]
    assert torch.equal(weights_LHTT[1], shown[1][0])
    assert predictor.explain("", 1)[1].tolist() == [[[[1.0]]] * 3] * 2
