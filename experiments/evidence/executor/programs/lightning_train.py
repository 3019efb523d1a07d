"""Lightning's Trainer on a ResNet of torchvision, with a validation, clipped gradients and bf16."""

import logging
import tempfile
import warnings

import lightning
import torch
import torchvision
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint


class Module(lightning.LightningModule):
    def __init__(self, run, net):
        super().__init__()
        self.net, self.run = net, run
        if run.checkpoints:
            for stage in net.layer1, net.layer2, net.layer3, net.layer4:
                for block in stage:
                    block.forward = lambda x, plain=block.forward: checkpoint(plain, x, use_reentrant=False)

    def forward(self, x):
        return self.net(x)

    def training_step(self, batch, index):
        x, y = batch
        loss = F.cross_entropy(self(x), y)
        self.log("loss", loss)
        self.run.loss(loss)
        return loss

    def validation_step(self, batch, index):
        x, y = batch
        self.log("validation", F.cross_entropy(self(x), y))
        self.run.loss(F.cross_entropy(self(x), y))

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)
        return {"optimizer": optimizer, "lr_scheduler": torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)}


class Images(torch.utils.data.Dataset):
    def __init__(self, count, side):
        self.count, self.side = count, side

    def __len__(self):
        return self.count

    def __getitem__(self, at):
        return torch.randn(3, self.side, self.side, generator=torch.Generator().manual_seed(at % 50)), at % 10


def train(run):
    side, batch = 224 if run.large else 48, run.batch(48, 96)
    make = torchvision.models.resnet50 if run.large else torchvision.models.resnet18
    module = Module(run, make(weights=None, num_classes=10))
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        lightning.seed_everything(4, verbose=False)
        trainer = lightning.Trainer(accelerator="gpu" if run.device == "cuda" else "cpu", devices=1, max_steps=run.steps, logger=False,
                                    precision="bf16-mixed" if run.device == "cuda" else "32-true", gradient_clip_val=1.0,
                                    enable_progress_bar=False, enable_model_summary=False, enable_checkpointing=False,
                                    default_root_dir=folder, callbacks=run.callbacks("lightning"), num_sanity_val_steps=0)
        trainer.fit(module, torch.utils.data.DataLoader(Images(int(11.5 * batch), side), batch, shuffle=True),
                    torch.utils.data.DataLoader(Images(batch + 1, side), batch))
    return module
