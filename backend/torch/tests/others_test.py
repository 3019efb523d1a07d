"""Tests of experiments/evidence/others/judge on tables of a few small rows."""

import collections
import csv
import io
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

from cases import slow
from spillway_torch.base.document import read_document

JUDGE = pathlib.Path(__file__).resolve().parents[3] / "experiments" / "evidence" / "others" / "judge"
FACTS = JUDGE.parent / "facts"
LIGER = ("kernel_name,kernel_provider,kernel_operation_mode,metric_name,metric_unit,x_name,x_label,x_value,y_value_50,"
         "extra_benchmark_config_str,gpu_name,source\n")


def liger(kernel="cross_entropy", provider="huggingface", metric="memory", x="V", value="1024", measured="2.5",
          options='"{""B"": 1, ""T"": 128}"', gpu="NVIDIA A100-SXM4-80GB"):
    return f"{kernel},{provider},full,{metric},MB,{x},,{value},{measured},{options},{gpu},page\n"


class OthersTest(unittest.TestCase):

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def judge(self, *arguments):
        return subprocess.run([sys.executable, JUDGE, self.folder / "out", *arguments, "--jobs", "1"],
                              capture_output=True, text=True, check=False)

    def table(self, name, text):
        path = self.folder / name
        path.write_text(text, encoding="utf-8")
        return path

    def results(self, name):
        with open(self.folder / "out" / name, newline="", encoding="utf-8") as file:
            return list(csv.DictReader(file))

    def test_answers_assumes_and_refuses(self):
        with open(FACTS / "megatron_golden.csv", newline="", encoding="utf-8") as file:
            row = next(csv.DictReader(file))
        small = {**row, "layers": "2", "hidden": "64", "heads": "4", "seq": "32", "vocab": "256"}
        lines = [",".join(small), *(",".join({**small, **change}.values()) for change in (
            {}, {"case": "t5/any"}, {"fp8": "True"}, {"tp": "2"}, {"agree_within_1pct": "0"}, {"hw": "tpu"}))]
        (self.folder / "tables").mkdir()
        rows = (liger(), liger(provider="liger"), liger(kernel="new"), liger(gpu="unknown"), liger(metric="speed"))
        operators = self.table("tables/operators.csv", LIGER + "".join(rows))
        page = self.table("page.md", "before\n<!-- results -->\nstale\n<!-- end of results -->\nafter\n")
        cases = self.table("tables/cases.csv", "\n".join(lines) + "\n")
        done = self.judge("--table", operators, "--table", cases, "--page", page)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        rows = self.results("operators.csv")
        self.assertEqual([r["answer"] + r["why"].split(":")[0] for r in rows],
                         ["answered", "cannotkernels", "cannotmodel", "cannotcard", "answered"])
        # Logits, their earlier gradient, log-softmax, its gradient and the new gradient; labels; two numbers.
        expected = 5 * 4 * 128 * 1024 + 8 * 128 + 2 * 512
        self.assertEqual(rows[0]["predicted_bytes"], str(expected))
        self.assertAlmostEqual(float(rows[0]["bytes_error"]), expected / (2.5 * 2**20) - 1, places=5)
        self.assertEqual((rows[0]["line"], rows[0]["predicted_ms"]), ("2", ""))
        self.assertGreater(float(rows[4]["predicted_ms"]), 0)
        cases = self.results("cases.csv")
        self.assertEqual([r["answer"] + r["why"].split(":")[0] for r in cases],
                         ["assumed", "cannotmodel", "cannotkernels", "cannotseveral", "cannotquantity", "cannotcard"])
        self.assertIn("cuBLAS", cases[0]["assumptions"])
        self.assertGreater(int(cases[0]["predicted_bytes"]), 64 << 20)
        text = page.read_text(encoding="utf-8")
        self.assertIn("| operators | 5 | 2 | 0 | 3 |", text)
        self.assertEqual(self.results("operators.csv"), self.results("../operators.csv"))
        self.assertRegex(text, r"\Abefore\n<!-- results -->\n\n## (.|\n)*\n<!-- end of results -->\nafter\n\Z")
        self.assertNotIn("stale", text)

    @slow
    def test_several_gpus_communicate(self):
        """A layer gathers its sequence twice forward and four times backward, and scatters it twice in each direction. The head gathers
        it in each direction and scatters once; the words do both once, and so does the optimizer, with weights and gradients. The loss
        gathers a few numbers."""
        for table, change, counts in (
                ("simumax_b200", {"case": "llama3_70b_tp2", "layers": "1", "tp": "2", "pp": "1", "dp": "2",
                                  "micro_batches": "1"},
                 {("all_gather", 2): 6 + 2 + 1 + 1 + 1, ("reduce_scatter", 2): 4 + 1 + 1 + 1}),
                ("simumax_b200", {"case": "llama3_70b_cp2", "layers": "1", "tp": "1", "pp": "1", "cp": "2", "dp": "1",
                                  "micro_batches": "1"},
                 {("all_to_all", 2): 8, ("all_gather", 2): 1, ("reduce_scatter", 2): 1}),
                ("frameworks", {"id": "aonc0", "model": "Llama 3.2 1B"},
                 {("all_gather", 8): 2 * 16 + 1, ("reduce_scatter", 8): 17, ("all_reduce", 8): 1})):
            with self.subTest(change):
                with open(FACTS / f"{table}.csv", newline="", encoding="utf-8") as file:
                    row = next(row for row in csv.DictReader(file) if row.get("id", "aonc0") == "aonc0")
                lines = io.StringIO()
                writer = csv.DictWriter(lines, row)
                writer.writeheader()
                writer.writerow({**row, **change})
                done = self.judge("--table", self.table("rows.csv", lines.getvalue()))
                self.assertEqual((done.returncode, done.stderr), (0, ""))
                trace, = (self.folder / "out" / "recordings").glob("*.json.zst")
                found = collections.Counter(
                    (op["slots"][0]["signature"].split()[0], op["attributes"]["ranks"]) for op in read_document(trace)["ops"]
                    if "ranks" in op.get("attributes", {}))
                self.assertEqual(found, counts)
                shutil.rmtree(self.folder / "out")

    @slow
    def test_published_operators_become_a_table(self):
        facts = "# Some GPU, cuda:sm_100, 1e12 FLOP/s; a page\noperator,rows,depth,columns,heads,groups,fraction,backward\n"
        rows = "NT,64,32,128,,,0.5,\nattention,256,64,,4,2,0.5,0.25\n"

        def write(text):
            return subprocess.run([sys.executable, JUDGE.parent / "operators" / "write_table", self.table("facts.csv", text),
                                   self.folder / "table.json"], capture_output=True, text=True, check=False)

        self.assertEqual(write(facts + rows).returncode, 0)
        table = read_document(self.folder / "table.json")
        self.assertEqual(table["recording"]["device"], "Some GPU")
        scores, attention = 4 * 256 * 256, "aten::_scaled_dot_product_cudnn_attention"
        self.assertEqual([(op["slots"][0]["signature"].split()[0], op["recorded"]["time_ns"]) for op in table["ops"]],
                         [("aten::mm", round(2 * 64 * 32 * 128 / 500)), (attention, round(4 * scores * 64 / 500)),
                          (f"{attention}_backward", round(10 * scores * 64 / 250))])
        source = JUDGE.parent / "operators" / "b200.csv"
        self.assertEqual(write(source.read_text(encoding="utf-8")).returncode, 0)
        published = JUDGE.parents[3] / "traces" / "recorded" / "operators" / "published" / "b200.json.zst"
        self.assertEqual(read_document(self.folder / "table.json")["ops"], read_document(published)["ops"])
        for text in ("operator\n", facts + "XX,1,1,1,,,1,\n", facts + "NT,64,32,128,,,none,\n"):
            done = write(text)
            self.assertEqual((done.returncode, done.stderr.startswith("write_table: ")), (3, True))

    def test_refuses_bad_tables_with_file_and_line(self):
        for name, text, message in (
                ("short.csv", LIGER + liger() + "a,b\n", "short.csv:3: 2 fields; the header has 12"),
                ("number.csv", LIGER + liger(value="many"),
                 "number.csv:2: x_value is 'many'; expected a whole number of at least 1"),
                ("json.csv", LIGER + liger(options="{"), "json.csv:2: extra_benchmark_config_str is no JSON"),
                ("quote.csv", LIGER + '"open\n', "quote.csv:2: "),
                ("columns.csv", "a,b\n1,2\n", "columns.csv:1: the columns are those of no table"),
                ("empty.csv", "", "empty.csv:1: the columns are those of no table"),
                ("lacks.csv", LIGER.replace("gpu_name", "gpu") + liger(), "lacks.csv:1: there is no column 'gpu_name'"),
                ("lengths.csv", LIGER + liger(options="[]"), "lengths.csv:2: extra_benchmark_config_str is no object")):
            with self.subTest(name):
                done = self.judge("--table", self.table(name, text))
                self.assertEqual(done.returncode, 3)
                self.assertIn(message, done.stderr)
                self.assertFalse((self.folder / "out").exists())
        (self.folder / "pages").mkdir()
        page = self.table("pages/page.md", "nothing\n")
        done = self.judge("--table", self.table("good.csv", LIGER + liger()), "--page", page)
        self.assertEqual((done.returncode, "page.md: there is no part" in done.stderr), (3, True))
        (self.folder / "out").mkdir()
        done = self.judge("--table", self.table("out/good.csv", LIGER + liger()))
        self.assertEqual((done.returncode, "would be one file" in done.stderr), (2, True))
        done = self.judge("--table", self.folder / "none.csv")
        self.assertEqual((done.returncode, "none.csv" in done.stderr), (3, True))


if __name__ == "__main__":
    unittest.main()
