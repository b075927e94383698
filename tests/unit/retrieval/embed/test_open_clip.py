from __future__ import annotations

import asyncio
import io
import json
import subprocess
import sys
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from click.testing import CliRunner
from PIL import Image

from court.errors import BadLibrary, BadRequest, CourtError, NotLoaded, Unavailable
from retrieval.build import build_library
from retrieval.embed import clip as ours
from retrieval.embed import clip_weights
from retrieval.embed.builtin import BuiltinEncoder
from retrieval.embed.clip import OpenClipEncoder
from retrieval.embed.clip_names import ClipSource, parse_clip
from retrieval.embed.encoder import EncoderIdentity
from retrieval.library.library import Library
from retrieval.library.sources import Source
from retrieval.open import load_encoder, load_encoder_for, name_of
from serving.cli.main import cli
from serving.settings import Settings
from serving.wiring import open_court
from tests.support.encoders import PlainPictureReader, WordEncoder, png_of

if TYPE_CHECKING:
    import torch

# torch and open_clip are imported where they are used: it takes seconds, and every worker collects every file.
TINY = "tiny-for-tests"
LONG = "tiny-long-for-tests"
CONFIG: dict[str, Any] = {
    "embed_dim": 24,
    "vision_cfg": {"image_size": 32, "layers": 2, "width": 64, "head_width": 32, "patch_size": 8},
    "text_cfg": {"context_length": 16, "vocab_size": 49408, "width": 32, "heads": 2, "layers": 1},
}
RED, BLUE = png_of((250, 20, 20), (10, 10, 10)), png_of((20, 20, 250), (240, 240, 240), (90, 0, 90))


@pytest.fixture(scope="module", autouse=True)
def configs(tmp_path_factory):
    """Registers small models with open_clip by name; their weights are drawn where they are needed."""
    folder = tmp_path_factory.mktemp("configs")
    (folder / f"{TINY}.json").write_text(json.dumps(CONFIG))
    longer = CONFIG | {"text_cfg": CONFIG["text_cfg"] | {"context_length": 300}}
    (folder / f"{LONG}.json").write_text(json.dumps(longer))
    import open_clip

    open_clip.add_model_config(folder)


@pytest.fixture(autouse=True)
def restore_thread_count():
    import torch

    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def weights(seed, model=TINY):
    import open_clip
    import torch

    torch.manual_seed(seed)
    state: dict[str, torch.Tensor] = open_clip.create_model(model).state_dict()
    return state


def save_file(state, path):
    from safetensors.torch import save_file

    save_file(state, path)


@pytest.fixture(scope="module")
def checkpoint(configs, tmp_path_factory):
    path = tmp_path_factory.mktemp("weights") / "tiny.safetensors"
    save_file(weights(1), path)
    return path


@pytest.fixture(scope="module")
def clip(checkpoint):
    return OpenClipEncoder.load(ClipSource(TINY, path=checkpoint), texts="clip", device="cpu", threads=2)


@pytest.fixture(scope="module")
def mixed(checkpoint):
    return OpenClipEncoder.load(ClipSource(TINY, path=checkpoint), device="cpu", threads=2)


def refusal_of(source):
    with pytest.raises(CourtError) as caught:
        OpenClipEncoder.load(source, texts="clip", device="cpu")
    assert source.path is None or str(source.path) not in caught.value.message
    return caught.value


# Names


@pytest.mark.parametrize(
    ("named", "source", "name"),
    [
        ("open_clip:ViT-L-14/openai", ClipSource("ViT-L-14", "openai"), "open_clip:ViT-L-14/openai"),
        ("open_clip:ViT-B-32/LAION2B-s34b-b79k", ClipSource("ViT-B-32", "laion2b_s34b_b79k"), None),
        ("open_clip:ViT-B-32//a/b.pt", ClipSource("ViT-B-32", path=Path("/a/b.pt")), "open_clip:ViT-B-32 (local)"),
        ("open_clip:ViT-B-32/./b.pt", ClipSource("ViT-B-32", path=Path("b.pt")), "open_clip:ViT-B-32 (local)"),
        ("hf-hub:org/name", ClipSource("hf-hub:org/name"), "open_clip:hf-hub:org/name"),
        ("open_clip:hf-hub:org/name", ClipSource("hf-hub:org/name"), "open_clip:hf-hub:org/name"),
        ("local-dir:/a/b", ClipSource("local-dir", path=Path("/a/b")), "open_clip:local-dir (local)"),
    ],
)
def test_encoder_names_are_parsed(named, source, name):
    assert parse_clip(named) == source and name_of(named) == source.name
    assert name is None or source.name == name
    if source.path is None:
        assert parse_clip(source.name) == source  # the name stored in a manifest can be parsed again


