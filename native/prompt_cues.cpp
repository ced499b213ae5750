#include "prompt_cues.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string_view>

namespace headrace {
namespace {

using Bytes = std::span<const uint8_t>;

enum : uint8_t { kWord = 1, kDigit = 2, kUpper = 4, kLower = 8, kSymbol = 16, kHigh = 32 };
constexpr size_t kMostOptions = 6;
constexpr double kLongestOption = 2000;
constexpr std::string_view kPhrases[] = {
    "statement 1",
    "all of the above",
    "none of the above",
    "which of the following",
    "most likely",
    "best ",
    "how many",
    "find the",
    "according to",
    " if ",
    " i ",
    "```",
    "def ",
    "write ",
    "explain",
    "translate",
    "prove",
    " not ",
};
constexpr std::string_view kCommon[] = {"the", "of", "a", "an", "in", "to", "and", "is", "that", "for"};
constexpr std::string_view kQuestions[] = {"which", "what", "who", "when", "where", "how", "why"};

constexpr std::array<uint8_t, 256> classes() {
  std::array<uint8_t, 256> table{};
  for (int byte = 0; byte < 256; ++byte) {
    const char letter = char(byte);
    if (byte >= 128)
      table[byte] = kWord | kHigh;
    else if (letter >= '0' && letter <= '9')
      table[byte] = kWord | kDigit;
    else if (letter >= 'A' && letter <= 'Z')
      table[byte] = kWord | kUpper;
    else if (letter >= 'a' && letter <= 'z')
      table[byte] = kWord | kLower;
    else if (byte && std::string_view("+-*/=^<>|$\\{}[]%").find(letter) != std::string_view::npos)
      table[byte] = kSymbol;
  }
  return table;
}
constexpr std::array<uint8_t, 256> kClasses = classes();

constexpr uint8_t fold(uint8_t byte) { return byte >= 'A' && byte <= 'Z' ? byte + 32 : byte; }

// Without regard to case.
template <class Text>
constexpr uint64_t hash_of(const Text& word) {
  constexpr uint64_t kMultiplier = 0x9E3779B97F4A7C15;
  uint64_t hash = 0, power = kMultiplier;
  for (auto byte : word) {
    hash += (uint64_t(fold(uint8_t(byte))) + 1) * power;
    power *= kMultiplier;
  }
  return hash;
}

struct Word {
  size_t start, length;
  uint64_t hash;
};

struct Prompt {
  Bytes text;
  std::vector<uint8_t> folded;
  std::vector<Word> words;
  std::vector<size_t> marks;  // where answers to choose from begin, the first few
  size_t question;            // where they do, or the end

  explicit Prompt(Bytes text) : text(text), folded(text.size()), question(text.size()) {
    std::transform(text.begin(), text.end(), folded.begin(), fold);
    for (size_t i = 0; i < text.size();) {
      size_t end = i;
      while (end < text.size() && kClasses[text[end]] & kWord) ++end;
      if (end > i) words.push_back({i, end - i, hash_of(text.subspan(i, end - i))});
      i = std::max(end, i + 1);
    }
    for (size_t i = 0; i < text.size() && marks.size() < kMostOptions; ++i)
      if ((!i || text[i - 1] == '\n') && is_option(i)) marks.push_back(i);
    if (!marks.empty()) question = marks[0];
  }

