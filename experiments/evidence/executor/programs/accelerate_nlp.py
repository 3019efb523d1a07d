"""accelerate's own loop on BERT, as its nlp_example: pairs of sentences, gradients of two batches, an evaluation after each epoch."""

import accelerate
import torch
import transformers

import texts


def train(run):
    texts.quiet()
    vocabulary, most = (30522, 192) if run.large else (96, 40)
    batch = run.batch(4, 32)
    tokenizer = texts.tokenizer(vocabulary)
    pairs = list(zip(texts.words(22 * batch, 4, most, vocabulary), texts.words(22 * batch, 4, most, vocabulary, 5)))
    data = [{**tokenizer(*pair, max_length=2 * most, truncation=True), "labels": at % 2} for at, pair in enumerate(pairs)]

    def collate(examples):
        return tokenizer.pad(examples, padding="longest", return_tensors="pt")

    accelerate.state.AcceleratorState._reset_state(True)
    accelerator = accelerate.Accelerator(cpu=run.device == "cpu", mixed_precision="bf16", gradient_accumulation_steps=2)
    accelerate.utils.set_seed(4)
    loader = torch.utils.data.DataLoader(data, batch, shuffle=True, collate_fn=collate, drop_last=True)
    other = torch.utils.data.DataLoader(data[:batch + 3], 2 * batch, collate_fn=collate)
    sizes = {} if run.large else {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 96}
    model = transformers.BertForSequenceClassification(transformers.BertConfig(vocab_size=vocabulary, **sizes)).to(accelerator.device)
    if run.checkpoints:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-4)
    schedule = transformers.get_linear_schedule_with_warmup(optimizer, 5, run.steps)
    model, optimizer, loader, other, schedule = accelerator.prepare(model, optimizer, loader, other, schedule)
    run.fit(model, optimizer)
    updates = 0
    while updates < run.steps:
        model.train()
        for given in loader:
            with accelerator.accumulate(model):
                loss = model(**given).loss
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                    updates += 1
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
            run.loss(loss)
            if updates == run.steps:
                break
        model.eval()
        for given in other:
            with torch.no_grad():
                run.loss(model(**given).loss)
    return model
