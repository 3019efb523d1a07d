#include "experiments/run/worker.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>

#include "experiments/run/archive.h"
#include "policies/plugin/crash.h"
#include "traces/base/error.h"

namespace spillway::lab {
namespace {

// The environment variable that makes a process a worker: the file of the shared memory, the
// parent's process id and the limit in picoseconds.
constexpr const char* kVariable = "SPILLWAY_WORKER";

// A file descriptor that is closed at the end.
struct File {
  explicit File(int opened) : number(opened) {}
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  ~File() { ::close(number); }
  const int number;
};

[[noreturn]] void CannotStart(int error) {
  throw EnvironmentError(
      fmt::format("cannot start a process for a plugin: {}; --in-process runs it in this one",
                  std::strerror(error)));
}

// Starts the worker and returns its process id. The worker inherits the shared memory.
pid_t Start(const std::vector<std::string>& arguments, Duration limit, int shared) {
  std::vector<std::string> texts{"spillway"};
  texts.insert(texts.end(), arguments.begin(), arguments.end());
  std::vector<char*> argv;
  for (std::string& text : texts) argv.push_back(text.data());
  argv.push_back(nullptr);
  std::string variable =
      fmt::format("{}={} {} {}", kVariable, shared, ::getpid(), limit.picoseconds());
  std::vector<char*> environment{variable.data()};
  for (char** one = environ; *one != nullptr; ++one) environment.push_back(*one);
  environment.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_adddup2(&actions, shared, shared);  // stays open in the worker
  pid_t worker = 0;
  const int error =
      ::posix_spawn(&worker, "/proc/self/exe", &actions, nullptr, argv.data(), environment.data());
  ::posix_spawn_file_actions_destroy(&actions);
  if (error != 0) CannotStart(error);
  return worker;
}

// Ends this process after `limit`, whatever its threads do.
void EndAfter(Duration limit) {
  sigevent event{};
  event.sigev_notify = SIGEV_SIGNAL;
  event.sigev_signo = SIGKILL;
  constexpr int64_t kSecond = 1'000'000'000'000;
  itimerspec time{};
  time.it_value.tv_sec = limit.picoseconds() / kSecond;
  time.it_value.tv_nsec = limit.picoseconds() % kSecond / 1000 + 1;  // 0 would mean never
  timer_t timer{};
  if (::timer_create(CLOCK_MONOTONIC, &event, &timer) == 0) {
    ::timer_settime(timer, 0, &time, nullptr);
  }
}

// Returns the hook that a policy was in, or that it left last: "in its AfterOp at op conv1.fwd".
std::string PlaceOf(const HookRecord& record) {
  if (record.policy[0] == 0) return "before it was loaded";
  return fmt::format("{} its {}{}{}", record.inside ? "in" : "after", record.hook,
                     record.op[0] != 0 ? " at op " : "", record.op);
}

// Returns how a worker ended that did not reply.
std::string EndOf(int status, bool late, Duration limit, const HookRecord& record,
                  const std::string& whose) {
  const std::string who = record.policy[0] != 0 ? fmt::format("policy '{}'", record.policy) : whose;
  const std::string place = PlaceOf(record);
  if (!WIFSIGNALED(status)) {
    return fmt::format("{} ended the process with exit code {} {}", who, WEXITSTATUS(status),
                       place);
  }
  if (late && WTERMSIG(status) == SIGKILL) {
    return fmt::format("{} took longer than {} (--timeout) and was ended {}", who,
                       FormatDuration(limit), place);
  }
  return fmt::format("{} crashed {} ({})", who, place, NameOfSignal(WTERMSIG(status)));
}

// Throws the error that ended a command, by its exit code.
[[noreturn]] void Throw(const CommandResults& results) {
  switch (results.exit_code) {
    case 2:
      throw UsageError(results.error);
    case 3:
      throw InputError(results.error);
    case 5:
      throw EnvironmentError(results.error);
    default:
      throw PolicyError(results.error);
  }
}

}  // namespace

void Fields(Archive& archive, OutputFile& file) { archive(file.option, file.path, file.contents); }

void Fields(Archive& archive, CommandResults& results) {
  archive(results.exit_code, results.error, results.text, results.files, results.manifest);
}

struct Worker::Page {
  HookRecord record;
  uint64_t reply;  // bytes of the reply, which follows the page; 0 until it is complete
};

CommandResults RunInWorker(const std::vector<std::string>& arguments, Duration limit,
                           const std::string& whose) {
  const File shared(::memfd_create("spillway-worker", MFD_CLOEXEC));
  if (shared.number < 0 || ::ftruncate(shared.number, sizeof(Worker::Page)) != 0) {
    CannotStart(errno);
  }
  const auto start = std::chrono::steady_clock::now();
  const pid_t worker = Start(arguments, limit, shared.number);
  int status = 0;
  while (::waitpid(worker, &status, 0) < 0 && errno == EINTR) {
  }
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  // Its threads and its plugin are gone, so that the memory no longer changes.
  const auto read = [&](void* to, size_t size, size_t from) {
    for (size_t done = 0; done < size;) {
      const ssize_t count = ::pread(shared.number, static_cast<char*>(to) + done, size - done,
                                    static_cast<off_t>(from + done));
      if (count <= 0) throw PolicyError(fmt::format("{}: the reply of its process is lost", whose));
      done += static_cast<size_t>(count);
    }
  };
  Worker::Page page{};
  read(&page, sizeof(page), 0);
  if (page.reply == 0) {
    throw PolicyError(EndOf(status, took.count() >= limit.seconds(), limit, page.record, whose));
  }
  std::string bytes(page.reply, 0);
  read(bytes.data(), bytes.size(), sizeof(page));
  CommandResults results;
  Archive::Load(std::move(bytes), results);
  if (!results.error.empty()) Throw(results);
  return results;
}

std::unique_ptr<const Worker> Worker::OfThisProcess() {
  const char* variable = std::getenv(kVariable);
  if (variable == nullptr) return nullptr;
  int file = -1, parent = 0;
  long long limit = 0;
  const int fields = std::sscanf(variable, "%d %d %lld", &file, &parent, &limit);
  ::unsetenv(kVariable);  // a program that a policy starts is no worker
  if (fields != 3) return nullptr;
  void* page = ::mmap(nullptr, sizeof(Page), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (page == MAP_FAILED) return nullptr;
  ::fcntl(file, F_SETFD, FD_CLOEXEC);
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(1);  // the parent ended before the line above
  std::signal(SIGINT, SIG_IGN);
  std::signal(SIGTERM, SIG_IGN);
  EndAfter(Duration::Picoseconds(limit));
  KeepHookRecord(&static_cast<Page*>(page)->record);
  return std::unique_ptr<const Worker>(new Worker(file, static_cast<Page*>(page)));
}

void Worker::Reply(const CommandResults& results) const {
  const std::string bytes = Archive::Save(results);
  bool whole = true;
  for (size_t done = 0; whole && done < bytes.size();) {
    const ssize_t count = ::pwrite(file_, bytes.data() + done, bytes.size() - done,
                                   static_cast<off_t>(sizeof(Page) + done));
    whole = count > 0;
    if (whole) done += static_cast<size_t>(count);
  }
  std::fflush(nullptr);  // texts that the policy printed
  if (whole) page_->reply = bytes.size();
  ::_exit(whole ? 0 : 1);
}

}  // namespace spillway::lab
