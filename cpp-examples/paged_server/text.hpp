// Bytes of a model as text that may be sent: UTF-8 that is whole, and nothing that may yet turn out to be part of a stop.
#pragma once
#include <string>
#include <vector>

namespace paged_server {

class Text {
public:
    // `stops`: none of them empty.
    explicit Text(std::vector<std::string> stops = {}) : stops_(std::move(stops)) {}

    // Adds a byte; what may be sent now, often nothing. After a stop was found nothing more may be added.
    std::string push(unsigned char byte);
    // A stop was found; it and what follows are not part of the text.
    [[nodiscard]] bool stopped() const { return stopped_; }
    // The rest, once no byte follows.
    std::string finish() { return take(pending_.size(), true); }

private:
    std::string take(std::size_t end, bool last);

    std::vector<std::string> stops_;
    std::string pending_; // not sent yet
    bool stopped_ = false;
};

} // namespace paged_server
