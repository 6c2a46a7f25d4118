"""A client that believes nothing: completions over raw HTTP, every field checked, connections that can be left at any point."""
import http.client
import json
import socket

USAGE = {"prompt_tokens", "completion_tokens", "total_tokens", "prompt_tokens_details"}
CHOICE = {"text", "index", "logprobs", "finish_reason"}
FRAME = {"id", "object", "created", "model", "choices"}


class Malformed(Exception):
    """A response that is not what the protocol says."""


class Refused(Exception):
    """A typed error of the server."""

    def __init__(self, status, error):
        super().__init__(f"{status} {error}")
        self.status, self.error = status, error


class Answer:
    """A completion: its text, how it ended, and what it took."""

    def __init__(self):
        self.id = self.finish = self.usage = self.certificate = None
        self.text, self.pieces, self.left = "", 0, False


def need(right, what, said):
    if not right:
        raise Malformed(f"{what}: {said!r}"[:600])


def parsed(data):
    try:
        return json.loads(data)
    except ValueError:
        raise Malformed(f"no JSON: {data!r}"[:600]) from None


def error_of(status, data):
    """The error in a body, which has to be typed."""
    body = parsed(data)
    error = body.get("error") if isinstance(body, dict) else None
    need(isinstance(error, dict) and set(error) == {"message", "type", "param", "code"}, "an error without its fields", data)
    need(isinstance(error["message"], str) and error["message"] and isinstance(error["type"], str), "an error without text", data)
    return Refused(status, error)


class Server:
    def __init__(self, host, port, timeout=60.0):
        self.host, self.port, self.timeout = host, port, timeout

    def call(self, method, path, body=None):
        """Status and body of a small request."""
        connection = http.client.HTTPConnection(self.host, self.port, timeout=self.timeout)
        try:
            connection.request(method, path, body)
            response = connection.getresponse()
            return response.status, response.read()
        except http.client.HTTPException as e:
            raise Malformed(f"{method} {path}: {e!r}") from None
        finally:
            connection.close()

    def get(self, path):
        status, data = self.call("GET", path)
        need(status == 200, f"{path} answers {status}", data)
        return data.decode()

    def cancel(self, name):
        return self.call("POST", f"/v1/completions/{name}/cancel", b"")

    def complete(self, request, leave_after=None, on_piece=None):
        """Asks for a completion. `leave_after`: seconds or, of a stream, pieces after which the connection is simply closed.
        `on_piece`: called with the id and the number of pieces so far."""
        connection = http.client.HTTPConnection(self.host, self.port, timeout=self.timeout)
        answer = Answer()
        try:
            connection.connect()
            connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if leave_after is not None and not request.get("stream"):
                connection.sock.settimeout(max(leave_after, 0.001))
            connection.request("POST", "/v1/completions", json.dumps(request), {"Content-Type": "application/json"})
            try:
                response = connection.getresponse()
                if response.status != 200:
                    raise error_of(response.status, response.read())
                if request.get("stream"):
                    self._stream(response, request, answer, leave_after, on_piece)
                else:
                    self._whole(response, answer)
            except TimeoutError:
                if leave_after is None:
                    raise Malformed(f"no answer in {self.timeout} s") from None
                answer.left = True
            return answer
        except http.client.HTTPException as e:
            raise Malformed(f"completion: {e!r}") from None
        except (ConnectionError, OSError) as e:
            raise Malformed(f"completion: {e!r}") from None
        finally:
            connection.close()

    def _frame(self, data, answer, created):
        need(isinstance(data, dict) and FRAME <= set(data), "a completion without its fields", data)
        need(data["object"] == "text_completion" and isinstance(data["created"], int), "object or created", data)
        need(answer.id in (None, data["id"]) and created in (None, data["created"]), "another id or time in one stream", data)
        answer.id = data["id"]
        return data

    def _choice(self, data, answer):
        choices = data["choices"]
        need(isinstance(choices, list) and len(choices) == 1 and set(choices[0]) == CHOICE, "choices", data)
        choice = choices[0]
        need(choice["index"] == 0 and isinstance(choice["text"], str), "a choice", data)
        need(answer.finish is None, "text after the end", data)
        need(choice["finish_reason"] in (None, "stop", "length", "cancelled"), "finish_reason", data)
        answer.text += choice["text"]
        answer.finish = choice["finish_reason"]
        answer.certificate = data.get("certificate", answer.certificate)

    def _usage(self, usage, answer):
        need(isinstance(usage, dict) and set(usage) == USAGE, "usage", usage)
        need(usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"], "usage does not add up", usage)
        answer.usage = usage

    def _whole(self, response, answer):
        need(response.headers.get_content_type() == "application/json", "content type", response.headers.as_string())
        data = self._frame(parsed(response.read()), answer, None)
        self._choice(data, answer)
        need(answer.finish is not None, "no finish_reason", data)
        need(response.headers["X-Request-Id"] == answer.id, "X-Request-Id", response.headers.as_string())
        self._usage(data.get("usage"), answer)

    def _stream(self, response, request, answer, leave_after, on_piece):
        need(response.headers.get_content_type() == "text/event-stream", "content type", response.headers.as_string())
        answer.id, created, done = response.headers["X-Request-Id"], None, False
        while not done:
            line = response.readline()
            need(line != b"", "a stream without its end", answer.text[-80:])
            need(line.startswith(b"data: ") and line.endswith(b"\n") and response.readline() == b"\n", "an event", line)
            payload = line[6:-1]
            if payload == b"[DONE]":
                done = True
                break
            data = parsed(payload)
            if isinstance(data, dict) and "error" in data:
                raise error_of(500, payload)
            data = self._frame(data, answer, created)
            created = data["created"]
            if data["choices"] == []:
                need(answer.finish is not None and answer.usage is None, "usage before the end", data)
                self._usage(data.get("usage"), answer)
                continue
            self._choice(data, answer)
            answer.pieces += 1
            if on_piece is not None:
                on_piece(answer.id, answer.pieces)
            if leave_after is not None and answer.pieces >= leave_after and answer.finish is None:
                answer.left = True
                return
        need(answer.finish is not None, "[DONE] before a finish_reason", answer.text[-80:])
        wanted = request.get("stream_options", {}).get("include_usage", False)
        need((answer.usage is not None) == wanted, "usage where it was not asked for, or the reverse", answer.usage)
        need(response.read() == b"", "bytes after [DONE]", answer.text[-80:])
