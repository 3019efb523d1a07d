"""TRL's DPOTrainer on a Llama and a frozen copy of it, with chosen and rejected answers of drawn lengths."""

import copy
import tempfile

import datasets
import trl

import texts
from trl_sft import llama


def train(run):
    texts.quiet()
    vocabulary, length = (32000, 768) if run.large else (96, 64)
    tokenizer = texts.tokenizer(vocabulary)
    count = 40 * run.batch(3, 4)
    data = datasets.Dataset.from_dict({name: [" " + text for text in texts.words(count, 2, length // 2, vocabulary, at)]
                                       for at, name in enumerate(("prompt", "chosen", "rejected"))})
    model = llama(run, vocabulary, length, num_hidden_layers=12)
    with tempfile.TemporaryDirectory() as folder:
        return texts.trained(trl.DPOTrainer(
            model, copy.deepcopy(model),
            texts.arguments(run, folder, trl.DPOConfig, per_device_train_batch_size=run.batch(3, 4), max_length=length),
            train_dataset=data, processing_class=tokenizer, callbacks=run.callbacks()))
