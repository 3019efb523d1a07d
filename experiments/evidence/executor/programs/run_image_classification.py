"""transformers' Trainer on a ViT, with images that are cropped and turned as they are read, as its example run_image_classification."""

import random
import tempfile

import numpy
import torch
import transformers

import texts


class Images(torch.utils.data.Dataset):
    def __init__(self, count, side):
        draw = numpy.random.default_rng(1)
        self.images = draw.integers(0, 256, (64, 3, side + side // 8, side + side // 8), dtype=numpy.uint8)
        self.count, self.side = count, side

    def __len__(self):
        return self.count

    def __getitem__(self, at):
        top, left = random.randrange(self.side // 8), random.randrange(self.side // 8)
        image = self.images[at % 64, :, top:top + self.side, left:left + self.side]
        image = image[:, :, ::-1].copy() if random.random() < 0.5 else image
        return {"pixel_values": torch.from_numpy(image).float().div(127.5).sub(1), "label": at % 10}


def collate(examples):
    return {"pixel_values": torch.stack([e["pixel_values"] for e in examples]), "labels": torch.tensor([e["label"] for e in examples])}


def train(run):
    texts.quiet()
    side, batch = 224 if run.large else 32, run.batch(16, 96)
    sizes = {} if run.large else {"image_size": 32, "patch_size": 8, "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4,
                                  "intermediate_size": 96}
    model = transformers.ViTForImageClassification(transformers.ViTConfig(num_labels=10, **sizes))
    with tempfile.TemporaryDirectory() as folder:
        return texts.trained(transformers.Trainer(
            model, texts.arguments(run, folder, per_device_train_batch_size=batch, per_device_eval_batch_size=batch,
                                   eval_strategy="epoch", remove_unused_columns=False, label_smoothing_factor=0.1),
            train_dataset=Images(int(11.5 * batch), side), eval_dataset=Images(batch + 1, side), data_collator=collate,
            callbacks=run.callbacks()))
