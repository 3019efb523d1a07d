"""transformers' Trainer on BERT, with pairs of sentences that each batch pads to its longest, as its example run_glue."""

import random
import tempfile

import datasets
import transformers

import texts


def train(run):
    texts.quiet()
    vocabulary, most = (30522, 256) if run.large else (96, 40)
    tokenizer = texts.tokenizer(vocabulary)
    draw = random.Random(2)
    count = 40 * run.batch(4, 24)
    raw = datasets.Dataset.from_dict({"one": texts.words(count, 4, most, vocabulary), "other": texts.words(count, 4, most, vocabulary, 5),
                                      "label": [draw.randrange(3) for _ in range(count)]})
    data = raw.map(lambda examples: tokenizer(examples["one"], examples["other"], max_length=2 * most, truncation=True), batched=True)
    data = data.remove_columns(["one", "other"])
    sizes = {} if run.large else {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 96}
    model = transformers.BertForSequenceClassification(transformers.BertConfig(vocab_size=vocabulary, num_labels=3, **sizes))
    with tempfile.TemporaryDirectory() as folder:
        return texts.trained(transformers.Trainer(
            model, texts.arguments(run, folder, per_device_train_batch_size=run.batch(4, 24), eval_strategy="steps", eval_steps=10),
            train_dataset=data, eval_dataset=data.select(range(20)), processing_class=tokenizer,
            data_collator=transformers.DataCollatorWithPadding(tokenizer, pad_to_multiple_of=None), callbacks=run.callbacks()))