  // "(A) ", "B. " and the like.
  bool is_option(size_t at) const {
    if (text[at] == '(') ++at;
    return at + 2 < text.size() && text[at] >= 'A' && text[at] <= 'J' && (text[at + 1] == '.' || text[at + 1] == ')') &&
           (text[at + 2] == ' ' || text[at + 2] == '\t');
  }
  size_t count(uint8_t kinds, size_t from, size_t to) const {
    size_t found = 0;
    for (size_t i = from; i < to; ++i) found += (kClasses[text[i]] & kinds) != 0;
    return found;
  }
  // Words that begin before it.
  size_t words_before(size_t at) const {
    auto begins_before = [](const Word& word, size_t place) { return word.start < place; };
    return size_t(std::lower_bound(words.begin(), words.end(), at, begins_before) - words.begin());
  }
  // The hashes of some words, ascending, each once.
  std::vector<uint64_t> distinct(size_t from, size_t to) const {
    std::vector<uint64_t> found;
    for (size_t i = from; i < to; ++i) found.push_back(words[i].hash);
    std::sort(found.begin(), found.end());
    found.erase(std::unique(found.begin(), found.end()), found.end());
    return found;
  }
};

class Cues {
 public:
  void add(double value) { values_[size_++] = value; }
  void skip(int count) { size_ += count; }  // zeros
  std::array<double, kCues> values_{};

