// Lets TensorFlow's own TFRecord reader read a FIFO: a file system whose files are channels in Pipe mode.
//
// When TensorFlow opens fleetfitpipe://<request>, this library calls Python, which opens the FIFO of the next epoch.
// TensorFlow then reads the FIFO from beginning to end without Python. This library checks the header of each record
// that TensorFlow reads. If a header is wrong, this library knows its offset, and calls Python for the error message,
// because Python knows the objects of the stream.
//
// The library needs only TensorFlow's C interface; see estimators/provision/pipe_reader.py.

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstdlib>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "tensorflow/c/experimental/filesystem/filesystem_interface.h"
#include "tensorflow/c/tf_status.h"

namespace {

constexpr char kScheme[] = "fleetfitpipe";
constexpr uint64_t kHeader = 12;
constexpr uint64_t kFooter = 4;
constexpr uint64_t kLongest = uint64_t{1} << 48;
// After this time, Read returns the bytes that have been received, if they contain the end of a record.
constexpr int64_t kPatienceNs = 50'000'000;
// For how many calls of Read to remember where records begin: TensorFlow notices a damaged record a little later.
constexpr size_t kRemembered = 8;
constexpr size_t kLongestText = 16 << 10;
// How long the exit of the process waits at most for threads that are in Python.
constexpr std::chrono::seconds kGrace{10};

// The reason why Python is called. The numbers are the same as in container/pipe_dataset/native.py.
enum Kind { kBadHeader = 1, kCrossesBorder = 2, kEnd = 3 };

// Writes the error that ended the stream into `text`. Leaves `text` empty if the stream is complete.
using Explain = void (*)(uint64_t number, int kind, uint64_t offset, uint64_t record, uint64_t there, uint64_t wanted,
                         char* text, size_t capacity);

// Opens the stream that a file name requests, and returns its number. On an error, returns 0 and writes `text`.
using Begin = uint64_t (*)(const char* request, char* text, size_t capacity);
// Called when TensorFlow has closed a stream.
using End = void (*)(uint64_t number);

// The functions of Python, which are null after Python has exited, and the number of threads that are calling them. A
// thread that is in Python when Python exits never returns. Therefore the exit of the process waits for these threads.
std::mutex python_lock;
std::condition_variable python_left;
int python_calls = 0;
Begin begin_stream = nullptr;
End end_stream = nullptr;
Explain explain_end = nullptr;

// A call of one of these functions. The function is null after Python has exited.
template <typename Function>
class Call {
 public:
  explicit Call(const Function& which) {
    std::lock_guard<std::mutex> hold(python_lock);
    function = which;
    if (function) ++python_calls;
  }
  ~Call() {
    if (!function) return;
    std::lock_guard<std::mutex> hold(python_lock);
    if (--python_calls == 0) python_left.notify_all();
  }

