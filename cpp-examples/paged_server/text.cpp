#include "text.hpp"

#include <algorithm>

namespace paged_server {
namespace {

struct Character {
    std::size_t size; // bytes that it takes, or that are refused together
    enum { good, bad, cut } kind; // cut: more bytes may make it good
};

// The first character of `text`, by table 3-7 of the Unicode standard: no surrogates, nothing overlong, nothing above U+10FFFF.
Character first(const char *text, std::size_t size)
{
    const auto at = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
    const unsigned char lead = at(0);
    if (lead < 0x80) {
        return {1, Character::good};
    }
    const std::size_t whole = lead >= 0xc2 && lead <= 0xdf ? 2 : (lead & 0xf0) == 0xe0 ? 3 : lead >= 0xf0 && lead <= 0xf4 ? 4 : 0;
    if (whole == 0) {
        return {1, Character::bad};
    }
    for (std::size_t i = 1; i < whole; i++) {
        if (i == size) {
            return {i, Character::cut};
        }
        const unsigned char least = i > 1 ? 0x80 : lead == 0xe0 ? 0xa0 : lead == 0xf0 ? 0x90 : 0x80;
        const unsigned char most = i > 1 ? 0xbf : lead == 0xed ? 0x9f : lead == 0xf4 ? 0x8f : 0xbf;
        if (at(i) < least || at(i) > most) {
            return {i, Character::bad};
        }
    }
    return {whole, Character::good};
}

} // namespace

std::string Text::push(unsigned char byte)
{
    pending_.push_back(static_cast<char>(byte));
    std::size_t held = 0, found = 0;
    for (const std::string &stop : stops_) {
        // The longest beginning of the stop with which the text ends.
        for (std::size_t size = std::min(stop.size(), pending_.size()); size > 0; size--) {
            if (pending_.compare(pending_.size() - size, size, stop, 0, size) == 0) {
                (size == stop.size() ? found : held) = std::max(size == stop.size() ? found : held, size);
                break;
            }
        }
    }
    if (found > 0) {
        stopped_ = true;
        pending_.resize(pending_.size() - found);
        return finish();
    }
    return take(pending_.size() - held, false);
}

std::string Text::take(std::size_t end, bool last)
{
    std::string out;
    std::size_t at = 0;
    while (at < end) {
        const Character c = first(pending_.data() + at, end - at);
        if (c.kind == Character::cut && !last) {
            break;
        }
        out += c.kind == Character::good ? pending_.substr(at, c.size) : "\xef\xbf\xbd"; // U+FFFD
        at += c.size;
    }
    pending_.erase(0, at);
    return out;
}

} // namespace paged_server
