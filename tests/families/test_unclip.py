"""unCLIP: which file is one, and what its network sees of pictures."""

import pytest
import torch

import comfy.sd
from comfy.denoisers.unclip import CLIPEmbeddingNoiseAugmentation, cosine_alphas
from comfy.supported_models import SD21UnclipH
from tests.families.test_clip_vision import CLIP as VISION
from tests.families.test_clip_vision import to_open_clip, weights
from tests.families.test_detection import published


class Seen:
    def __init__(self, *vectors):
        self.image_embeds = torch.stack(vectors)


def model():
    config = SD21UnclipH({"disable_unet_model_creation": True, "in_channels": 4, "adm_in_channels": 12})
    return config.base_model(config)


def picture(seen, strength=1.0, noise=0.0):
    return {"clip_vision_output": seen, "strength": strength, "noise_augmentation": noise}


RUN = {"device": torch.device("cpu"), "seed": 5}


def test_no_picture_is_zeros():
    assert torch.equal(model().encode_adm(**RUN), torch.zeros(1, 12))


def test_vector_then_level():
    vector = torch.arange(6.0)
    one = model().encode_adm(**RUN, unclip_conditioning=[picture(Seen(vector))])
    # At level 0 nearly nothing is added; its sinusoids are cos 0 and sin 0.
    assert torch.allclose(one[0, :6], vector, atol=0.05)
    assert one[0, 6:].tolist() == [1, 1, 1, 0, 0, 0]
    half = model().encode_adm(**RUN, unclip_conditioning=[picture(Seen(vector), strength=0.5)])
    assert torch.allclose(half, one * 0.5)


def test_noise_follows_the_seed_and_grows():
    vector = torch.zeros(6)

    def blurred(noise, seed=20):
        run = {**RUN, "seed": seed}
        return model().encode_adm(**run, unclip_conditioning=[picture(Seen(vector), noise=noise)])[:, :6]

    assert torch.equal(blurred(0.5), blurred(0.5)) and not torch.equal(blurred(0.5), blurred(0.5, seed=21))
    assert blurred(0.1).norm() < blurred(0.5).norm() < blurred(1.0).norm()


def test_several_pictures_are_mixed():
    first, second = torch.ones(6), torch.full((6,), 3.0)
    mixed = model().encode_adm(
        **RUN, unclip_noise_augment_merge=0.0,
        unclip_conditioning=[picture(Seen(first)), picture(Seen(second), strength=0.5)],
    )  # fmt: skip
    assert mixed.shape == (1, 12) and torch.allclose(mixed[0, :6], first + 0.5 * second, atol=0.1)


def test_blur_is_in_units_of_the_datas_spread():
    blur = CLIPEmbeddingNoiseAugmentation(4)
    blur.data_mean, blur.data_std = torch.full((1, 4), 7.0), torch.full((1, 4), 0.1)
    vector, _ = blur(torch.full((1, 4), 7.0), 999, seed=0)
    noise = torch.randn(1, 4, generator=torch.Generator().manual_seed(0))
    assert torch.allclose(vector, 7.0 + 0.1 * noise, atol=1e-3)
    alphas = cosine_alphas()
    assert alphas[0] > 0.999 and alphas[-1] < 1e-4 and (alphas.diff() < 0).all()


@pytest.mark.parametrize("width, family", [(1024, "SD21UnclipH"), (768, "SD21UnclipL")])
def test_checkpoint(width, family):
    sd = published("sd21_v")
    net = "model.diffusion_model.label_emb.0."
    for key, shape in {
        "0.weight": (1280, 2 * width),
        "0.bias": (1280,),
        "2.weight": (1280, 1280),
        "2.bias": (1280,),
    }.items():
        sd[net + key] = torch.empty(shape, device="meta", dtype=torch.float16)
    sd["noise_augmentor.data_mean"] = torch.full((1, width), 2.0)
    sd["noise_augmentor.data_std"] = torch.full((1, width), 3.0)
    sd |= {f"embedder.model.{k}": v for k, v in to_open_clip(weights(VISION)).items()}
    loaded, _, _, vision = comfy.sd.load_state_dict_guess_config(sd, output_clipvision=True)
    assert type(loaded.model.model_config).__name__ == family and type(loaded.model).__name__ == "SD21UNCLIP"
    assert loaded.model.noise_augmentor.data_mean.shape == (1, width)
    assert loaded.model.noise_augmentor.data_std[0, 0] == 3.0
    assert vision.encode_image(torch.zeros(1, 16, 16, 3)).image_embeds.shape == (1, 24)
