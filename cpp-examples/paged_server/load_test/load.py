#!/usr/bin/env python3
"""Many clients at once, of mixed lengths, with shared prefixes, who leave when they like; then looks whether the server is as it was.

Prints counts, latencies and tokens per second. Fails (status 1) if a response is malformed, /metrics contradicts itself, or anything is in
use when all are gone. Python's standard library alone."""
import argparse
import random
import sys
import threading
import time

import invariants
from client import Malformed, Refused, Server

OPENINGS = 6
WORDS = "the value of item page block cache token key head layer bound step sequence prefix is in and to reads writes holds".split()


def words(rng, count):
    return " ".join(rng.choice(WORDS) for _ in range(count))


# Each is refused with this status, and with this field named.
WRONG = [
    ({"prompt": 7}, 400, "prompt"),
    ({}, 400, "prompt"),
    ({"prompt": "a", "max_tokens": 0}, 400, "max_tokens"),
    ({"prompt": "a", "max_tokens": 1.5}, 400, "max_tokens"),
    ({"prompt": "a", "max_tokens": 16777216}, 400, "prompt"),
    ({"prompt": "a", "temperature": -1}, 400, "temperature"),
    ({"prompt": "a", "temperature": "hot"}, 400, "temperature"),
    ({"prompt": "a", "stop": ["", "b"]}, 400, "stop"),
    ({"prompt": "a", "stream": "yes"}, 400, "stream"),
    ({"prompt": "a", "seed": "x"}, 400, "seed"),
    ({"prompt": "a", "best_of": 3}, 400, "best_of"),
    ({"prompt": "a", "n": 2}, 400, "n"),
    ({"prompt": "a", "model": "another"}, 404, "model"),
]