@pytest.mark.parametrize(
    "named", ["open_clip:", "open_clip:ViT-B-32", "open_clip:ViT-B-32/", "open_clip:/x", "hf-hub:x", "local-dir:"]
)
def test_incomplete_encoder_names_are_refused(named):
    with pytest.raises(BadRequest) as caught:
        load_encoder(named)
    assert caught.value.reason == "ENCODER_MALFORMED"


def test_unknown_encoder_is_refused():
    with pytest.raises(BadRequest, match="open_clip:MODEL/TAG"):
        load_encoder("clip")
    with pytest.raises(BadRequest, match="--encoder"):
        load_encoder("builtin", texts="clip")


def test_unknown_model_or_tag_is_refused():
    for source in (ClipSource("vit-b32-siglip2", "webli"), ClipSource("ViT-L-14", "no_such"), ClipSource(TINY, "none")):
        refusal = refusal_of(source)
        assert refusal.reason == "ENCODER_UNKNOWN" and "list_pretrained" in refusal.message
        assert source.model in refusal.message


# Weights


def test_missing_files_are_reported_without_a_path(tmp_path):
    assert "no checkpoint" in refusal_of(ClipSource(TINY, path=tmp_path / "none.pt")).message
    assert "open_clip_config.json" in refusal_of(ClipSource("local-dir", path=tmp_path)).message


@pytest.mark.parametrize("suffix", ["safetensors", "pt"])
def test_damaged_weights_are_refused(tmp_path, suffix):
    import torch

    path = tmp_path / f"weights.{suffix}"
    save_file(weights(1), path) if suffix == "safetensors" else torch.save(weights(1), path)
    whole = path.read_bytes()
    for length in (0, 5, 2000, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:length])
        assert refusal_of(ClipSource(TINY, path=path)).reason == "ENCODER_DAMAGED", length


def test_pickled_code_is_not_executed(tmp_path):
    import torch

    class Trap:
        def __reduce__(self):
            return Path.touch, (tmp_path / "sprung",)

    torch.save({"state_dict": Trap()}, tmp_path / "trap.pt")
    assert refusal_of(ClipSource(TINY, path=tmp_path / "trap.pt")).reason == "ENCODER_DAMAGED"
    assert not (tmp_path / "sprung").exists()


def test_weights_of_another_model_or_not_finite_are_refused(tmp_path):
    import torch

    state = weights(1)
    shorter = {name: tensor for name, tensor in state.items() if "ln_final" not in name}
    wider = state | {"visual.proj": torch.zeros(64, 25)}
    more = state | {"something.else": torch.zeros(3)}
    not_finite = state | {"visual.proj": torch.full_like(state["visual.proj"], float("nan"))}
    for number, other in enumerate([shorter, wider, more, not_finite, {"a": torch.zeros(1)}, {}]):
        path = tmp_path / f"{number}.safetensors"
        save_file(other, path)
        assert refusal_of(ClipSource(TINY, path=path)).reason == "ENCODER_DAMAGED", number
    torch.save([1, 2], tmp_path / "list.pt")
    assert refusal_of(ClipSource(TINY, path=tmp_path / "list.pt")).reason == "ENCODER_DAMAGED"


def test_unreachable_or_private_weights_are_reported_with_a_remedy(monkeypatch):
    from huggingface_hub.errors import LocalEntryNotFoundError

    def none(*args, **kwargs):
        raise FileNotFoundError("no file") from LocalEntryNotFoundError("offline")

    monkeypatch.setattr("open_clip.download_pretrained", none)
    monkeypatch.setattr("open_clip.factory.download_pretrained_from_hf", none)
    for source in (ClipSource("ViT-B-32", "openai"), ClipSource("hf-hub:org/name")):
        with pytest.raises(Unavailable, match="HF_HOME") as caught:
            OpenClipEncoder.load(source)
        assert caught.value.reason == "ENCODER_UNREACHABLE"


