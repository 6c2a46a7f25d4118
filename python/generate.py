#!/usr/bin/env python3
"""Writes python/certkv/_abi.py anew from include/certkv.h: constants, structs and prototypes for ctypes.

Run it without arguments after a change of the header; a test fails as long as the two differ. It reads the C that the
header is written in and no other: whatever it does not understand is an error, never left out.
"""
import argparse
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
HEADER = ROOT / "include" / "certkv.h"
OUT = ROOT / "python" / "certkv" / "_abi.py"

SCALARS = {
    "char": "c_char", "float": "c_float", "double": "c_double", "int": "c_int", "size_t": "c_size_t",
    **{f"{sign}int{bits}_t": f"c_{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)},
}


class Unreadable(Exception):
    """The header has something that this script has no words for."""


class Header:
    """What a header declares, in its order."""

    def __init__(self, text):
        self.constants, self.statuses, self.aliases = {}, {}, {}
        self.opaque, self.structs, self.functions = [], {}, {}
        text = re.sub(r"/\*.*?\*/", " ", text, flags=re.S)
        text = re.sub(r"//[^\n]*", " ", text).replace("\\\n", " ")
        self._declarations(self._preprocessed(text))

    def _preprocessed(self, text):
        kept = []
        for line in text.splitlines():
            define = re.fullmatch(r"\s*#define\s+(CERTKV_\w+)\s+(.+?)\s*", line)
            if define:
                self._constant(*define.groups())
            elif not line.lstrip().startswith("#"):
                kept.append(line)
        text = "\n".join(kept)
        # The two spellings of the status type for C and C++, and the linkage of C++.
        text = re.sub(r'extern\s+"C"\s*\{', " ", text)
        return re.sub(r"typedef\s+(enum\s+)?(certkv_status|int32_t)\s+certkv_status\s*;", " ", text)

    def _constant(self, name, value):
        number = re.fullmatch(r"\(?\s*(-?(?:0[xX][0-9a-fA-F]+|\d+))[uUlL]*\s*\)?", value)
        text = re.fullmatch(r'"([^"\\]*)"', value)
        if number:
            self.constants[name] = int(number.group(1), 0)
        elif text:
            self.constants[name] = text.group(1)
        elif value in ("UINT32_MAX", "UINT64_MAX"):
            self.constants[name] = 2 ** int(value[4:6]) - 1
        elif name != "CERTKV_VERSION_NUMBER":
            raise Unreadable(f"#define {name} {value}")

    def _declarations(self, text):
        at = 0
        forms = (
            (r"enum\s+certkv_status\s*(?::\s*int32_t)?\s*\{([^}]*)\}\s*;", self._statuses),
            (r"typedef\s+struct\s+(\w+)\s*\{([^}]*)\}\s*(\w+)\s*;", self._struct),
            (r"typedef\s+struct\s+(\w+)\s+(\w+)\s*;", self._opaque),
            (r"typedef\s+([\w\s*]+?)\(\s*\*\s*(\w+)\s*\)\s*\(([^()]*)\)\s*;", self._callback),
            (r"typedef\s+(\w+)\s+(\w+)\s*;", self._alias),
            (r"([\w\s*]+?)\b(certkv_\w+)\s*\(([^()]*)\)\s*;", self._function),
            # What is left of the linkage of C++.
            (r"\}", lambda: None),
        )
        while text[at:].strip():
            at += len(text[at:]) - len(text[at:].lstrip())
            for pattern, read in forms:
                found = re.compile(pattern).match(text, at)
                if found:
                    read(*found.groups())
                    at = found.end()
                    break
            else:
                raise Unreadable(" ".join(text[at:at + 120].split()))

    def _statuses(self, body):
        for item in filter(None, (part.strip() for part in body.split(","))):
            found = re.fullmatch(r"(CERTKV_\w+)\s*=\s*(-?\d+)", item)
            if not found:
                raise Unreadable(item)
            self.statuses[found.group(1)] = int(found.group(2))

    def _struct(self, tag, body, name):
        if tag != name:
            raise Unreadable(f"struct {tag} is called {name}")
        self.structs[name] = [self._field(f.strip()) for f in body.split(";") if f.strip()]

    def _field(self, text):
        pointer = re.fullmatch(r"([\w\s*]+?)\(\s*\*\s*(\w+)\s*\)\s*\(([^()]*)\)", text)
        if pointer:
            return pointer.group(2), self._prototype_type(pointer.group(1), pointer.group(3))
        found = re.fullmatch(r"(.+?)(\w+)((?:\s*\[\w+\])*)", text, flags=re.S)
        if not found:
            raise Unreadable(text)
        kind, name, dimensions = found.groups()
        written = self._type(kind)
        for size in reversed(re.findall(r"\[(\w+)\]", dimensions)):
            written = f"{written} * {self.constants[size] if size in self.constants else int(size, 0)}"
        return name, written

    def _opaque(self, tag, name):
        if tag != name:
            raise Unreadable(f"struct {tag} is called {name}")
        self.opaque.append(name)

    def _callback(self, result, name, parameters):
        self.aliases[name] = self._prototype_type(result, parameters)

    def _alias(self, kind, name):
        self.aliases[name] = self._type(kind)

    def _function(self, result, name, parameters):
        self.functions[name] = (self._type(result), self._parameters(parameters))

    def _parameters(self, text):
        parts = [p.strip() for p in text.split(",")]
        if parts in (["void"], [""]):
            return []
        return [self._type(re.fullmatch(r"(.+?)\w+", p, flags=re.S).group(1)) for p in parts]

    def _prototype_type(self, result, parameters):
        return f"ctypes.CFUNCTYPE({', '.join([self._type(result), *self._parameters(parameters)])})"

    def _type(self, text):
        """A C type in the words of ctypes. Opaque handles are plain addresses."""
        words = [w for w in re.findall(r"\w+|\*", text) if w not in ("const", "struct", "enum")]
        stars = words.count("*")
        base = " ".join(w for w in words if w != "*")
        if base == "char" and stars == 1:
            return "ctypes.c_char_p"
        if base == "void" or base in self.opaque:
            if stars == 0 and base == "void":
                return "None"
            if stars == 0:
                raise Unreadable(text)
            written, stars = "ctypes.c_void_p", stars - 1
        elif base in SCALARS:
            written = f"ctypes.{SCALARS[base]}"
        elif base == "certkv_status" or base in self.aliases or base in self.structs:
            written = base
        else:
            raise Unreadable(text)
        for _ in range(stars):
            written = f"ctypes.POINTER({written})"
        return written


def _names(kind, structs):
    """Whether a type in the words of ctypes is made of one of `structs`."""
    return any(word in structs for word in re.findall(r"\w+", kind))


def written(header):
    """The text of _abi.py."""
    lines = [
        '"""Constants, structs and prototypes of certkv.h. Generated by python/generate.py; do not edit.',
        "",
        "Names are those of the header, which says what they mean. Opaque handles are addresses (c_void_p).",
        '"""',
        "import ctypes",
        "",
    ]
    lines += [f"{name} = {value!r}".replace("'", '"') for name, value in header.constants.items()]
    lines += ["", "certkv_status = ctypes.c_int32"]
    lines += [f"{name} = {value}" for name, value in header.statuses.items()]
    lines += ["", "#: Name of every status that this header knows.", "STATUS_NAMES = {"]
    lines += [f'    {value}: "{name}",' for name, value in header.statuses.items()]
    lines += ["}", ""]
    lines += [f"{name} = {kind}" for name, kind in header.aliases.items() if not _names(kind, header.structs)]
    for name, fields in header.structs.items():
        lines += ["", "", f"class {name}(ctypes.Structure):", "    _fields_ = ["]
        lines += [f'        ("{field}", {kind}),' for field, kind in fields]
        lines += ["    ]"]
    # Behind the structs that they name; a struct with such a field would come before its type, which the import would show.
    of_structs = [f"{name} = {kind}" for name, kind in header.aliases.items() if _names(kind, header.structs)]
    lines += ["", "", *of_structs] if of_structs else []
    lines += ["", "", "#: Every struct that is not opaque, by name.", "STRUCTS = {"]
    lines += [f'    "{name}": {name},' for name in header.structs]
    lines += ["}", "", "#: Every function: its result and its parameters.", "PROTOTYPES = {"]
    for name, (result, parameters) in header.functions.items():
        lines += [f'    "{name}": (', f"        {result},", "        ["]
        lines += [f"            {kind}," for kind in parameters]
        lines += ["        ],", "    ),"]
    lines += ["}", ""]
    return "\n".join(lines)


def main(arguments):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--header", type=pathlib.Path, default=HEADER)
    parser.add_argument("--out", type=pathlib.Path, default=OUT)
    given = parser.parse_args(arguments)
    given.out.write_text(written(Header(given.header.read_text())))


if __name__ == "__main__":
    main(sys.argv[1:])
