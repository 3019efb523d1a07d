#!/usr/bin/env python3
"""Tests the command line's manners: schemas, completion, progress, quiet, interrupts, and the doctor.

usage: manners_test.py PATH_OF_SPILLWAY
"""

import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import tempfile
import time

from harness import CommandTest, ROOT, SCHEMAS, Spillway, load_schema, main, on_a_terminal, run, schema_errors


SCRIPTS = ROOT / "scripts"


class SchemaTest(CommandTest):
    def test_every_json_output_conforms(self):
        for name, args in (("results", ("run", "alexnet:8")),
                           ("results", ("compare", "vgg16:64", "--memory", "30%")),
                           ("explain", ("run", "alexnet:8", "--explain")),
                           ("trace-info", ("trace", "info", "googlenet:8")),
                           ("reproduce", ("reproduce", "vdnnpp")),
                           ("ops", ("list", "ops")),
                           ("doctor", ("doctor",)), ("columns", ("list", "columns"))):
            with self.subTest(args=args):
                self.conforms(self.ok(*args, "--format", "json"), name)
        self.conforms(self.ok("run", "vgg19:256", "--memory", "4GiB", "--format", "json", code=1),
                      "results")

    def test_the_schemas_are_named_after_their_files(self):
        for path in SCHEMAS.glob("*.json"):
            schema = load_schema(path.stem)
            self.assertEqual(schema["$id"], f"spillway.{path.stem}/v1")
            self.assertIn("2020-12", schema["$schema"])

    def test_results_have_the_columns_that_are_listed(self):
        row = load_schema("results")["properties"]["rows"]["items"]
        columns = json.loads(self.ok("list", "columns", "--format", "json"))["rows"]
        self.assertEqual(sorted(column["name"] for column in columns), sorted(row["properties"]))
        for column in columns:
            # An enumeration has no type.
            types = row["properties"][column["name"]].get("type", "string")
            types = [types] if isinstance(types, str) else types
            self.assertEqual(column["type"], " or ".join(types), column["name"])
        plain = json.loads(self.ok("run", "alexnet:8", "--format", "json"))["rows"][0]
        self.assertEqual(list(plain), row["required"])
        table = self.ok("list", "columns").splitlines()
        self.assertEqual(len(table), len(columns) + 1)
        self.assertEqual(table[0].split(), ["column", "unit", "meaning"])

    def test_the_validator_finds_errors(self):
        document = json.loads(self.ok("run", "alexnet:8", "--format", "json"))
        schema = load_schema("results")
        for change in (lambda d: d["rows"][0].pop("slowdown"),
                       lambda d: d["rows"][0].update(extra=1),
                       lambda d: d["rows"][0].update(status="fine"),
                       lambda d: d["rows"][0].update(batch=0),
                       lambda d: d["rows"][0].update(memory_bytes="8"),
                       lambda d: d.update(schema="spillway.results/v2")):
            broken = json.loads(json.dumps(document))
            change(broken)
            self.assertEqual(len(list(schema_errors(broken, schema))), 1)