def test_missing_open_clip_is_reported_with_the_command_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "open_clip", None)
    with pytest.raises(NotLoaded, match=r"memecourt\[clip\]"):
        OpenClipEncoder.load(ClipSource("ViT-B-32", "openai"))


def test_weights_by_tag_bring_their_activation_and_preprocessing(tmp_path, monkeypatch):
    import open_clip
    import torch

    save_file(weights(1), tmp_path / "w.safetensors")
    published = {
        "hf_hub": "org/name/", "quick_gelu": True, "mean": (0.5, 0.5, 0.5), "std": (0.5, 0.5, 0.5),
        "interpolation": "bilinear", "resize_mode": "squash",
    }  # fmt: skip
    monkeypatch.setitem(open_clip.pretrained._PRETRAINED, TINY, {"some_tag": published})
    monkeypatch.setattr("open_clip.download_pretrained", lambda known: str(tmp_path / "w.safetensors"))
    tagged = OpenClipEncoder.load(parse_clip(f"open_clip:{TINY}/Some-Tag"), texts="clip", device="cpu")
    assert tagged.identity.name == f"open_clip:{TINY}/some_tag"
    preprocessing = tagged.identity.preprocessing
    assert preprocessing is not None and (
        preprocessing.resize_mode,
        preprocessing.interpolation,
        preprocessing.mean,
    ) == ("squash", "bilinear", (0.5,) * 3)
    model = open_clip.create_model(TINY, str(tmp_path / "w.safetensors"), force_quick_gelu=True).eval()
    local = OpenClipEncoder.load(ClipSource(TINY, path=tmp_path / "w.safetensors"), texts="clip", device="cpu")
    # A checkpoint by path gets the preprocessing common to all published weights; only the activation is the model's.
    assert local.identity.preprocessing == preprocessing and local.identity.digest != tagged.identity.digest
    with torch.inference_mode():
        expected = model.encode_image(tagged.prepare([RED]), normalize=True)[0].numpy()
    assert tagged.embed_pictures([[RED]])[0] == pytest.approx(expected, abs=1e-5)
    assert np.abs(local.embed_pictures([[RED]])[0] - expected).max() > 1e-4


def test_local_directory_with_its_own_config_is_loaded(tmp_path):
    save_file(weights(1), tmp_path / "open_clip_model.safetensors")
    preprocessing = {"mean": [0.4, 0.4, 0.4], "std": [0.2, 0.2, 0.2], "resize_mode": "longest"}
    (tmp_path / "open_clip_config.json").write_text(json.dumps({"model_cfg": CONFIG, "preprocess_cfg": preprocessing}))
    encoder = load_encoder(f"local-dir:{tmp_path}", texts="clip")
    assert encoder.identity.preprocessing is not None
    assert encoder.identity.preprocessing.mean == (0.4, 0.4, 0.4)
    assert encoder.identity.preprocessing.resize_mode == "longest"
    assert str(tmp_path) not in encoder.identity.model_dump_json()
    (tmp_path / "open_clip_model.safetensors").write_bytes(b"short")
    assert refusal_of(ClipSource("local-dir", path=tmp_path)).reason == "ENCODER_DAMAGED"


# Vectors


def test_picture_vectors_match_open_clip(clip, checkpoint):
    import open_clip
    import torch

    model, _, transform = open_clip.create_model_and_transforms(TINY, str(checkpoint))
    with torch.inference_mode():
        stacked = torch.stack([transform(Image.open(io.BytesIO(png))) for png in (RED, BLUE)])
        red, blue = model.eval().encode_image(stacked, normalize=True).numpy()
    found = clip.embed_pictures([[RED], [BLUE], [RED, BLUE], [RED]])
    assert found.dtype == np.float32 and found.shape == (4, 24) == (4, clip.identity.picture_dim)
    assert found[0] == pytest.approx(red, abs=1e-5) and found[1] == pytest.approx(blue, abs=1e-5)
    assert found[2] == pytest.approx((red + blue) / np.linalg.norm(red + blue), abs=1e-5)
    assert np.array_equal(found[0], found[3])
    assert np.linalg.norm(found, axis=1) == pytest.approx(1, abs=1e-6)
    assert clip.embed_pictures([]).shape == (0, 24)
    with pytest.raises(ValueError, match="picture 1 has no frame"):
        clip.embed_pictures([[RED], []])


