"""A U-Net of diffusers that learns to remove noise, in the loop of its example train_unconditional."""

import diffusers
import torch
from diffusers.optimization import get_cosine_schedule_with_warmup
from diffusers.training_utils import EMAModel
from torch.nn import functional as F


def train(run):
    diffusers.utils.logging.disable_progress_bar()
    side, batch = 64 if run.large else 16, run.batch(4, 32)
    sizes = {"block_out_channels": (128, 128, 256, 256, 512, 512),
             "down_block_types": ("DownBlock2D",) * 4 + ("AttnDownBlock2D", "DownBlock2D"),
             "up_block_types": ("UpBlock2D", "AttnUpBlock2D") + ("UpBlock2D",) * 4} if run.large else {
                 "block_out_channels": (16, 32), "down_block_types": ("DownBlock2D", "AttnDownBlock2D"),
                 "up_block_types": ("AttnUpBlock2D", "UpBlock2D"), "norm_num_groups": 8, "attention_head_dim": 8}
    model = diffusers.UNet2DModel(sample_size=side, layers_per_block=2, **sizes).to(run.device)
    if run.checkpoints:
        model.enable_gradient_checkpointing()
    noises = diffusers.DDPMScheduler(num_train_timesteps=1000)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, betas=(0.95, 0.999), weight_decay=1e-6)
    schedule = get_cosine_schedule_with_warmup(optimizer, 5, run.steps)
    average = EMAModel(model.parameters(), decay=0.9999, use_ema_warmup=True, model_cls=diffusers.UNet2DModel, model_config=model.config)
    draw = torch.Generator().manual_seed(1)
    run.fit(model, optimizer)
    model.train()
    for step in range(run.steps):
        images = torch.randn(batch if step % 10 != 9 else max(1, batch // 3), 3, side, side, generator=draw).to(run.device)
        noise = torch.randn(images.shape, device=run.device)
        times = torch.randint(0, noises.config.num_train_timesteps, (len(images),), device=run.device).long()
        noisy = noises.add_noise(images, noise, times)
        with torch.autocast(run.device, torch.bfloat16):
            loss = F.mse_loss(model(noisy, times).sample.float(), noise.float())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        average.step(model.parameters())
        run.loss(loss)
    return model