  Function function;
};

struct Crc {
  uint32_t table[8][256];
  Crc() {
    for (uint32_t i = 0; i < 256; ++i) {
      uint32_t value = i;
      for (int bit = 0; bit < 8; ++bit) value = (value >> 1) ^ (value & 1 ? 0x82F63B78u : 0);
      table[0][i] = value;
    }
    for (int k = 1; k < 8; ++k) {
      for (uint32_t i = 0; i < 256; ++i) {
        table[k][i] = (table[k - 1][i] >> 8) ^ table[0][table[k - 1][i] & 0xFF];
      }
    }
  }
  // The masked checksum of 8 bytes.
  uint32_t masked(const unsigned char* data) const {
    uint32_t crc = 0xFFFFFFFFu;
    const uint32_t low = crc ^ (data[0] | data[1] << 8 | data[2] << 16 | static_cast<uint32_t>(data[3]) << 24);
    crc = table[7][low & 0xFF] ^ table[6][(low >> 8) & 0xFF] ^ table[5][(low >> 16) & 0xFF] ^ table[4][low >> 24] ^
          table[3][data[4]] ^ table[2][data[5]] ^ table[1][data[6]] ^ table[0][data[7]];
    crc = ~crc;
    return ((crc >> 15) | (crc << 17)) + 0xA282EAD8u;
  }
};

const Crc& crc() {
  static const Crc made;
  return made;
}

int64_t now() {
  timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return time.tv_sec * int64_t{1'000'000'000} + time.tv_nsec;
}

// The offsets in the stream at which objects begin, from the lines that the host agent writes before their bytes:
// {"at":<offset>,"uri":…}. Each line begins with the offset. Only a line about an object has "uri" next.
class Borders {
 public:
  explicit Borders(int file) : file_(file) {}
  ~Borders() {
    if (file_ >= 0) close(file_);
  }

  void update() {
    if (file_ < 0) return;
    char chunk[4096];
    ssize_t got;
    while ((got = read(file_, chunk, sizeof chunk)) > 0) {
      rest_.append(chunk, got);
      size_t begin = 0, end;
      while ((end = rest_.find('\n', begin)) != std::string::npos) {
        take(rest_.c_str() + begin);
        begin = end + 1;
      }
      rest_.erase(0, begin);
    }
  }

  // Returns the first border after `offset`, and forgets all borders up to `offset`.
  uint64_t after(uint64_t offset) {
    while (!all_.empty() && all_.front() <= offset) all_.pop_front();
    return all_.empty() ? UINT64_MAX : all_.front();
  }

 private:
  void take(const char* line) {
    static const char kAt[] = "{\"at\":";
    static const char kUri[] = ",\"uri\":";
    if (strncmp(line, kAt, sizeof kAt - 1) != 0) return;
    char* end;
    const uint64_t at = strtoull(line + sizeof kAt - 1, &end, 10);
    if (strncmp(end, kUri, sizeof kUri - 1) == 0) all_.push_back(at);
  }

  int file_;
  std::string rest_;
  std::deque<uint64_t> all_;
};

class Stream {
 public:
  Stream(uint64_t number, int file, int notes, int leaving, uint64_t skip)
      : number_(number), file_(file), leaving_(leaving), borders_(notes), skip_(skip) {}
  ~Stream() { finish(); }

  uint64_t number() const { return number_; }

  int64_t read(uint64_t offset, size_t n, char* buffer, TF_Status* status) {
    std::lock_guard<std::mutex> hold(lock_);
    if (offset != given_) {
      TF_SetStatus(status, TF_FAILED_PRECONDITION, "a channel in Pipe mode can be read forwards only");
      return -1;
    }
    const int64_t began = now();
    size_t filled = 0;
    starts_.push_back({records_, {}});
    if (starts_.size() > kRemembered) starts_.pop_front();
    const uint64_t before = records_;
    while (filled < n && !over_ && error_.empty()) {
      const bool presentable = filled && records_ > before;
      const int64_t left = kPatienceNs - (now() - began);
      if (presentable && left <= 0) break;
      const ssize_t got = ::read(file_, buffer + filled, n - filled);
      if (got < 0) {
        if (errno == EINTR) continue;
        if (errno == EAGAIN) {
          pollfd waits[] = {{file_, POLLIN, 0}, {leaving_, POLLIN, 0}};
          if (poll(waits, 2, presentable ? static_cast<int>(left / 1'000'000) + 1 : -1) == 0) break;
          if (waits[1].revents) over_ = true;  // Python's exit waits for this thread, and the bytes may never come
          continue;
        }
        error_ = std::string("the FIFO cannot be read: ") + strerror(errno);
      } else if (got == 0) {
        end();
      } else {
        borders_.update();
        filled += scan(buffer + filled, got);
      }
    }
    given_ += filled;
    nanoseconds_ += now() - began;
    if (filled == n) {
      TF_SetStatus(status, TF_OK, "");
    } else if (filled) {
      // Fewer bytes than requested, but not the end: TensorFlow stores these bytes and reads again.
      TF_SetStatus(status, TF_OK, "");
    } else if (!error_.empty()) {
      TF_SetStatus(status, TF_DATA_LOSS, error_.c_str());
      return -1;
    } else {
      TF_SetStatus(status, TF_OUT_OF_RANGE, "the end of the stream");
    }
    return filled;
  }

  void finish() {
    std::lock_guard<std::mutex> hold(lock_);
    if (file_ >= 0) close(file_);
    file_ = -1;
    over_ = true;
  }

  void counts(uint64_t* bytes, uint64_t* nanoseconds) {
    std::lock_guard<std::mutex> hold(lock_);
    *bytes = at_;
    *nanoseconds = nanoseconds_;
  }

  // Finds the record that begins at TensorFlow's `position`, which does not count skipped bytes.
  bool find(uint64_t position, uint64_t* offset, uint64_t* record) {
    std::lock_guard<std::mutex> hold(lock_);
    for (const Starts& some : starts_) {
      const auto found = std::lower_bound(some.at.begin(), some.at.end(), position + skipped_);
      if (found != some.at.end() && *found == position + skipped_) {
        *offset = *found;
        *record = some.first + (found - some.at.begin());
        return true;
      }
    }
    return false;
  }

 private:
  // The records that began in one call of Read: the number of the first record, and the offsets of all of them.
  struct Starts {
    uint64_t first;
    std::vector<uint64_t> at;
  };

  // Checks new bytes. Moves the bytes for TensorFlow to the front of `data`, and returns their number.
  size_t scan(char* data, size_t size) {
    size_t at = 0, from = skip_ ? size : 0, until = size;
    while (at < size) {
      if (head_ < kHeader) {
        const size_t part = std::min<size_t>(kHeader - head_, size - at);
        if (head_ == 0) begin_ = at_ + at;
        memcpy(header_ + head_, data + at, part);
        head_ += part;
        at += part;
        if (head_ < kHeader) break;
        uint64_t length;
        uint32_t checksum;
        memcpy(&length, header_, sizeof length);
        memcpy(&checksum, header_ + sizeof length, sizeof checksum);
        if (checksum != crc().masked(header_) || length > kLongest) {
          fail(kBadHeader, head_, 0);
          until = begin_ > at_ ? begin_ - at_ : 0;
          break;
        }
        end_ = begin_ + kHeader + length + kFooter;
        starts_.back().at.push_back(begin_);
      }
      const size_t part = std::min<uint64_t>(end_ - (at_ + at), size - at);
      at += part;
      const uint64_t border = borders_.after(begin_);
      if (border < end_ && border < at_ + at) {
        fail(kCrossesBorder, border - begin_, end_ - begin_);
        until = begin_ > at_ ? begin_ - at_ : 0;
        break;
      }
      if (at_ + at == end_) {
        head_ = 0;
        ++records_;
        if (skip_ && --skip_ == 0) {
          from = at;
          skipped_ = end_;
        }
      }
    }
    at_ += size;
    if (skip_) {
      skipped_ = at_;
      return 0;
    }
    if (until <= from) return 0;
    if (from) memmove(data, data + from, until - from);
    return until - from;
  }

  void end() {
    over_ = true;
    fail(kEnd, head_ ? at_ - begin_ : 0, head_ == kHeader ? end_ - begin_ : 0);
  }

  void fail(Kind kind, uint64_t there, uint64_t wanted) {
    std::string text(kLongestText, '\0');
    const Call<Explain> explain(explain_end);
    if (explain.function) {
      explain.function(number_, kind, head_ ? begin_ : at_, records_, there, wanted, &text[0], text.size() - 1);
    }
    error_ = text.c_str();
    if (error_.empty() && kind != kEnd) error_ = "a record of the stream is damaged";
  }

  const uint64_t number_;
  int file_;
  const int leaving_;  // becomes readable when the process exits
  Borders borders_;
  uint64_t skip_;  // number of records that are still to be skipped
  std::mutex lock_;
  uint64_t at_ = 0;  // offset of the next byte in the stream
  uint64_t skipped_ = 0;  // number of skipped bytes
  uint64_t given_ = 0;  // number of bytes that TensorFlow has received
  uint64_t records_ = 0;  // number of complete records so far
  uint64_t begin_ = 0, end_ = 0;  // offsets of the current record
  unsigned char header_[kHeader];
  size_t head_ = 0;  // number of bytes of its header that have been read
  int64_t nanoseconds_ = 0;
  bool over_ = false;
  std::string error_;
  std::deque<Starts> starts_;
};

std::mutex streams_lock;

std::map<uint64_t, std::shared_ptr<Stream>>& streams() {
  static auto* all = new std::map<uint64_t, std::shared_ptr<Stream>>;  // never destroyed: threads may outlive main()
  return *all;
}

std::shared_ptr<Stream> stream_of(uint64_t number) {
  std::lock_guard<std::mutex> hold(streams_lock);
  const auto found = streams().find(number);
  return found == streams().end() ? nullptr : found->second;
}

// TensorFlow frees this memory with plugin_memory_free.
void* allocate(size_t size) { return malloc(size); }

using Held = std::shared_ptr<Stream>;

void clean_file(TF_RandomAccessFile* file) {
  Held* held = static_cast<Held*>(file->plugin_file);
  (*held)->finish();  // closes the FIFO, so that the writer notices it at once
  const Call<End> end(end_stream);
  if (end.function) end.function((*held)->number());
  delete held;
}

int64_t read_file(const TF_RandomAccessFile* file, uint64_t offset, size_t n, char* buffer, TF_Status* status) {
  return (*static_cast<Held*>(file->plugin_file))->read(offset, n, buffer, status);
}

void start(TF_Filesystem*, TF_Status* status) { TF_SetStatus(status, TF_OK, ""); }

void stop(TF_Filesystem*) {}

void open_file(const TF_Filesystem*, const char* path, TF_RandomAccessFile* file, TF_Status* status) {
  std::string text(kLongestText, '\0');
  const Call<Begin> begin(begin_stream);
  const char* request = strstr(path, "://");
  const uint64_t number = begin.function && request ? begin.function(request + 3, &text[0], text.size() - 1) : 0;
  Held stream = number ? stream_of(number) : nullptr;
  if (!stream) {
    TF_SetStatus(status, TF_UNKNOWN, text[0] ? text.c_str() : "the channel cannot be opened any more");
    return;
  }
  file->plugin_file = new Held(std::move(stream));
  TF_SetStatus(status, TF_OK, "");
}

char* same_name(const TF_Filesystem*, const char* uri) {
  const size_t size = strlen(uri) + 1;
  return static_cast<char*>(memcpy(allocate(size), uri, size));
}

}  // namespace

extern "C" {

// Takes ownership of the descriptors `file`, which is in non-blocking mode, and `notes`, which may be -1. `leaving`
// becomes readable when the process exits. Returns the stream's number.
uint64_t fleetfit_pipe_open(int file, int notes, int leaving, uint64_t skip) {
  static std::atomic<uint64_t> numbers{0};
  const uint64_t number = ++numbers;
  std::lock_guard<std::mutex> hold(streams_lock);
  streams()[number] = std::make_shared<Stream>(number, file, notes, leaving, skip);
  return number;
}

// Sets the functions of Python. When Python exits, it passes null for all, and releases the GIL during this call, so
// that the threads that are in Python can leave it.
void fleetfit_pipe_serve(Begin begin, End end, Explain explain) {
  std::unique_lock<std::mutex> hold(python_lock);
  begin_stream = begin;
  end_stream = end;
  explain_end = explain;
  if (!begin) python_left.wait_for(hold, kGrace, [] { return python_calls == 0; });
}

// Forgets a stream. Until then, its counts can be read.
void fleetfit_pipe_forget(uint64_t number) {
  std::lock_guard<std::mutex> hold(streams_lock);
  streams().erase(number);
}

void fleetfit_pipe_counts(uint64_t number, uint64_t* bytes, uint64_t* nanoseconds) {
  if (const Held stream = stream_of(number)) stream->counts(bytes, nanoseconds);
}

int fleetfit_pipe_find(uint64_t number, uint64_t position, uint64_t* offset, uint64_t* record) {
  const Held stream = stream_of(number);
  return stream && stream->find(position, offset, record);
}

void TF_InitPlugin(TF_FilesystemPluginInfo* info) {
  info->plugin_memory_allocate = allocate;
  info->plugin_memory_free = free;
  info->num_schemes = 1;
  auto* ops = static_cast<TF_FilesystemPluginOps*>(allocate(sizeof(TF_FilesystemPluginOps)));
  memset(ops, 0, sizeof *ops);
  info->ops = ops;
  TF_SetFilesystemVersionMetadata(ops);
  ops->scheme = static_cast<char*>(memcpy(allocate(sizeof kScheme), kScheme, sizeof kScheme));
  ops->random_access_file_ops = static_cast<TF_RandomAccessFileOps*>(allocate(TF_RANDOM_ACCESS_FILE_OPS_SIZE));
  memset(ops->random_access_file_ops, 0, TF_RANDOM_ACCESS_FILE_OPS_SIZE);
  ops->random_access_file_ops->cleanup = clean_file;
  ops->random_access_file_ops->read = read_file;
  ops->filesystem_ops = static_cast<TF_FilesystemOps*>(allocate(TF_FILESYSTEM_OPS_SIZE));
  memset(ops->filesystem_ops, 0, TF_FILESYSTEM_OPS_SIZE);
  ops->filesystem_ops->init = start;
  ops->filesystem_ops->cleanup = stop;
  ops->filesystem_ops->new_random_access_file = open_file;
  ops->filesystem_ops->translate_name = same_name;
}

}  // extern "C"