def test_batched_pictures_come_back_in_order(clip, monkeypatch):
    monkeypatch.setattr(ours, "BATCH", 4)
    pngs = [png_of((n * 11 % 256, n * 7 % 256, 255 - n), (n, 255 - n, n * 5 % 256)) for n in range(23)]
    together = clip.embed_pictures([[png] for png in pngs])
    alone = np.concatenate([clip.embed_pictures([[png]]) for png in pngs])
    assert together == pytest.approx(alone, abs=1e-5)
    assert np.array_equal(together, clip.embed_pictures([[png] for png in pngs]))
    with ThreadPoolExecutor(4) as pool:
        for found in pool.map(clip.embed_pictures, [[[png] for png in pngs]] * 6):
            assert np.array_equal(found, together)


def test_extremely_long_pictures_are_cropped_to_their_middle(clip):
    def png(width, height):
        out = io.BytesIO()
        Image.linear_gradient("L").resize((width, height)).convert("RGB").save(out, "PNG")
        return out.getvalue()

    for width, height in ((1280, 1), (1, 1280), (1280, 3)):
        assert ours._opened(png(width, height)).size == (min(width, 32 * height), min(height, 32 * width))
        assert np.linalg.norm(clip.embed_pictures([[png(width, height)]])) == pytest.approx(1, abs=1e-6)


def test_clip_text_vectors_match_open_clip_and_truncation_is_reported(clip, checkpoint):
    import open_clip
    import torch

    assert (clip.identity.text_tokens, clip.identity.texts_by, clip.identity.text_dim) == (16, "", 24)
    # Two of the 16 tokens mark beginning and end.
    just, over, long = "word " * 14, "word " * 15, "word " * 40
    found = clip.embed_texts([just, over, "", "A cat  on a MAT", long, "a cat on a mat"])
    assert found.cut == (False, True, False, False, True, False)
    assert not found.vectors[2].any() and np.array_equal(found.vectors[3], found.vectors[5])
    assert found.vectors[0] == pytest.approx(found.vectors[4], abs=1e-5)
    model = open_clip.create_model(TINY, str(checkpoint)).eval()
    with torch.inference_mode():
        expected = model.encode_text(open_clip.get_tokenizer(TINY)(["a cat on a mat"]), normalize=True)[0].numpy()
    assert found.vectors[3] == pytest.approx(expected, abs=1e-5)
    assert clip.embed_texts([]).vectors.shape == (0, 24)


def test_texts_go_to_the_sentence_encoder_if_clip_reads_too_few_tokens(mixed, clip):
    builtin = BuiltinEncoder()
    assert mixed.identity.texts_by == builtin.identity.name and mixed.identity.text_tokens == 256
    assert f"{mixed.identity}".startswith(f"open_clip:{TINY} (local) + builtin/all-MiniLM-L6-v2 (sha256:")
    texts = ["a cat on a mat", "word " * 300, ""]
    assert np.array_equal(mixed.embed_texts(texts).vectors, builtin.embed_texts(texts).vectors)
    assert mixed.embed_texts(texts).cut == (False, True, False)
    assert np.array_equal(mixed.embed_pictures([[RED]]), clip.embed_pictures([[RED]]))
    assert mixed.floors.text == builtin.floors.text and mixed.floors.picture is None
    assert clip.floors.text is clip.floors.picture is None


def test_clip_with_a_long_context_embeds_texts_itself(tmp_path):
    save_file(weights(1, LONG), tmp_path / "long.safetensors")
    encoder = OpenClipEncoder.load(ClipSource(LONG, path=tmp_path / "long.safetensors"), device="cpu")
    assert (encoder.identity.text_tokens, encoder.identity.texts_by) == (300, "")


