"""A ConvNeXt in timm's training loop: mixup, stochastic depth, label smoothing, a moving average of the weights, channels last."""

import numpy
import timm
import timm.data
import timm.loss
import timm.optim
import timm.scheduler
import timm.utils
import torch


def train(run):
    side, batch = 224 if run.large else 32, run.batch(16, 128)
    options = {} if run.large else {"depths": (1, 1, 2, 1), "dims": (8, 16, 32, 32)}
    model = timm.create_model("convnext_tiny", num_classes=10, drop_path_rate=0.1, drop_rate=0.1, **options).to(run.device)
    model = model.to(memory_format=torch.channels_last)
    if run.checkpoints:
        model.set_grad_checkpointing()
    average = timm.utils.ModelEmaV3(model, decay=0.99)
    optimizer = timm.optim.create_optimizer_v2(model, opt="adamw", lr=1e-3, weight_decay=0.05, layer_decay=0.8)
    schedule, epochs = timm.scheduler.create_scheduler_v2(optimizer, sched="cosine", num_epochs=3, warmup_epochs=1, updates_per_epoch=10)
    mixup = timm.data.Mixup(mixup_alpha=0.8, cutmix_alpha=1.0, label_smoothing=0.1, num_classes=10)
    of_loss = timm.loss.SoftTargetCrossEntropy()
    draw, updates = torch.Generator().manual_seed(1), 0
    torch.manual_seed(2)
    numpy.random.seed(2)
    meter = timm.utils.AverageMeter()
    run.fit(model, optimizer)
    for epoch in range(epochs):
        model.train()
        for at in range(-(-run.steps // epochs)):
            x = torch.randn(batch, 3, side, side, generator=draw).to(run.device).contiguous(memory_format=torch.channels_last)
            y = torch.randint(10, (batch,), generator=draw).to(run.device)
            x, y = mixup(x, y)
            optimizer.zero_grad()
            with torch.autocast(run.device, torch.bfloat16, enabled=run.device == "cuda"):
                loss = of_loss(model(x), y)
            loss.backward()
            timm.utils.dispatch_clip_grad(model.parameters(), 1.0, "norm")
            optimizer.step()
            updates += 1
            average.update(model, step=updates)
            meter.update(loss.item(), batch)
            run.loss(loss)
            schedule.step_update(updates, meter.avg)
        model.eval()
        with torch.no_grad():
            run.loss(average(x).float().sum())
        schedule.step(epoch + 1)
    return model