class CompletionTest(CommandTest):
    def complete_in_bash(self, *words):
        """Returns the completions that bash offers for the last word."""
        script = """
            PATH="$1:$PATH"; shift
            source <(spillway completion bash)
            COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1))
            _spillway
            printf '%s\\n' "${COMPREPLY[@]}"
        """
        result = subprocess.run(
            ["bash", "-c", script, "bash", str(pathlib.Path(Spillway.path).parent), *words],
            capture_output=True, text=True, check=True)
        self.assertEqual(result.stderr, "")
        return result.stdout.split()

    def test_bash_completes_verbs_options_and_values(self):
        for words, expected in (
                (("spillway", "comp"), {"compare", "completion"}),
                (("spillway", "run", "--form"), {"--format"}),
                (("spillway", "run", "--format", ""), {"table", "csv", "json"}),
                (("spillway", "run", "--format", "=", "j"), {"json"}),
                (("spillway", "trace", "in"), {"info"}),
                (("spillway", "list", ""), {"columns", "policies"}),
                (("spillway", "list", "columns", "--format", "c"), {"csv"}),
                (("spillway", "trace", "info", "--format", "t"), {"table"}),
                (("spillway", "run", "x", "--policy", "vdnn-a"), {"vdnn-all"}),
                (("spillway", "compare", "x", "--device", "titan"), {"titan_x_maxwell"}),
                (("spillway", "run", "--export", "mem"), {"memory:"}),
                (("spillway", "run", "googl"), {"googlenet:"}),
                (("spillway", "record", "x", "-o", "/et"), {"/etc"}),
                (("spillway", "list", ""), {"ops", "networks"}),
                (("spillway", "list", "ops", "--format", "c"), {"csv"}),
                (("spillway", "help", "comp"), {"compare", "completion"}),
                (("spillway", "list", "ops", "--q"), {"--quiet"}),
                (("spillway", "compare", "x", "--w"), {"--wide"}),
                (("spillway", "completion", "z"), {"zsh"})):
            with self.subTest(words=words):
                self.assertLessEqual(expected, set(self.complete_in_bash(*words)))
                self.assertTrue(all(word.startswith(words[-1])
                                    for word in self.complete_in_bash(*words)))

    def test_every_shell_accepts_its_script(self):
        for shell in ("bash", "zsh", "fish"):
            script = self.ok("completion", shell)
            for word in ("replay-run", "export", "table csv json"):
                self.assertIn(word, script)
            with self.subTest(shell=shell):
                if shutil.which(shell) is None:
                    self.skipTest(f"{shell} is not installed")
                subprocess.run([shell, "-n"], input=script, text=True, check=True)

    def test_fish_completes_verbs_options_and_values(self):
        if shutil.which("fish") is None:
            self.skipTest("fish is not installed")
        script = self.ok("completion", "fish")
        path = f"{pathlib.Path(Spillway.path).parent}:{os.environ['PATH']}"
        for line, expected in (("spillway comp", "compare"), ("spillway run --form", "--format"),
                               ("spillway run --format ", "json"),
                               ("spillway trace in", "info"),
                               ("spillway run x --policy vdnn-d", "vdnn-dyn")):
            with self.subTest(line=line):
                offered = subprocess.run(
                    ["fish", "--no-config", "-c", f"{script}\ncomplete -C '{line}'"],
                    env={**os.environ, "PATH": path}, capture_output=True, text=True, check=True)
                self.assertIn(expected, [word.split("\t")[0] for word in offered.stdout.splitlines()])

    def test_names_come_one_per_line(self):
        self.assertIn("vdnn-dyn", self.ok("completion", "policies").splitlines())
        self.assertIn("h200", self.ok("completion", "devices").splitlines())
        self.fails(2, "tcsh", "completion", "tcsh")


