// Text: what is sent together is what the bytes are, whole characters at a time, and never a part of a stop. Certificates add up.
#include "tally.hpp"
#include "text.hpp"

#include "check.hpp"

#include <cmath>

using namespace paged_server;

namespace {

struct Sent {
    std::string all;
    bool stopped = false, whole = true; // whole: each piece was UTF-8 by itself
};

bool whole_characters(const std::string &text)
{
    for (std::size_t at = 0; at < text.size();) {
        const unsigned char lead = static_cast<unsigned char>(text[at]);
        const std::size_t size = lead < 0x80 ? 1 : lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : lead >= 0xc2 ? 2 : 0;
        if (size == 0 || at + size > text.size()) {
            return false;
        }
        for (std::size_t i = 1; i < size; i++) {
            if ((static_cast<unsigned char>(text[at + i]) & 0xc0) != 0x80) {
                return false;
            }
        }
        at += size;
    }
    return true;
}

Sent send(const std::string &bytes, const std::vector<std::string> &stops = {})
{
    Text text(stops);
    Sent sent;
    const auto add = [&](const std::string &piece) {
        sent.all += piece;
        sent.whole = sent.whole && whole_characters(piece);
    };
    for (const char byte : bytes) {
        add(text.push(static_cast<unsigned char>(byte)));
        if (text.stopped()) {
            sent.stopped = true;
            return sent;
        }
    }
    add(text.finish());
    return sent;
}

void characters()
{
    const std::string bad = "\xef\xbf\xbd"; // U+FFFD
    const std::string good = "a\xc3\xa9\xe2\x82\xac\xf0\x9f\x99\x82z";
    TRUE(send(good).all == good && send(good).whole);
    // One for each byte or beginning that can be no character, and what follows stands.
    TRUE(send("\xff" "a").all == bad + "a");
    TRUE(send("\xc3" "a").all == bad + "a");
    TRUE(send("\xe2\x82" "a").all == bad + "a");
    TRUE(send("\xc0\x80").all == bad + bad); // overlong
    TRUE(send("\xed\xa0\x80").all == bad + bad + bad); // a surrogate
    TRUE(send("\xf4\x90\x80\x80").all == bad + bad + bad + bad); // above U+10FFFF
    TRUE(send("\xe2\x82").all == bad); // cut off at the end
    TRUE(send("\xe2\x82\xe2\x82\xac").all == bad + "\xe2\x82\xac");
    // The pieces of a character are held back until it is whole.
    Text text;
    TRUE(text.push(0xe2).empty() && text.push(0x82).empty() && text.push(0xac) == "\xe2\x82\xac");
}

void stops()
{
    TRUE(send("one\ntwo", {"\n"}).all == "one" && send("one\ntwo", {"\n"}).stopped);
    TRUE(send("aab", {"ab"}).all == "a");
    TRUE(send("abababc", {"ababc"}).all == "ab"); // The stop begins inside what looked like it.
    TRUE(send("xyEND", {"END", "yEND"}).all == "x"); // the longer of two that end together
    TRUE(send("EN", {"END"}).all == "EN" && !send("EN", {"END"}).stopped); // held back, and sent at the end
    TRUE(send("ENX", {"END"}).all == "ENX");
    TRUE(send("a\xe2\x82\xac" "b", {"\xe2\x82\xac"}).all == "a");
    TRUE(send("END", {"END"}).all.empty());
    Text text({"END"});
    TRUE(text.push('x') == "x" && text.push('E').empty() && text.push('N').empty() && text.push('x') == "ENx");
}

certkv_certificate certificate(std::uint8_t status, double bound, double arithmetic, double tolerance)
{
    certkv_certificate c{};
    c.status = status, c.rung = CERTKV_RUNG_PACKED, c.bound = bound, c.e_arith = arithmetic, c.tol = tolerance;
    return c;
}

void tallies()
{
    Tally a, b;
    a.add(certificate(CERTKV_CERTIFIED, 0.5, 0.0, 1.0), 1, 2);
    b.add(certificate(CERTKV_CERTIFIED, 1.05, 0.06, 1.0), 3, 0); // rounding beyond the tolerance is none of it
    b.add(certificate(CERTKV_EXACT, 7.0, 7.0, 1.0), 0, 0);
    TRUE(a.beyond == 0 && b.beyond == 0 && b.worst_ratio == 1.05);
    a.add(b);
    TRUE(a.outputs() == 3 && a.by_status[CERTKV_CERTIFIED] == 2 && a.by_status[CERTKV_EXACT] == 1);
    TRUE(a.worst_ratio == 1.05 && a.worst_layer == 3 && a.by_ratio[2] == 1 && a.by_ratio[6] == 1);
    for (const double bad : {1.5, static_cast<double>(NAN), static_cast<double>(INFINITY)}) {
        Tally c;
        c.add(certificate(CERTKV_CERTIFIED, bad, 0.0, 1.0), 0, 0);
        TRUE(c.beyond == 1);
    }
}

} // namespace

int main()
{
    characters();
    stops();
    tallies();
    return report();
}
