#!/usr/bin/env python3
"""Greedy answers to prompts of a task file, from one server, and the comparison of two such sets. Python's standard library alone.

  answers.py ask --port P --tasks assets/eval/tasks_1024.jsonl.gz --out certified.json
  answers.py compare certified.json dense.json
"""
import argparse
import gzip
import json
import sys
from concurrent.futures import ThreadPoolExecutor

from client import Server


def tasks(path, take):
    """`take` prompts spread over the file, or all of them."""
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        found = [json.loads(line) for line in lines]
    return found if not take or take >= len(found) else [found[i * len(found) // take] for i in range(take)]


def ask(options):
    server = Server(options.host, options.port, timeout=600)

    def one(task):
        request = {"prompt": task["prompt"], "max_tokens": len(task["answer"].encode()) + options.beyond, "temperature": 0, "certificate": True}
        answer = server.complete(request)
        return task["id"], {"text": answer.text, "right": answer.text.startswith(task["answer"]), "certificate": answer.certificate}

    with ThreadPoolExecutor(options.clients) as pool:
        answers = dict(pool.map(one, tasks(options.tasks, options.take)))
    with open(options.out, "w", encoding="utf-8") as out:
        json.dump(answers, out, indent=1)
    outputs = sum(a["certificate"]["decode_steps"] for a in answers.values())
    worst = max(((a["certificate"]["worst"] or {}).get("bound_over_tolerance", 0) for a in answers.values()), default=0)
    right = sum(a["right"] for a in answers.values())
    print(f"{len(answers)} answers, {right} right; {outputs} decode steps, worst bound over tolerance {worst:.4f}")
    return 0


def compare(options):
    first, second = (json.load(open(path, encoding="utf-8")) for path in (options.first, options.second))
    if first.keys() != second.keys() or not first:
        print("the sets are of other prompts, or empty")
        return 1
    others = [name for name in first if first[name]["text"] != second[name]["text"]]
    for name in others:
        print(f"  {name}: {first[name]['text']!r}, {second[name]['text']!r}")
    equal = len(first) - len(others)
    print(f"{equal} of {len(first)} answers are equal, {100 * equal / len(first):.2f}%")
    return 0 if equal >= options.least * len(first) else 1


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(required=True)
    asks = verbs.add_parser("ask")
    asks.add_argument("--host", default="127.0.0.1")
    asks.add_argument("--port", type=int, required=True)
    asks.add_argument("--tasks", required=True)
    asks.add_argument("--take", type=int, default=0, help="prompts, spread over the file; 0 for all")
    asks.add_argument("--beyond", type=int, default=8, help="tokens asked for beyond the right answer (8)")
    asks.add_argument("--clients", type=int, default=8)
    asks.add_argument("--out", required=True)
    asks.set_defaults(run=ask)
    compares = verbs.add_parser("compare")
    compares.add_argument("first")
    compares.add_argument("second")
    compares.add_argument("--least", type=float, default=0.99, help="share that must be equal (0.99)")
    compares.set_defaults(run=compare)
    options = parser.parse_args()
    return options.run(options)


if __name__ == "__main__":
    sys.exit(main())
