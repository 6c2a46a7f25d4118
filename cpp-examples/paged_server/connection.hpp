// Whether the client of a request is still there.
#pragma once
#include <string>

namespace paged_server {

// cpp-httplib tells a handler neither the socket nor that its client has gone, unless the response is a stream: the socket is found among
// those of the process by whom it leads to. It stays open as long as the handler runs. Linux alone; elsewhere nobody ever seems gone.
class Connection {
public:
    Connection(const std::string &address, int port);
    // The client closed its end, or is not to be reached. Does not wait.
    [[nodiscard]] bool gone() const;

private:
    int socket_ = -1;
};

} // namespace paged_server
