"""The declarations for ctypes are those of include/certkv.h: the same text anew, the same layouts as gcc's, the same
functions as the list of exported symbols. Each check is a function that answers what is wrong, so that a planted
difference shows that it can fail. Needs gcc; no library is loaded.
"""
import ctypes
import importlib.util
import pathlib
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.dont_write_bytecode = True
sys.path.insert(0, str(ROOT / "python"))

import generate  # noqa: E402
from certkv import _abi  # noqa: E402

HEADER = generate.HEADER.read_text()


def drift(header):
    """Why the generated file is not that of `header`; empty if it is."""
    return [] if generate.written(generate.Header(header)) == generate.OUT.read_text() else ["_abi.py: run python/generate.py"]


def layout_differences(header):
    """Sizes and offsets in which gcc, reading `header`, and ctypes disagree, and how many were compared."""
    lines, ours = [], {}
    for name, struct in _abi.STRUCTS.items():
        ours[name] = ctypes.sizeof(struct)
        lines.append(f'printf("{name} %zu\\n", sizeof({name}));')
        for field, _ in struct._fields_:
            at = getattr(struct, field)
            ours[f"{name}.{field}"] = (at.offset, at.size)
            lines.append(f'printf("{name}.{field} %zu %zu\\n", offsetof({name}, {field}), sizeof((({name} *)0)->{field}));')
    program = '#include "certkv.h"\n#include <stddef.h>\n#include <stdio.h>\nint main(void) {\n' + "\n".join(lines) + "\nreturn 0;\n}\n"
    with tempfile.TemporaryDirectory() as folder:
        here = pathlib.Path(folder)
        (here / "certkv.h").write_text(header)
        (here / "layout.c").write_text(program)
        subprocess.run(["gcc", "-std=c11", "-Werror", "layout.c", "-o", "layout"], cwd=here, check=True)
        said = subprocess.run([str(here / "layout")], check=True, capture_output=True, text=True).stdout
    wrong = []
    for line in said.splitlines():
        name, *numbers = line.split()
        theirs = int(numbers[0]) if len(numbers) == 1 else tuple(map(int, numbers))
        if theirs != ours[name]:
            wrong.append(f"{name}: {theirs} in C, {ours[name]} in ctypes")
    return wrong, len(said.splitlines())


def symbol_differences(symbols):
    """Functions that only one of the header and the list of exported symbols has."""
    return sorted(set(symbols) ^ set(_abi.PROTOTYPES))


def constant_differences(header):
    """Constants and statuses that have another value in C."""
    ours = {n: v for n, v in vars(_abi).items() if n.startswith("CERTKV_") and isinstance(v, int)}
    body = "\n".join(f'printf("{name} %lld\\n", (long long){name});' for name in ours)
    with tempfile.TemporaryDirectory() as folder:
        here = pathlib.Path(folder)
        (here / "certkv.h").write_text(header)
        (here / "constants.c").write_text(f'#include "certkv.h"\n#include <stdio.h>\nint main(void) {{\n{body}\nreturn 0;\n}}\n')
        subprocess.run(["gcc", "-std=c11", "-Werror", "constants.c", "-o", "constants"], cwd=here, check=True)
        said = subprocess.run([str(here / "constants")], check=True, capture_output=True, text=True).stdout
    theirs = {name: int(value) for name, value in (line.split() for line in said.splitlines())}
    # As 64-bit patterns: UINT64_MAX is printed as -1.
    return sorted(name for name in ours if (theirs[name] - ours[name]) % 2**64 != 0)


def planted(old, new):
    """The header with `new` for `old`."""
    assert HEADER.count(old) >= 1, old
    return HEADER.replace(old, new, 1)


# Same types: no size changes, only the names' places.
CONFIG = HEADER.index("typedef struct certkv_config {")
SWAPPED = HEADER[:CONFIG] + HEADER[CONFIG:].replace("uint32_t q_heads;", "uint32_t SWAP;", 1).replace("uint32_t kv_heads;", "uint32_t q_heads;", 1).replace(
    "uint32_t SWAP;", "uint32_t kv_heads;", 1
)


class Declarations(unittest.TestCase):
    def test_generated_anew_is_the_same(self):
        self.assertEqual(drift(HEADER), [])

    def test_layouts_are_those_of_gcc(self):
        wrong, compared = layout_differences(HEADER)
        self.assertEqual(wrong, [])
        self.assertGreater(compared, 100)

    def test_functions_are_the_exported_ones(self):
        self.assertEqual(symbol_differences((ROOT / "ffi-tests/symbols.txt").read_text().split()), [])

    def test_constants_have_the_values_of_c(self):
        self.assertEqual(constant_differences(HEADER), [])


    def test_the_package_has_the_version_of_the_library(self):
        said = (ROOT / "python/pyproject.toml").read_text()
        self.assertIn(f'\nversion = "{_abi.CERTKV_VERSION_STRING}"\n', said)


class Planted(unittest.TestCase):
    """Each check sees a difference."""

    def test_swapped_fields_are_seen(self):
        self.assertNotEqual(drift(SWAPPED), [])
        self.assertTrue(any("certkv_config.q_heads" in line for line in layout_differences(SWAPPED)[0]))

    def test_a_wider_field_is_seen(self):
        self.assertNotEqual(layout_differences(planted("uint32_t threads;", "uint64_t threads;"))[0], [])

    def test_another_function_is_seen(self):
        self.assertEqual(symbol_differences([*_abi.PROTOTYPES, "certkv_extra"]), ["certkv_extra"])

    def test_another_value_is_seen(self):
        self.assertEqual(constant_differences(planted("#define CERTKV_EXACT 2", "#define CERTKV_EXACT 7")), ["CERTKV_EXACT"])

    def test_what_is_not_understood_is_refused(self):
        with self.assertRaises(generate.Unreadable):
            generate.Header(planted("uint32_t threads;", "union unknown threads;"))
        with self.assertRaises(generate.Unreadable):
            generate.Header("#define CERTKV_SUM (1 + 2)\n")


if __name__ == "__main__":
    unittest.main()