def test_hugging_face_tokenizer_reports_truncation(checkpoint, tmp_path, monkeypatch):
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    plain = Tokenizer(models.WordLevel({"[PAD]": 0, "[END]": 1, "[UNK]": 2, "word": 3}, unk_token="[UNK]"))
    plain.pre_tokenizer = pre_tokenizers.Whitespace()
    plain.post_processor = processors.TemplateProcessing(single="$A [END]", special_tokens=[("[END]", 1)])
    PreTrainedTokenizerFast(
        tokenizer_object=plain, pad_token="[PAD]", eos_token="[END]", unk_token="[UNK]"
    ).save_pretrained(tmp_path)
    config = CONFIG | {"text_cfg": CONFIG["text_cfg"] | {"hf_tokenizer_name": "named/elsewhere"}}
    (tmp_path / "open_clip_config.json").write_text(json.dumps({"model_cfg": config}))
    save_file(weights(1), tmp_path / "open_clip_model.safetensors")
    encoder = load_encoder(f"local-dir:{tmp_path}", texts="clip")
    assert encoder.embed_texts(["word " * 15, "word " * 16, "word"]).cut == (False, True, False)


# Identity


def test_identity_depends_on_the_weights_that_are_used(clip, checkpoint, tmp_path):
    import torch

    again = OpenClipEncoder.load(ClipSource(TINY, path=checkpoint), texts="clip", device="cpu")
    assert again.identity == clip.identity
    # The same tensors as a training checkpoint, in another file format.
    torch.save({"epoch": 3, "state_dict": {f"module.{k}": v for k, v in weights(1).items()}}, tmp_path / "same.pt")
    same = OpenClipEncoder.load(ClipSource(TINY, path=tmp_path / "same.pt"), texts="clip", device="cpu")
    assert same.identity == clip.identity
    assert EncoderIdentity.model_validate_json(clip.identity.model_dump_json()) == clip.identity
    save_file(weights(2), tmp_path / "other.safetensors")
    other = OpenClipEncoder.load(ClipSource(TINY, path=tmp_path / "other.safetensors"), texts="clip", device="cpu")
    assert other.identity.digest != clip.identity.digest
    # A change of one value in the picture half.
    state = weights(1)
    state["visual.proj"][0, 0] += 1e-3
    save_file(state, tmp_path / "touched.safetensors")
    touched = OpenClipEncoder.load(ClipSource(TINY, path=tmp_path / "touched.safetensors"), texts="clip", device="cpu")
    assert touched.identity.digest != clip.identity.digest


def test_unused_text_half_does_not_affect_the_identity(mixed, tmp_path):
    state = weights(1)
    state["text_projection"] += 1
    save_file(state, tmp_path / "text.safetensors")
    same = OpenClipEncoder.load(ClipSource(TINY, path=tmp_path / "text.safetensors"), device="cpu")
    assert same.identity == mixed.identity