class TalkTest(CommandTest):
    ARGS = ("compare", "alexnet:16", "--format", "csv")

    def test_progress_is_shown_on_a_terminal_only(self):
        code, data, talk = on_a_terminal(*self.ARGS, "--jobs", "1")
        self.assertEqual(code, 0)
        self.assertRegex(talk, r"\] 1/\d+ network-wide:algo=memory: .*, \d+ s left")
        self.assertRegex(talk, r"\[#{20}\] (\d+)/\1")
        self.assertTrue(talk.endswith("\r\033[K"))  # the bar is wiped
        self.assertEqual(data.replace("\r\n", "\n"), self.ok(*self.ARGS))
        result = subprocess.run([Spillway.path, *self.ARGS], capture_output=True, check=True)
        self.assertEqual(result.stderr, b"")

    def test_scripts_print_help_before_they_install_anything(self):
        for script in ("demo", "test", "wheel"):
            for option in ("-h", "--help"):
                result = subprocess.run([SCRIPTS / script, option], capture_output=True, text=True, check=True,
                                        env={"PATH": "/usr/bin:/bin"})
                self.assertIn(f"usage: scripts/{script} [--help", result.stdout)
                self.assertNotRegex(result.stdout, r"(?m)^#|source")
        self.assertEqual(subprocess.run([SCRIPTS / "demo", "--hlep"], capture_output=True, check=False).returncode, 2)

    def test_progress_without_a_number_of_steps_shows_none(self):
        _, _, talk = on_a_terminal("run", "alexnet:64", "--memory", "60%", "--policy", "vdnn-all:algo=memory", "--explain")
        self.assertIn("run alexnet:64: simulating remedies", talk)
        self.assertNotIn("0/0", talk)

    def test_policies_for_inference_are_remarked_in_training(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        for args in (("run", "alexnet:1", "--policy", "mmcnn"), ("fit", "alexnet:1", "--device", "h200", "--policy", "mmcnn"),
                     ("compare", "alexnet:1", "--policy", "liveness,mmcnn"),
                     ("limit", "alexnet", "--policy", "inference-vdnn", "--memory", "600MiB", "--scan", "1"),
                     ("report", "alexnet:1", "--policy", "inference-normal", "-o", f"{folder.name}/r.html")):
            with self.subTest(args):
                told = run(*args).stderr
                self.assertRegex(told, r"spillway: \S+: made for inference, and this is training; try mode=inference\n")
                self.assertEqual(run(*args, "--quiet").stderr, "")
                self.assertNotIn("made for", run(args[0], args[1] + ",mode=inference", *args[2:]).stderr)
        sweep = ("--policy", "{liveness,mmcnn}", "-o", f"{folder.name}/s.sqlite")
        self.assertIn("mmcnn: made for inference", run("sweep", "alexnet:1,mode={inference,training}", *sweep).stderr)
        self.assertNotIn("made for inference", run("sweep", "alexnet:1,mode=inference", *sweep).stderr)
        self.assertNotIn("mmcnn", self.ok("compare", "alexnet:1"))

    def test_an_unknown_option_gets_the_most_similar_one(self):
        for wrong, right in (("--mem-limit", "--memory"), ("--exports", "--export"), ("--export-trace", "--export"),
                             ("--polcy", "--policy"), ("--check-all", "--check"),
                             ("--drain_seed=3", "--drain-seed"), ("--devices", "--device")):
            for args in ((wrong, "1"), ("--policy", "liveness", wrong)):
                self.fails(2, f"unknown option '{wrong.partition('=')[0]}'; did you mean '{right}'?",
                                  "run", "alexnet:8", *args)
        self.assertNotIn("did you mean", self.fails(2, "unknown option '--zzz'", "run", "alexnet:8", "--zzz"))
        self.fails(2, "unknown option '--preset': it is part of a workload's text, WORKLOAD,preset=VALUE",
                   "run", "alexnet:8", "--preset", "vdnn")
        self.fails(2, "unknown option '--file'", "trace", "info", "alexnet:8", "--file", "x")
        self.fails(2, "unknown option '--stor'", "sweep", "status", "s.sqlite", "--stor")
        self.fails(2, "'b' is one argument too many", "run", "alexnet:8", "b", "c")

    def test_quiet_and_no_color_are_honoured(self):
        self.assertEqual(on_a_terminal(*self.ARGS, "--quiet")[2], "")
        for variables in ({}, {"NO_COLOR": "1"}):
            self.assertNotRegex(on_a_terminal(*self.ARGS, **variables)[2], r"\033\[[0-9;]*m")

    def test_the_doctor_says_what_is_there(self):
        rows = {row["item"]: row for row in
                self.conforms(self.ok("doctor", "--format", "json"), "doctor")["rows"]}
        for item in ("spillway", "compiler", "library fmt", "library simdjson", "library toml++",
                     "library Zstandard", "library CLI11", "library oneTBB", "data directory",
                     "device h200"):
            self.assertEqual(rows[item]["status"], "ok", item)
            self.assertRegex(rows[item]["value"], r"\S")
        self.assertIn("recorded tables", rows["device h200"]["value"])
        for item in ("CUDA backend", "NVIDIA driver", "GPU", "matplotlib"):
            self.assertEqual(rows[item]["status"] == "ok", rows[item]["remedy"] is None)

    def test_the_doctor_finds_a_wrong_data_directory(self):
        with tempfile.TemporaryDirectory() as directory:
            environment = {**os.environ, "SPILLWAY_DATA": directory}
            text = self.ok("doctor", code=1, env=environment)
            self.assertIn("correct or unset SPILLWAY_DATA", text)
            devices = pathlib.Path(directory) / "sim" / "devices"
            devices.mkdir(parents=True)
            (devices / "mine.toml").write_text("memory = 1", encoding="utf-8")
            self.assertIn("mine.toml", self.ok("doctor", code=1, env=environment))


    def test_finished_rows_show_on_a_terminal(self):
        _, data, talk = on_a_terminal(*self.ARGS, "--jobs", "1")
        self.assertRegex(talk, r"\r\033\[K\[[#.]+\] \d+/\d+ vdnn-dyn: [\d.]+ ms, peak [\d.]+ MiB, ")
        self.assertNotIn("peak", data.splitlines()[1])
        self.assertRegex(on_a_terminal("limit", "alexnet", "--memory", "1GiB", "--policy", "liveness")[2], r"1/1 liveness: \d+")

    def test_long_commands_say_what_they_do(self):
        args = ["compare", "vgg416:32", "--jobs", "1"] + ["--policy", "vdnn-dyn"] * 5000
        started = [subprocess.Popen([Spillway.path, *args, *quiet], stdout=subprocess.DEVNULL,
                                    stderr=subprocess.PIPE, text=True)
                   for quiet in ([], ["--quiet"])]
        time.sleep(4.9)
        for process in started:
            process.kill()
        talk, silence = (process.communicate()[1] for process in started)
        self.assertRegex(talk, r"^(spillway: \[[#.]{20}\] \d+/5000 vdnn-dyn: .* left\n)+$")
        self.assertEqual(silence, "")

    def test_every_verb_can_be_quiet(self):
        for verb in VERBS:
            self.assertIn("--quiet", self.ok("help", *verb.split()), verb)


class TableTest(CommandTest):
    def test_reproduce_explains_its_table(self):
        text = self.ok("reproduce", "vdnnpp")
        self.assertRegex(text, r"\d+ items: \d+ agree, 0 miss, \d+ shown and not judged "
                               r"\(\d+ off by more than 25 %\), (\d+) not computed\nEvidence: an item with = has to agree")
        self.assertIn(f" {text.count('not computed yet')} not computed\n", text)


VERBS = ("run", "compare", "limit", "fit", "plan", "list", "list ops", "trace build", "trace info", "record",
         "validate", "calibrate", "reproduce", "replay", "new-policy", "replay-run", "doctor",
         "completion", "help")


class HelpTest(CommandTest):
    def test_help_on_verbs(self):
        for verb in VERBS:
            self.assertEqual(self.ok("help", *verb.split()), self.ok(*verb.split(), "--help"))
        self.assertEqual(self.ok("help"), self.ok("--help"))
        self.fails(2, "did you mean 'compare'", "help", "comprae")
        self.fails(2, "has no verbs", "help", "run", "it")

    def test_the_manual_page_has_all_that_help_has(self):
        page = self.ok("help", "--man")
        self.assertTrue(page.startswith(".TH SPILLWAY 1"))
        for verb in VERBS:
            self.assertIn(f'.SS "{verb}"'.replace("-", "\\-"), page)
        self.assertIn("\\fB\\-\\-export\\fR", page)
        if shutil.which("man"):
            told = subprocess.run(["man", "--warnings", "-l", "-"], input=page, capture_output=True,
                                  text=True, check=True)
            self.assertEqual(told.stderr, "")
            self.assertIn("EXIT", told.stdout.upper())

    def test_the_version_names_the_commit(self):
        commit = re.fullmatch(r"spillway \S+ \(commit (\S+)\)\n", self.ok("--version"))[1]
        with tempfile.TemporaryDirectory() as directory:
            self.ok("run", "alexnet:8", "-o", f"{directory}/r.csv")
            with open(f"{directory}/r.csv.manifest.json", encoding="utf-8") as file:
                self.assertEqual(json.load(file)["commit"], commit)


class InterruptTest(CommandTest):
    def test_an_interrupt_prints_what_is_finished(self):
        policies = ["liveness", "mxnet"] + ["vdnn-dyn"] * 5000
        args = ["compare", "vgg416:32", "--jobs", "1", "--memory", "20GiB"]
        for policy in policies:
            args += ["--policy", policy]
        code, stdout, stderr = self.interrupt(*args, delay=2)
        self.assertEqual((code, stderr), (130, "spillway: interrupted\n"))
        table = stdout.split("\n\n")[1].splitlines()
        shown = [line.split()[0] for line in table[1:] if not line.startswith("* ")]
        self.assertEqual(sorted(shown), sorted(policies[:len(shown)]))
        self.assertGreaterEqual(len(shown), 2)

    def interrupt(self, *args, signal_number=signal.SIGINT, delay=0.3):
        # A shell may have started the test with interrupts ignored.
        with subprocess.Popen([Spillway.path, *args], stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, text=True,
                              preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)) as p:
            time.sleep(delay)
            p.send_signal(signal_number)
            stdout, stderr = p.communicate(timeout=60)
        return p.returncode, stdout, stderr

    def test_an_interrupt_ends_a_long_compare_with_130(self):
        with tempfile.TemporaryDirectory() as directory:
            output = os.path.join(directory, "result.json")
            # The command would take minutes if it were not interrupted.
            args = ["compare", "vgg416:32", "-o", output] + ["--policy", "vdnn-dyn"] * 5000
            # On a busy machine a program takes a while to begin.
            code, stdout, stderr = self.interrupt(*args, delay=2)
            self.assertEqual(code, 130, stderr)
            self.assertEqual((stdout, stderr), ("", "spillway: interrupted\n"))
            self.assertEqual(os.listdir(directory), [])
            self.assertEqual(self.interrupt(*args, signal_number=signal.SIGTERM, delay=2)[0],
                             143)

    def test_whenever_it_comes_no_file_is_half_written(self):
        with tempfile.TemporaryDirectory() as directory:
            output = os.path.join(directory, "trace.json")
            for step in range(12):
                code, _, stderr = self.interrupt("trace", "build", "vgg416:32", "-o", output,
                                                 delay=0.004 * step)
                self.assertIn(code, (0, 130, -signal.SIGINT), stderr)
                self.assertLessEqual(set(os.listdir(directory)), {"trace.json"})
                if os.path.exists(output):
                    self.ok("trace", "validate", output)
                    os.remove(output)

    def test_nohup_is_respected(self):
        with subprocess.Popen([Spillway.path, "compare", "vgg416:32"] +
                              ["--policy", "liveness"] * 200, stdout=subprocess.DEVNULL,
                              preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN)) as p:
            time.sleep(0.05)
            p.send_signal(signal.SIGINT)
            self.assertEqual(p.wait(timeout=120), 0)


if __name__ == "__main__":
    main()