 private:
  int size_ = 0;
};

std::string_view view(Bytes bytes) { return {reinterpret_cast<const char*>(bytes.data()), bytes.size()}; }

void add_sizes(Cues& cues, const Prompt& p) {
  const size_t words = p.words.size(), distinct = p.distinct(0, words).size();
  for (size_t count : {p.text.size(), p.question, words, p.words_before(p.question), distinct})
    cues.add(std::log1p(double(count)));
  cues.add(double(distinct) / double(words + 1));
}

void add_characters(Cues& cues, const Prompt& p) {
  const size_t size = p.text.size();
  for (uint8_t kind : {kDigit, kUpper, kSymbol, kHigh}) cues.add(double(p.count(kind, 0, size)) / double(size + 1));
  cues.add(double(p.count(kDigit, p.question, size)) / double(size - p.question + 1));
  cues.add(std::log1p(double(p.count(kDigit, 0, size))));
  const std::string_view text = view(p.text);
  for (std::string_view mark : {"\n", ". ", ",", "(", "\""}) {
    size_t found = 0;
    for (size_t at = text.find(mark); at != text.npos; at = text.find(mark, at + mark.size())) ++found;
    cues.add(std::log1p(double(found)));
  }
}

void add_wording(Cues& cues, const Prompt& p) {
  if (p.words.empty()) return cues.skip(9);
  const double words = double(p.words.size());
  double letters = 0, squares = 0;
  size_t longer = 0, shorter = 0, upper = 0, digit = 0, common = 0;
  static const auto kCommonHashes = [] {
    std::array<uint64_t, std::size(kCommon)> hashes;
    std::transform(std::begin(kCommon), std::end(kCommon), hashes.begin(), hash_of<std::string_view>);
    return hashes;
  }();
  for (const Word& word : p.words) {
    letters += double(word.length);
    longer += word.length > 9;
    shorter += word.length < 4;
    upper += (kClasses[p.text[word.start]] & kUpper) != 0;
    digit += (kClasses[p.text[word.start]] & kDigit) != 0;
    common += size_t(std::count(kCommonHashes.begin(), kCommonHashes.end(), word.hash));
  }
  const double mean = letters / words;
  for (const Word& word : p.words) squares += (double(word.length) - mean) * (double(word.length) - mean);
  cues.add(std::log(mean));
  cues.add(std::sqrt(squares / words));
  cues.add(double(longer) / words);
  cues.add(std::log1p(double(longer)));
  for (size_t count : {shorter, upper, digit, common}) cues.add(double(count) / words);
  double asked = 0;
  for (std::string_view word : kQuestions)
    if (p.words[0].hash == hash_of(word)) asked = word == kQuestions[0] ? 1.0 : 0.5;
  cues.add(asked);
}

// Of how many elements that both have, among those of either.
double alike(const std::vector<uint64_t>& one, const std::vector<uint64_t>& other, size_t* both) {
  std::vector<uint64_t> shared;
  std::set_intersection(one.begin(), one.end(), other.begin(), other.end(), std::back_inserter(shared));
  *both = shared.size();
  return double(shared.size()) / double(one.size() + other.size() - shared.size() + 1);
}

void add_options(Cues& cues, const Prompt& p) {
  const size_t count = p.marks.size();
  cues.add(double(count));
  if (count < 2) return cues.skip(7);
  std::vector<std::vector<uint64_t>> words;
  const auto asked = p.distinct(0, p.words_before(p.question));
  double sum = 0, squares = 0, most = -3, least = kLongestOption, likeness = 0, told = 0, numbers = 0;
  std::vector<double> sizes;
  for (size_t i = 0; i < count; ++i) {
    const size_t from = p.marks[i], to = i + 1 < count ? p.marks[i + 1] : p.text.size();
    sizes.push_back(std::min(double(to - from), kLongestOption) - 3.0);
    sum += sizes.back();
    most = std::max(most, sizes.back());
    least = std::min(least, sizes.back());
    const size_t first = p.words_before(from) + 1, last = p.words_before(to);
    words.push_back(p.distinct(std::min(first, last), last));
    size_t both;
    for (size_t j = 0; j < i; ++j) likeness += alike(words[i], words[j], &both);
    alike(words[i], asked, &both);
    told += double(both) / double(words[i].size() + 1);
    numbers += double(p.count(kLower | kUpper, from + 2, to)) <= 0.25 * double(to - from - 2);
  }
  const double mean = sum / double(count);
  for (double size : sizes) squares += (size - mean) * (size - mean);
  for (double size : {mean, most, least}) cues.add(std::log1p(std::max(0.0, size)));
  cues.add(std::sqrt(squares / double(count)) / (mean + 1));
  cues.add(likeness / double(count * (count - 1) / 2));
  cues.add(told / double(count));
  cues.add(numbers / double(count));
}

void add_phrases(Cues& cues, const Prompt& p) {
  const std::string_view folded = view(p.folded);
  std::string_view asked = view(p.text.first(p.question));
  asked = asked.substr(0, asked.find_last_not_of(" \t\n\r\v\f") + 1);
  auto has = [](std::string_view text, std::string_view phrase) { return text.find(phrase) != text.npos; };
  for (std::string_view phrase : kPhrases) cues.add(has(folded, phrase));
  cues.add(has(asked, "?"));
  cues.add(has(asked, "_"));
  cues.add(asked.ends_with(":"));
  cues.add(has(asked, "NOT") || has(asked, "EXCEPT"));
}

// Words, and pairs of neighbouring ones.
void add_words(Bag& bag, const Prompt& p) {
  constexpr uint64_t kSpread = 0xD6E8FEB86659FD93;
  uint64_t last = 0;
  for (size_t i = 0; i < p.words.size(); ++i) {
    const uint64_t word = p.words[i].hash * kSpread;
    bag.add(uint32_t(word >> 50));
    if (i) bag.add(uint32_t(((last ^ (word >> 7)) * kSpread) >> 50));
    last = word;
  }
}

// Runs of one to four bytes, in lower case.
void add_letters(Bag& bag, const Prompt& p) {
  constexpr int kLongestRun = 4;
  uint32_t runs[kLongestRun] = {};  // the one of each length that ends here
  auto add = [&bag](uint32_t run) { bag.add((run * 0x01000193u) >> 18); };
  for (size_t i = 0; i < p.folded.size(); ++i) {
    const uint32_t letter = p.folded[i] + 1u;
    for (int length = kLongestRun - 1; length > 0; --length) {
      const uint32_t run = (runs[length - 1] ^ letter) * 0x85EBCA6Bu;
      runs[length] = run ^ (run >> 15);
      if (i >= size_t(length)) add(runs[length]);
    }
    add(runs[0] = letter * 0x9E3779B1u);
  }
}

}  // namespace

std::array<double, kCues> read_prompt(Bytes text, Bag& words, Bag& letters) {
  const Prompt prompt(text);
  add_words(words, prompt);
  add_letters(letters, prompt);
  Cues cues;
  add_sizes(cues, prompt);
  add_characters(cues, prompt);
  add_wording(cues, prompt);
  add_options(cues, prompt);
  add_phrases(cues, prompt);
  return cues.values_;
}

}  // namespace headrace
