"""Writes, for every kernel that a library offers, the C functions through which it is called and described."""

from __future__ import annotations

import json
import re

from .declarations import INPUTS, Declarations, Kernel, Parameter
from .tokens import failure

MAX_BUFFERS = 31
QUALIFIERS = {"device", "constant", "const", "volatile", "restrict", "__restrict", "coherent"}
HEADER = '\n#line 1 "<glue>"\n#pragma clang diagnostic ignored "-Wpre-c++17-compat"\n'


def glue(found: Declarations) -> str:
    """Code to append to the rewritten text; `emu_table()` of it returns JSON, a list of kernels in the order of their entry points."""
    code = [HEADER, *(_thunks(kernel) for kernel in found.kernels.values())]
    table = []
    for name, kernel, arguments, place in _entries(found):
        if any(entry["name"] == name for entry in table):
            raise failure(place, f"two kernels of the name '{name}'")
        code.append(_entry(len(table), kernel.name, arguments))
        table.append({"name": name, "place": place, "max_threads": "max_total_threads_per_threadgroup" in kernel.attributes})
    code.append(f'extern "C" __constant const char* emu_table() {{ return {json.dumps(json.dumps(table))}; }}')
    return "\n".join(code) + "\n"


def _entries(found: Declarations):
    """(name, kernel, template arguments, place) of everything callable."""
    for kernel in found.kernels.values():
        if not kernel.template:
            yield kernel.attributes.get("host_name", "").strip('"') or kernel.name, kernel, "", kernel.place
    for wanted in found.instantiations:
        if wanted.kernel not in found.kernels:
            raise failure(wanted.place, f"instantiation of '{wanted.kernel}', which is no kernel")
        name = wanted.host_name or f"{wanted.kernel}{wanted.arguments}".replace(" ", "")
        yield name, found.kernels[wanted.kernel], wanted.arguments, wanted.place


def _entry(number: int, kernel: str, arguments: str) -> str:
    return (
        f'extern "C" void emu_entry_{number}(const emu_thread* t) {{ {kernel}__emu_call{arguments}(t); }}\n'
        f'extern "C" int emu_parameters_{number}(emu_parameter* p) {{ return {kernel}__emu_parameters{arguments}(p); }}\n'
        f'extern "C" int emu_max_threads_{number}() {{ return {kernel}__emu_max_threads{arguments}(); }}'
    )


def _template_arguments(template: str) -> str:
    """`template <typename T, int B = 4>` -> `<T, B>`."""
    if not template:
        return ""
    inner = template[template.index("<") + 1 : template.rindex(">")]
    parts, depth, part = [], 0, ""
    for character in inner + ",":
        if character == "," and depth == 0:
            parts.append(re.findall(r"[A-Za-z_]\w*", part.split("=")[0])[-1])
            part = ""
            continue
        depth += (character in "<(") - (character in ">)")
        part += character
    return f"<{', '.join(parts)}>"


def _thunks(kernel: Kernel) -> str:
    arguments, facts, slots = [], [], _slots(kernel)
    for parameter in kernel.parameters:
        if parameter.name in slots:
            slot = slots[parameter.name]
            arguments.append(_bound(parameter, slot))
            facts.append(f"p[n++] = {_fact(parameter, slot)};")
        else:
            arguments.append(_input(parameter))
    limit = kernel.attributes.get("max_total_threads_per_threadgroup") or "0"
    inner, prefix = _template_arguments(kernel.template), f"{kernel.template} static"
    return (
        f"{prefix} void {kernel.name}__emu_call(const emu_thread* t) {{ {kernel.name}{inner}({', '.join(arguments)}); }}\n"
        f"{prefix} int {kernel.name}__emu_parameters(emu_parameter* p) {{ int n = 0; {' '.join(facts)} return n; }}\n"
        f"{prefix} int {kernel.name}__emu_max_threads() {{ return {limit}; }}"
    )


def _slots(kernel: Kernel) -> dict[str, int]:
    """Buffer slot of every parameter that is bound: as said, else the first free one."""
    bound = [p for p in kernel.parameters if not INPUTS.keys() & p.attributes.keys()]
    said = {p.name: _slot_number(p) for p in bound if "buffer" in p.attributes}
    free = iter(sorted(set(range(len(bound) + MAX_BUFFERS)) - set(said.values())))
    slots = {p.name: said[p.name] if p.name in said else next(free) for p in bound}
    for parameter in bound:
        if slots[parameter.name] >= MAX_BUFFERS:
            raise failure(parameter.place, f"buffer index {slots[parameter.name]}: the last is {MAX_BUFFERS - 1}")
    if len(set(slots.values())) != len(slots):
        raise failure(kernel.place, "two parameters of one buffer index")
    return slots


def _slot_number(parameter: Parameter) -> int:
    argument = parameter.attributes["buffer"]
    if not argument.isdigit():
        raise failure(parameter.place, f"buffer index '{argument}' is not a number")
    return int(argument)


def _space(parameter: Parameter) -> str:
    spaces = [w for w in parameter.words if w in ("device", "constant", "threadgroup", "thread")]
    if parameter.words[-1:] not in (["*"], ["&"]) or spaces not in (["device"], ["constant"]):
        raise failure(
            parameter.place, f"parameter '{parameter.name}' is neither a built-in input nor a device or constant pointer or reference"
        )
    return spaces[0]


def _bound(parameter: Parameter, slot: int) -> str:
    _space(parameter)
    pointer = f"({' '.join(parameter.words[:-1])} *)t->buffer[{slot}]"
    return pointer if parameter.words[-1] == "*" else f"*{pointer}"


def _fact(parameter: Parameter, slot: int) -> str:
    space = _space(parameter)
    pointee = " ".join(w for w in parameter.words[:-1] if w not in QUALIFIERS)
    writable = space == "device" and "const" not in parameter.words
    kind = f"emu_type<{pointee} >"
    flags = f"{slot}, {int(parameter.words[-1] == '&')}, {int(space == 'constant')}, {int(writable)}"
    return f"emu_parameter{{{flags}, {kind}::kind, {kind}::lanes, {kind}::size}}"


def _input(parameter: Parameter) -> str:
    attribute = next(a for a in parameter.attributes if a in INPUTS)
    field, components = INPUTS[attribute]
    kind = " ".join(w for w in parameter.words if w != "const")
    if components == 1 and re.search(r"[234]$", kind):
        raise failure(parameter.place, f"[[{attribute}]] is a scalar")
    if not re.search(r"\b(uint|ushort|uint32_t|uint16_t)[23]?$", kind):
        raise failure(parameter.place, f"[[{attribute}]] must be of type uint or ushort, not '{kind}'")
    return f"emu_input<{kind} >::get({'' if components == 3 else '&'}t->{field})"
