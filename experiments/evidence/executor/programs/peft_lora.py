"""peft's LoRA on a frozen Llama in bf16, in a loop of its own with padded texts and a schedule."""

import peft
import torch
import transformers

import texts
from trl_sft import llama


def train(run):
    texts.quiet()
    vocabulary, length = (32000, 1024) if run.large else (96, 64)
    tokenizer = texts.tokenizer(vocabulary)
    batch = run.batch(4, 12)
    data = [tokenizer(text) for text in texts.words(40 * batch, 4, length, vocabulary)]
    base = llama(run, vocabulary, length)
    if run.checkpoints:
        base.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        base.enable_input_require_grads()
    model = peft.get_peft_model(base.to(run.device, torch.bfloat16), peft.LoraConfig(
        task_type="CAUSAL_LM", r=8, lora_alpha=16, lora_dropout=0.05, target_modules=["q_proj", "v_proj", "down_proj"]))
    collate = transformers.DataCollatorForLanguageModeling(tokenizer, mlm=False)
    loader = torch.utils.data.DataLoader(data, batch, shuffle=True, collate_fn=collate)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    schedule = transformers.get_linear_schedule_with_warmup(optimizer, 3, run.steps)
    run.fit(model, optimizer)
    model.train()
    for step, given in zip(range(run.steps), loader):
        loss = model(**{name: tensor.to(run.device) for name, tensor in given.items()}).loss
        loss.backward()
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        run.loss(loss)
    return model