class Load:
    def __init__(self, server, options):
        self.server, self.options = server, options
        rng = random.Random(options.seed)
        self.openings = [f"Document {i}. {words(rng, 20 + 25 * i)}." for i in range(OPENINGS)]
        self.lock = threading.Lock()
        self.counts, self.wrong = {}, []
        self.first, self.whole = [], []
        self.tokens = self.cached = self.sent = self.preempted = 0
        self.worst = 0.0
        self.end = time.monotonic() + options.seconds

    def count(self, what):
        with self.lock:
            self.counts[what] = self.counts.get(what, 0) + 1

    def violation(self, what):
        with self.lock:
            self.wrong.append(what)
        self.count("violations")

    def request(self, rng):
        """A random request that is right."""
        longest = self.options.longest
        prompt = rng.choice(self.openings) if rng.random() < 0.6 else ""
        prompt += words(rng, rng.choice([1, 5, 20, 60, 120])) + rng.choice(["", " \u00e9\u20ac\U0001f642"])
        request = {"prompt": prompt, "max_tokens": rng.choice([1, 4, 16, longest // 2, longest]), "certificate": True}
        if rng.random() < self.options.growing:
            request["prompt"], request["max_tokens"] = words(rng, 10), longest
        request["temperature"] = rng.choice([0, 0.7, 1.0])
        request["seed"] = rng.randrange(1 << 32)
        if rng.random() < 0.2:
            request["stop"] = rng.choice(["\n", [".", "the "], ["\n\n"]])
        if rng.random() < 0.6:
            request["stream"] = True
            if rng.random() < 0.5:
                request["stream_options"] = {"include_usage": True}
        return request

    def check(self, request, answer):
        """What must be true of an answer to its end."""
        stops = request.get("stop", [])
        stops = [stops] if isinstance(stops, str) else stops
        faults = [f"the stop {s!r} is in the text" for s in stops if s in answer.text]
        if answer.usage is not None:
            prompt, made = answer.usage["prompt_tokens"], answer.usage["completion_tokens"]
            if prompt != 1 + len(request["prompt"].encode()) or answer.usage["prompt_tokens_details"]["cached_tokens"] >= prompt:
                faults.append(f"usage {answer.usage} of a prompt of {len(request['prompt'].encode())} bytes")
            if made > request["max_tokens"] or (answer.finish == "length" and made != request["max_tokens"]):
                faults.append(f"{made} tokens, finish {answer.finish}, max_tokens {request['max_tokens']}")
            if len(answer.text) > made:
                faults.append(f"{len(answer.text)} characters from {made} tokens")
        c = answer.certificate
        if c is None:
            faults.append("no certificate")
        else:
            outputs = c["outputs"]
            given = sum(outputs[k] for k in ("certified", "exact", "uncertified", "failed"))
            if given != sum(c["rungs"].values()) or given != c["decode_steps"] * self.options.outputs or outputs["beyond_tolerance"]:
                faults.append(f"a certificate that does not add up: {c}")
            if self.options.policy == "certified" and (outputs["uncertified"] or outputs["failed"]):
                faults.append(f"uncertified outputs: {c}")
            # A promise of the quantisation alone; the bound has the kernel's rounding on top.
            if c["worst"] is not None and not c["worst"]["bound_over_tolerance"] <= 1.1:
                faults.append(f"a bound far over its tolerance: {c['worst']}")
        for fault in faults:
            self.violation(f"{answer.id}: {fault}")

    def account(self, answer, seconds, first):
        with self.lock:
            if answer.usage is not None:
                self.tokens += answer.usage["completion_tokens"]
                self.cached += answer.usage["prompt_tokens_details"]["cached_tokens"]
            else:
                self.tokens += answer.pieces
            self.whole.append(seconds)
            if first is not None:
                self.first.append(first)
            if answer.certificate is not None:
                self.preempted += answer.certificate["preemptions"] > 0
                if answer.certificate["worst"] is not None:
                    self.worst = max(self.worst, answer.certificate["worst"]["bound_over_tolerance"])

    def ask_wrongly(self, rng):
        request, status, param = rng.choice(WRONG)
        try:
            self.server.complete(request)
            self.violation(f"{request} was accepted")
        except Refused as e:
            if e.status != status or e.error["param"] != param:
                self.violation(f"{request} was refused with {e}")
            self.count("refused as they should be")

    def ask(self, rng):
        request = self.request(rng)
        kind, leave, times = rng.random(), None, []
        on_piece = None
        start = time.monotonic()
        if kind < self.options.aborts:
            leave = rng.choice([1, 3, 10]) if request.get("stream") else rng.uniform(0.01, 1.0)
        elif kind < self.options.aborts + 0.05 and request.get("stream"):
            after = rng.choice([1, 5])

            def on_piece(name, pieces):
                times.append(time.monotonic() - start)
                if pieces == after and self.server.cancel(name)[0] not in (200, 404):
                    self.violation(f"{name} could not be cancelled")
        else:
            def on_piece(_, pieces):
                if pieces == 1:
                    times.append(time.monotonic() - start)
        try:
            with self.lock:
                self.sent += 1
            answer = self.server.complete(request, leave, on_piece)
        except Refused as e:
            if e.status == 429:
                self.count("queue full")
                time.sleep(rng.uniform(0.1, 0.5))
            else:
                self.violation(f"{request} was refused with {e}")
            return
        if answer.left:
            self.count("left by the client")
            return
        self.count(f"finished: {answer.finish}")
        self.check(request, answer)
        self.account(answer, time.monotonic() - start, times[0] if times else None)

    def client(self, number):
        rng = random.Random(f"{self.options.seed}-{number}")
        while time.monotonic() < self.end and len(self.wrong) < 20:
            try:
                if rng.random() < 0.04:
                    self.ask_wrongly(rng)
                else:
                    self.ask(rng)
            except Malformed as e:
                self.violation(f"malformed: {e}")

    def look(self, before):
        """One look at /metrics: violations are noted."""
        values, kinds = invariants.read(self.server.get("/metrics"))
        for fault in invariants.at_any_time(values, self.options.policy, self.options.outputs):
            self.violation(fault)
        for fault in invariants.from_to(before, values, kinds) if before else ():
            self.violation(fault)
        self.count("looks at /metrics")
        return values

    def watch(self, over):
        before = None
        while not over.is_set():
            try:
                before = self.look(before)
            except (Malformed, ValueError, KeyError, OSError) as e:
                self.violation(f"/metrics: {e!r}")
            over.wait(0.5)

    def drain(self):
        """Waits until nothing is under way, forgets prefixes, and looks for what is left."""
        end = time.monotonic() + 30
        values = self.look(None)
        while invariants.total(values, "requests") and time.monotonic() < end:
            time.sleep(0.1)
            values = self.look(values)
        status, data = self.server.call("POST", "/admin/evict_prefixes", b"")
        if status != 200:
            self.violation(f"prefixes could not be evicted: {data!r}")
        values = self.look(values)
        for fault in invariants.at_rest(values):
            self.violation(fault)
        return values

    def check_swaps(self, values):
        """Whether as many sequences left as were to leave, and came back, and some of them were answered."""
        moved = {way: int(invariants.one(values, "preemptions_total", way)) for way in ("swap_out", "swap_in")}
        if min(moved.values()) < self.options.swaps or (self.options.swaps and not self.preempted):
            self.violation(f"swapped {moved}, {self.preempted} answers from preempted requests: fewer than {self.options.swaps}")

    def run(self):
        over = threading.Event()
        watcher = threading.Thread(target=self.watch, args=(over,))
        clients = [threading.Thread(target=self.client, args=(i,)) for i in range(self.options.clients)]
        start = time.monotonic()
        for thread in [watcher, *clients]:
            thread.start()
        for thread in clients:
            thread.join()
        seconds = time.monotonic() - start
        over.set()
        watcher.join()
        return seconds, self.drain()


def percentiles(seconds):
    if not seconds:
        return "none"
    ordered = sorted(seconds)
    pick = lambda p: ordered[min(len(ordered) - 1, int(p * len(ordered)))]
    return ", ".join(f"{name} {pick(p):.3f} s" for name, p in [("p50", 0.5), ("p90", 0.9), ("p99", 0.99)]) + f", most {ordered[-1]:.3f} s"


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--aborts", type=float, default=0.15, help="share of requests whose client leaves (0.15)")
    parser.add_argument("--patience", type=float, default=60, help="seconds without a byte that are a violation (60)")
    parser.add_argument("--longest", type=int, default=96, help="most tokens of a completion (96)")
    parser.add_argument("--policy", default="certified", help="what the server runs under, for what its metrics must say")
    parser.add_argument("--outputs", type=int, default=24, help="layers times query heads of the model (24)")
    parser.add_argument("--growing", type=float, default=0, help="share of requests that begin short and want the most tokens (0)")
    parser.add_argument("--swaps", type=int, default=0, help="sequences that have to be swapped out, and to come back (0)")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    load = Load(Server(options.host, options.port, options.patience), options)
    seconds, values = load.run()
    load.check_swaps(values)
    print(f"{options.clients} clients, {seconds:.1f} s, {load.sent} requests, seed {options.seed}")
    print("  " + ", ".join(f"{what} {n}" for what, n in sorted(load.counts.items())))
    print(f"  to the first token of a stream: {percentiles(load.first)}")
    print(f"  whole completion: {percentiles(load.whole)}")
    sampled = invariants.one(values, "tokens_total", "sampled")
    rungs = {labels[0]: int(n) for labels, n in values["outputs_by_rung_total"].items()}
    print(f"  {load.tokens} tokens received, {load.tokens / seconds:.1f} a second; of prompts {load.cached} tokens from cached prefixes")
    print(f"  server: {sampled:.0f} tokens sampled, preemptions {[int(n) for n in values['preemptions_total'].values()]} (out, in, dropped), "
          f"{load.preempted} answers from preempted requests")
    print(f"  outputs by rung {rungs}, worst bound over tolerance {load.worst:.4f}")
    if load.counts.get("violations", 0) == 0 and not any(k.startswith("finished") for k in load.counts):
        load.wrong.append("no request was answered")
    # The first, and the last, which are of what was left.
    for fault in load.wrong[:10] + load.wrong[10:][-10:]:
        print(f"  VIOLATION {fault[:400]}")
    print(f"  {len(load.wrong)} violations")
    return 1 if load.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
