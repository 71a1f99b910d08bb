"""The node that gives pictures the traces of video compression: models of videos expect them in a first frame."""

from __future__ import annotations

import io as bytes_io

import torch
from torch import Tensor

from comfy_api.latest import io
from nodes.sound_files import require_av

# H.264 halves the colours' resolution, so both sides are even.
EVEN = 2


def compressed(image: Tensor, crf: int) -> Tensor:
    """A picture [height, width, 3] in 0..1 as a video of one frame at that constant rate factor shows it; 0 leaves it
    as it is, 51 is the most. An odd last row or column is cut off. Source: Lightricks' LTX-Video (Apache-2.0).
    """
    if crf == 0 or min(image.shape[:2]) < EVEN:
        return image
    import av

    height, width = (n // EVEN * EVEN for n in image.shape[:2])
    pixels = (image[:height, :width, :3] * 255.0).clamp(0, 255).byte().cpu().numpy()
    file = bytes_io.BytesIO()
    with av.open(file, "w", format="mp4") as container:
        stream = container.add_stream("libx264", rate=1, options={"crf": str(crf), "preset": "veryfast"})
        stream.height, stream.width, stream.pix_fmt = height, width, "yuv420p"
        frame = av.VideoFrame.from_ndarray(pixels, format="rgb24").reformat(format="yuv420p")
        container.mux(stream.encode(frame))
        container.mux(stream.encode())
    file.seek(0)
    with av.open(file) as container:
        shown = next(container.decode(video=0)).to_ndarray(format="rgb24")
    return (torch.from_numpy(shown).float() / 255.0).to(image.device)


class LTXVPreprocess(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="LTXVPreprocess",
            display_name="LTXV Preprocess",
            category="video/preprocessors",
            description="Compresses each image like a frame of a video, as LTX Video saw them when it was trained.",
            inputs=[
                io.Image.Input("image", tooltip="Images to compress."),
                io.Int.Input(
                    "img_compression",
                    default=35,
                    min=0,
                    max=100,
                    tooltip="How strongly, as a rate factor of H.264; 0 is not at all, 51 the most there is.",
                ),
            ],
            outputs=[io.Image.Output(display_name="output_image")],
        )

    @classmethod
    def execute(cls, image: Tensor, img_compression: int) -> io.NodeOutput:
        require_av()
        return io.NodeOutput(torch.stack([compressed(picture, img_compression) for picture in image]))


NODES = {"comfy_extras.nodes_lt": [LTXVPreprocess]}