def test_choosing_an_encoder_imports_no_heavy_package():
    code = (
        "import sys; import retrieval.open, retrieval.embed.clip_names\n"
        "print(sorted({'torch', 'open_clip', 'timm', 'transformers'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "[]"


# Libraries


def meme_source(folder, n=30):
    lines = []
    for number in range(n):
        (folder / f"{number}.png").write_bytes(
            png_of((number * 8, 40, 250 - number * 8), (number * 3, number * 5, 99), (200, number * 6, 7))
        )
        label = "harmful" if number % 2 else "not_harmful"
        lines.append(f"m{number},{label},note number {number} from Blueland,{number}.png\n")
    (folder / "memes.csv").write_text("id,label,text,image\n" + "".join(lines))
    return Source(folder / "memes.csv", pictures=folder)


def test_library_is_searched_only_with_the_encoder_that_built_it(tmp_path, checkpoint, mixed):
    place = tmp_path / "library"
    library, report = asyncio.run(
        build_library(place, [meme_source(tmp_path)], name="l", encoder=mixed, picture_reader=PlainPictureReader())
    )
    assert report.added == 30 and library.manifest.counts.with_picture == 30
    assert library.manifest.encoder == mixed.identity
    pictures = library.rows[:, mixed.identity.text_dim :]
    similar = pictures @ pictures.T
    assert library.manifest.tuning.floors.text == mixed.floors.text
    between = np.quantile(similar[~np.eye(30, dtype=bool)], [0.94, 0.96])
    assert between[0] - 1e-3 <= library.manifest.tuning.floors.picture <= between[1] + 1e-3

    named = f"open_clip:{TINY}/{checkpoint}"
    assert load_encoder_for(place, named).identity == mixed.identity
    with pytest.raises(BadLibrary, match="--encoder") as unnamed:
        load_encoder_for(place)
    assert unnamed.value.reason == "ENCODER_NOT_NAMED" and str(tmp_path) not in unnamed.value.message
    with pytest.raises(BadLibrary) as another:
        load_encoder_for(place, "builtin")
    assert another.value.reason == "LIBRARY_FOREIGN"
    # The same name with other weights is detected when the library is opened.
    save_file(weights(2), tmp_path / "other.safetensors")
    other = load_encoder_for(place, f"open_clip:{TINY}/{tmp_path}/other.safetensors")
    with pytest.raises(BadLibrary) as foreign:
        Library.open(place, other.identity)
    assert foreign.value.reason == "LIBRARY_FOREIGN"


@pytest.mark.slow
def test_library_of_the_builtin_encoder_needs_no_encoder_named(tmp_path):
    builtin = BuiltinEncoder()
    asyncio.run(build_library(tmp_path / "library", [meme_source(tmp_path)], name="l", encoder=builtin))
    for named in (None, "builtin", "builtin/all-MiniLM-L6-v2"):
        assert load_encoder_for(tmp_path / "library", named).identity == builtin.identity
    assert load_encoder_for(None).identity == builtin.identity
    with pytest.raises(BadLibrary) as foreign:  # before any download
        load_encoder_for(tmp_path / "library", "open_clip:ViT-L-14/openai")
    assert foreign.value.reason == "LIBRARY_FOREIGN"


@pytest.mark.slow
def test_published_weights_named_by_a_library_are_loaded(tmp_path, checkpoint, monkeypatch):
    import open_clip

    monkeypatch.setitem(open_clip.pretrained._PRETRAINED, TINY, {"some_tag": {"hf_hub": "org/name/"}})
    monkeypatch.setattr("open_clip.download_pretrained", lambda known: str(checkpoint))
    for texts, by in (("clip", ""), ("auto", "builtin/all-MiniLM-L6-v2")):
        encoder = load_encoder(f"open_clip:{TINY}/some_tag", texts=texts)  # type: ignore[arg-type]
        place = tmp_path / texts
        asyncio.run(build_library(place, [meme_source(tmp_path)], name="l", encoder=encoder))
        again = load_encoder_for(place)
        assert again.identity == encoder.identity and again.identity.texts_by == by


@pytest.mark.slow
def test_command_builds_extends_and_searches_a_library_with_clip(tmp_path, checkpoint, monkeypatch):
    monkeypatch.setenv("MEMECOURT_HOME", str(tmp_path / "home"))
    meme_source(tmp_path)
    named, place = f"open_clip:{TINY}/{checkpoint}", str(tmp_path / "library")
    build = ["precedents", "build", place, str(tmp_path / "memes.csv"), "--pictures", str(tmp_path)]
    # Weights of another model must leave nothing behind.
    bad = CliRunner().invoke(cli, [*build, "--encoder", f"open_clip:ViT-B-32/{checkpoint}"])
    assert bad.exit_code == 1 and "can't load open_clip:ViT-B-32" in bad.output and not (tmp_path / "library").exists()
    built = CliRunner().invoke(cli, [*build, "--encoder", named, "--text-encoder", "clip"])
    assert built.exit_code == 0, built.output
    shown = CliRunner().invoke(cli, ["precedents", "info", "--library", place])
    assert f"encoder      open_clip:{TINY} (local) (sha256:" in shown.output
    (tmp_path / "more.csv").write_text("id,label,text\nnew,harmful,another note from Blueland\n")
    added = CliRunner().invoke(cli, ["precedents", "add", place, str(tmp_path / "more.csv"), "--encoder", named])
    assert added.exit_code == 0, added.output
    search = ["precedents", "search", "--library", place, "--picture", str(tmp_path / "7.png"), "--json"]
    monkeypatch.setenv("MEMECOURT_ENCODER", named)
    found = CliRunner().invoke(cli, search)
    assert found.exit_code == 0, found.output
    assert json.loads(found.stdout.splitlines()[-1])["exhibits"][0]["id"] == "m7"
    monkeypatch.delenv("MEMECOURT_ENCODER")
    assert "ENCODER" not in CliRunner().invoke(cli, search).output
    assert CliRunner().invoke(cli, search).exit_code == 1


def test_court_loads_the_encoder_its_library_names(tmp_path, checkpoint, mixed):
    place = tmp_path / "library"
    asyncio.run(build_library(place, [meme_source(tmp_path)], name="l", encoder=mixed))

    async def opened(**options):
        settings = Settings(home=tmp_path / "home", library=place, picture_workers=1, text_workers=1, **options)
        async with open_court(settings, read_text=False) as executor:
            return executor.court.finder.library.encoder

    assert asyncio.run(opened(encoder=f"open_clip:{TINY}/{checkpoint}")) == str(mixed.identity)
    with pytest.raises(BadLibrary, match="--encoder"):
        asyncio.run(opened())
    with pytest.raises(BadLibrary, match="asked for"):
        asyncio.run(opened(encoder="builtin"))


def test_next_batch_is_decoded_while_one_is_embedded(tmp_path):
    from retrieval.library.picture_import import Wanted, embed_pictures_of
    from retrieval.library.readers import read_source
    from retrieval.library.thumbnails import ThumbnailWriter

    read, decoded_before = 0, []

    class Reader(PlainPictureReader):
        async def read(self, data):
            nonlocal read
            read += 1
            return await super().read(data)

    class Slow(WordEncoder):
        def embed_pictures(self, pictures):
            import time

            limit = time.monotonic() + 60
            while read < 64 and time.monotonic() < limit:  # the second batch is decoded before this one is done
                time.sleep(0.01)
            decoded_before.append(read)
            return super().embed_pictures(pictures)

    source = meme_source(tmp_path, 80)
    wanted = [Wanted(row, tmp_path) for row in read_source(source).good]
    progress: list[tuple[int, int]] = []
    embedded, problems = asyncio.run(
        embed_pictures_of(wanted, Reader(), Slow(), ThumbnailWriter(tmp_path), lambda *at: progress.append(at))
    )
    assert len(embedded) == 80 and not problems and decoded_before[0] >= 64
    assert progress == [(32, 80), (64, 80), (80, 80)]
    places = [embedded[place].kept.offset for place in range(80)]
    assert places == sorted(places)


def test_weights_digest_covers_names_shapes_and_values():
    import torch

    one, two = torch.nn.Linear(3, 2), torch.nn.Linear(3, 2)
    two.load_state_dict(one.state_dict())
    assert clip_weights.weights_digest({"a": one}) == clip_weights.weights_digest({"a": two})
    assert clip_weights.weights_digest({"a": one}) != clip_weights.weights_digest({"b": one})
    with torch.no_grad():
        two.bias += 1
    assert clip_weights.weights_digest({"a": one}) != clip_weights.weights_digest({"a": two})


def test_gpu_convolutions_are_exact_and_settings_are_restored():
    import torch

    before = torch.backends.cudnn.allow_tf32, torch.backends.cudnn.deterministic
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with ours._exactly(torch.device("cuda")):
            assert not torch.backends.cudnn.allow_tf32 and torch.backends.cudnn.deterministic
    assert (torch.backends.cudnn.allow_tf32, torch.backends.cudnn.deterministic) == before


@pytest.mark.parametrize("mode", ["shortest", "longest", "squash"])
def test_pictures_are_prepared_like_in_open_clip(clip, monkeypatch, mode):
    import torch
    from open_clip.transform import PreprocessCfg, image_transform_v2

    assert clip.identity.preprocessing is not None
    preprocessing = clip.identity.preprocessing.model_copy(update={"resize_mode": mode, "fill_color": 7})
    scale, normalise = ours._transform(preprocessing)
    monkeypatch.setattr(clip, "_scale", scale)
    monkeypatch.setattr(clip, "_normalise", normalise)
    theirs = image_transform_v2(PreprocessCfg(**preprocessing.model_dump()), is_train=False)
    noise = np.random.default_rng(5).integers(0, 256, (77, 50, 3), dtype=np.uint8)
    out = io.BytesIO()
    Image.fromarray(noise).save(out, "PNG")
    pngs = [RED, BLUE, out.getvalue()]
    expected = torch.stack([theirs(Image.open(io.BytesIO(png))) for png in pngs])
    assert torch.equal(clip.prepare(pngs), expected)
