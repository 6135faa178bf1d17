"""Finds the kernels, their parameters and attributes, and the explicit instantiations in shader text."""

from __future__ import annotations

from dataclasses import dataclass, field

from .tokens import END, Text, failure

# Attribute of a built-in input -> the field of emu_thread, and how many components it has.
INPUTS = {
    "thread_position_in_grid": ("position_in_grid", 3),
    "thread_position_in_threadgroup": ("position_in_threadgroup", 3),
    "threadgroup_position_in_grid": ("threadgroup_position", 3),
    "threads_per_grid": ("threads_per_grid", 3),
    "threads_per_threadgroup": ("threads_per_threadgroup", 3),
    "dispatch_threads_per_threadgroup": ("dispatch_threads_per_threadgroup", 3),
    "threadgroups_per_grid": ("threadgroups_per_grid", 3),
    "thread_index_in_threadgroup": ("index_in_threadgroup", 1),
    "thread_index_in_simdgroup": ("lane", 1),
    "simdgroup_index_in_threadgroup": ("simdgroup", 1),
    "simdgroups_per_threadgroup": ("simdgroups", 1),
    "dispatch_simdgroups_per_threadgroup": ("dispatch_simdgroups", 1),
    "threads_per_simdgroup": ("simd_width", 1),
    "thread_execution_width": ("simd_width", 1),
    "thread_index_in_quadgroup": ("quad_lane", 1),
    "quadgroup_index_in_threadgroup": ("quadgroup", 1),
}
KNOWN = {*INPUTS, "buffer", "kernel", "host_name", "max_total_threads_per_threadgroup", "maybe_unused"}

Attributes = dict[str, str]  # name -> argument, "" without one


@dataclass
class Parameter:
    name: str
    words: list[str]  # the type's tokens
    attributes: Attributes
    place: str


@dataclass
class Kernel:
    name: str
    template: str  # "template <typename T, int B>", or ""
    parameters: list[Parameter]
    attributes: Attributes
    place: str
    body: tuple[int, int]


@dataclass
class Instantiation:
    kernel: str
    arguments: str  # "<float, 4>"
    host_name: str
    place: str


@dataclass
class Declarations:
    kernels: dict[str, Kernel] = field(default_factory=dict)
    instantiations: list[Instantiation] = field(default_factory=list)


class Parser:
    """Reads the text once, top to bottom; `attributes` maps where `[[` stands to where it ends and what it says."""

    def __init__(self, text: Text) -> None:
        self.text = text
        self.attributes: dict[int, tuple[int, Attributes]] = {}
        self.found = Declarations()
        self._find_attributes()
        self._find_kernels()

    def _find_attributes(self) -> None:
        i = 0
        while self.text[i] is not END:
            if self.text[i].text == "[" and self.text[i + 1].text == "[":
                end = self.text.closing(i)
                self.attributes[i] = (end + 1, self._parse_attribute(i + 2, end - 1))
                i = end
            i += 1

    def _parse_attribute(self, i: int, end: int) -> Attributes:
        found = {}
        while i < end:
            name, place = self.text[i].text, self.text[i].place
            if name not in KNOWN:
                raise failure(place, f"unknown attribute '{name}'")
            i, argument = i + 1, ""
            if self.text[i].text == "(":
                close = self.text.closing(i)
                argument = " ".join(self.text.words(i + 1, close))
                i = close + 1
            found[name] = argument
            i += self.text[i].text == ","
        return found

    def _find_kernels(self) -> None:
        i, template = 0, ""
        while self.text[i] is not END:
            word = self.text[i].text
            if word == "template" and self.text[i + 1].text == "<":
                end = self.text.closing_angle(i + 1) + 1
                template, i = " ".join(self.text.words(i, end)), end
                continue
            if word == "template":
                i = self._explicit_instantiation(i)
            elif word == "kernel" or i in self.attributes:
                i = self._function(i, template)
            else:
                template = "" if word in (";", "{", "}") else template
                i += 1

    def _qualifiers(self, i: int, collected: Attributes) -> int:
        """Skips attributes and specifiers before or after a function's name, and blanks `kernel`."""
        while i in self.attributes or self.text[i].text in ("kernel", "static", "inline"):
            if i in self.attributes:
                i, more = self.attributes[i]
                collected.update(more)
                continue
            if self.text[i].text == "kernel":
                collected["kernel"] = ""
                self.text[i].text = ""
            i += 1
        return i

    def _function(self, start: int, template: str) -> int:
        attributes: Attributes = {}
        i = self._qualifiers(start, attributes)
        if self.text[i].text != "void":
            return i
        name, place = self.text[i + 1].text, self.text[i + 1].place
        i = self._qualifiers(i + 2, attributes)
        if "kernel" not in attributes or self.text[i].text != "(":
            return i
        close = self.text.closing(i)
        body = self._qualifiers(close + 1, attributes)
        if self.text[body].text != "{":
            return body
        if name in self.found.kernels:
            raise failure(place, f"kernel '{name}' is defined twice")
        span = (body, self.text.closing(body))
        self.found.kernels[name] = Kernel(name, template, self._parameters(i + 1, close), attributes, place, span)
        return body

    def _parameters(self, begin: int, end: int) -> list[Parameter]:
        found, start, i = [], begin, begin
        while i <= end:
            if i == end or self.text[i].text == ",":
                if start < i:
                    found.append(self._parameter(start, i))
                start, i = i + 1, i + 1
            else:
                i = self.attributes[i][0] if i in self.attributes else self.text.skip(i)
        return found

    def _parameter(self, begin: int, end: int) -> Parameter:
        attributes: Attributes = {}
        words, i = [], begin
        while i < end:
            if i in self.attributes:
                i, more = self.attributes[i]
                attributes.update(more)
                continue
            words.append(self.text[i].text)
            i += 1
        return Parameter(words[-1], words[:-1], attributes, self.text[begin].place)

    def _explicit_instantiation(self, start: int) -> int:
        """`template [[host_name("x")]] [[kernel]] decltype(f<A>) f<A>;`, or with the whole signature; others are left alone."""
        attributes: Attributes = {}
        i = self._qualifiers(start + 1, attributes)
        end = i
        while self.text[end].text != ";":
            if self.text[end] is END:
                raise failure(self.text[start].place, "expected ';'")
            end = self.attributes[end][0] if end in self.attributes else self.text.skip(end)
        if "kernel" not in attributes and "host_name" not in attributes:
            return end
        name = self.text.closing(i + 1) + 1 if self.text[i].text == "decltype" else i + 1
        place = self.text[name].place
        if self.text[name + 1].text != "<":
            raise failure(place, "an explicit instantiation of a kernel needs its template arguments")
        arguments = " ".join(self.text.words(name + 1, self.text.closing_angle(name + 1) + 1))
        host_name = "".join(part for part in attributes.get("host_name", "").split('"')[1::2])
        self.found.instantiations.append(Instantiation(self.text[name].text, arguments, host_name, place))
        return end
