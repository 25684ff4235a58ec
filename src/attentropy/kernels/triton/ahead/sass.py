"""Count the arithmetic of a compiled loop: what the statistics add to plain flash attention."""

import re
from collections import Counter

# arithmetic operations per thread; a matrix instruction m16n8k16 does 2*16*8*16 per warp
WEIGHTS = {"HMMA": 128, "FFMA": 2, "IMAD": 2}
MATH = {
    "HMMA", "FFMA", "FMUL", "FADD", "FMNMX", "FSEL", "FSETP", "MUFU", "F2FP", "SEL", "ISETP",
    "IMNMX", "VIMNMX", "IADD3", "IMAD", "FSET",
}  # fmt: skip


def main_loop(sass: str) -> list[str]:
    """Opcodes of the loop over whole tiles: the shortest that multiplies matrices."""
    places: dict[str, int] = {}
    opcodes: list[str] = []
    loops: list[list[str]] = []
    for line in sass.splitlines():
        label = re.fullmatch(r"\s*(\w+):\s*", line)
        code = re.search(r"\t(?:@!?U?P\w+ )?([A-Z0-9]+)\S*(.*);", line)
        if label:
            places[label[1]] = len(opcodes)
        elif code:
            opcodes.append(code[1])
            target = code[2].split()[-1] if code[2] else ""
            if code[1] == "BRA" and target in places:
                loops.append(opcodes[places[target] :])
    return min((x for x in loops if "HMMA" in x), key=len)


def operations(opcodes: list[str]) -> int:
    """Arithmetic operations per thread, matrix instructions counted by their multiply-adds."""
    counts = Counter(code for code in opcodes if code in MATH)
    return sum(WEIGHTS.get(code, 1) * n for code, n in counts.items())


def instructions(opcodes: list[str]) -> int:
    """Arithmetic instructions, each counted once."""
    return sum(code in MATH for code in opcodes)
