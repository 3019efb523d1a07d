"""transformers' Trainer on GPT-2, with texts that are joined and cut into blocks, as its example run_clm."""

import tempfile

import datasets
import transformers

import texts


def train(run):
    texts.quiet()
    vocabulary, block = (50257, 1024) if run.large else (96, 48)
    tokenizer = texts.tokenizer(vocabulary)
    raw = datasets.Dataset.from_dict({"text": texts.words(80 if not run.large else 300, block // 4, block, vocabulary)})
    tokens = raw.map(lambda examples: tokenizer(examples["text"]), batched=True, remove_columns=["text"])

    def group(examples):
        joined = {name: sum(lists, []) for name, lists in examples.items()}
        whole = len(joined["input_ids"]) // block * block
        made = {name: [ids[at:at + block] for at in range(0, whole, block)] for name, ids in joined.items()}
        return {**made, "labels": [list(ids) for ids in made["input_ids"]]}

    blocks = tokens.map(group, batched=True)
    sizes = {"n_embd": 768, "n_layer": 12, "n_head": 12} if run.large else {"n_embd": 32, "n_layer": 4, "n_head": 4}
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(vocab_size=vocabulary, n_positions=block, use_cache=False, **sizes))
    with tempfile.TemporaryDirectory() as folder:
        return texts.trained(transformers.Trainer(
            model, texts.arguments(run, folder, per_device_train_batch_size=run.batch(4, 8), gradient_accumulation_steps=2,
                                   per_device_eval_batch_size=8, eval_strategy="steps", eval_steps=15),
            train_dataset=blocks, eval_dataset=blocks.select(range(9)), processing_class=tokenizer,
            data_collator=transformers.default_data_collator, callbacks=run.callbacks()))
