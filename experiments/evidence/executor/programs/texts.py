"""Texts of drawn words, and a tokenizer for them that is made here."""

import random

import datasets
import tokenizers
import transformers


def words(count, least, most, vocabulary, seed=1):
    """Returns texts of `least` to `most` words."""
    draw = random.Random(seed)
    return [" ".join(f"w{draw.randrange(vocabulary - 4)}" for _ in range(draw.randint(least, most))) for _ in range(count)]


def tokenizer(vocabulary):
    """Returns a tokenizer of whole words."""
    known = {name: at for at, name in enumerate(["<pad>", "<unk>", "<bos>", "<eos>", *(f"w{at}" for at in range(vocabulary - 4))])}
    inner = tokenizers.Tokenizer(tokenizers.models.WordLevel(known, unk_token="<unk>"))
    inner.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    return transformers.PreTrainedTokenizerFast(tokenizer_object=inner, pad_token="<pad>", unk_token="<unk>", bos_token="<bos>",
                                                eos_token="<eos>")


def arguments(run, folder, kind=transformers.TrainingArguments, **options):
    """Returns what a Trainer is given in each program."""
    return kind(folder, max_steps=run.steps, use_cpu=run.device == "cpu", bf16=run.device == "cuda", report_to=[], logging_steps=1,
                disable_tqdm=True, save_strategy="no", seed=3, gradient_checkpointing=run.checkpoints,
                gradient_checkpointing_kwargs={"use_reentrant": False} if run.checkpoints else None, **options)


def quiet():
    """Keeps the libraries from printing what a table has no place for."""
    transformers.logging.set_verbosity_error()
    datasets.disable_progress_bars()
    transformers.logging.disable_progress_bar()


def trained(trainer):
    """Trains, and returns the model."""
    trainer.remove_callback(transformers.PrinterCallback)
    trainer.train()
    return trainer.model
