#!/usr/bin/env python3
"""Turns preprocessed CUDA C++ (standard input) into C++ (standard output) for the runtime in this folder.

    k<T><<<grid, block, bytes, stream>>>(a, b)   a call of cuda_on_cpu::launch with a closure over a and b
    __shared__ float tile[16][17];               a reference to memory of the running block
    extern __shared__ float buffer[];            a pointer to the block's dynamic shared memory

and refuses statements that throw away the status of a CUDA, cuBLAS, cuDNN or NCCL call. All else passes untouched, and line
numbers stay right."""
import argparse
import re
import sys

LINE_MARKER = re.compile(r'^# (\d+) "((?:[^"\\]|\\.)*)"([ \d]*)$', re.M)
OPENING, CLOSING = '([{', ')]}'


class SourceError(Exception):
    """Something in the source that cannot be rewritten or is not allowed; carries its offset in the text."""

    def __init__(self, offset, message):
        super().__init__(message)
        self.offset = offset


# ---- finding one's way in C++ text

def after_literal(text, start):
    """The index after the string or character literal that begins at `start`."""
    if text.startswith('R"', start - 1) and text[start] == '"':
        delimiter = text[start + 1:text.index('(', start)]
        return text.index(')' + delimiter + '"', start) + len(delimiter) + 2
    quote, i = text[start], start + 1
    while text[i] != quote:
        i += 2 if text[i] == '\\' else 1
    return i + 1


def is_digit_separator(text, i):
    return text[i] == "'" and text[i - 1].isalnum() and text[i + 1].isalnum()


def after_bracket(text, start):
    """The index after the bracket that closes the one at `start`."""
    depth, i = 0, start
    while True:
        c = text[i]
        if c in '"\'' and not is_digit_separator(text, i):
            i = after_literal(text, i)
            continue
        if c in OPENING:
            depth += 1
        elif c in CLOSING:
            depth -= 1
            if depth == 0:
                return i + 1
        i += 1


def find_outside(text, start, wanted):
    """The index of the first `wanted` from `start` that is outside brackets and literals."""
    i = start
    while not text.startswith(wanted, i):
        if i >= len(text):
            raise SourceError(start, f'no {wanted} follows')
        if text[i] in '"\'' and not is_digit_separator(text, i):
            i = after_literal(text, i)
        elif text[i] in OPENING:
            i = after_bracket(text, i)
        else:
            i += 1
    return i


def before_angle(text, end):
    """The index of the `<` that matches the `>` just before `end`."""
    depth, i = 0, end - 1
    while True:
        if text[i] == '>':
            depth += 1
        elif text[i] == '<':
            depth -= 1
            if depth == 0:
                return i
        i -= 1


# In an expression `<` opens template arguments only when what follows their `>` could not follow a comparison.
TEMPLATE_OPENING = re.compile(r'[A-Za-z_]\w*\s*<(?=[\w\s:,*&<>()\[\]+\-]*>\s*[({:*&]|[\w\s:,*&<>]*>\s*$)')


DECLARED_TEMPLATE_OPENING = re.compile(r'[A-Za-z_]\w*\s*<')


def split_at_commas(text, is_declaration=False):
    """Arguments of a call or parts of a declaration; commas inside brackets and template arguments stay."""
    opening = DECLARED_TEMPLATE_OPENING if is_declaration else TEMPLATE_OPENING
    parts, start, i = [], 0, 0
    while i < len(text):
        c = text[i]
        if c in '"\'' and not is_digit_separator(text, i):
            i = after_literal(text, i)
            continue
        if c in OPENING:
            i = after_bracket(text, i)
            continue
        template = opening.match(text, i) if (c.isalpha() or c == '_') else None
        if template and (i == 0 or not (text[i - 1].isalnum() or text[i - 1] == '_')):
            depth, i = 1, template.end()
            while depth:
                depth += {'<': 1, '>': -1}.get(text[i], 0)
                i += 1
            continue
        if c == ',':
            parts.append(text[start:i])
            start = i + 1
        i += 1
    parts.append(text[start:])
    return [part.strip() for part in parts if part.strip()]


def without_markers(text):
    return ' '.join(LINE_MARKER.sub('', text).split())


def line_keeper(text):
    """What must follow a one-line replacement of `text` so that the lines after it keep their numbers."""
    markers = list(LINE_MARKER.finditer(text))
    if not markers:
        return '\n' * text.count('\n')
    last = markers[-1]
    return '\n' + last.group(0) + '\n' * text.count('\n', last.end())


def place_of(text, offset):
    """file:line of an offset in preprocessed text."""
    last = None
    for last in LINE_MARKER.finditer(text, 0, offset):
        pass
    if last is None:
        return f'line {text.count(chr(10), 0, offset) + 1}'
    return f'{last.group(2)}:{int(last.group(1)) + text.count(chr(10), last.end(), offset) - 1}'


# ---- kernels

KERNEL = re.compile(r'__global__\s+(?:\w+\s+)*?void\s+(?:__attribute__\s*\(\(.*?\)\)\s*)?([A-Za-z_]\w*)')
TEMPLATE_BEFORE = re.compile(r'template\s*$')


def required_template_arguments(text, kernel_start):
    """How many template arguments a launch must spell out for the kernel declared here to be one function."""
    head = re.sub(r'(?:\b(?:static|inline|extern|constexpr)\s+|"C"\s*)+$', '', text[max(0, kernel_start - 2000):kernel_start])
    head = head.rstrip()
    if not head.endswith('>'):
        return 0
    opening = before_angle(head, len(head))
    if not TEMPLATE_BEFORE.search(head[:opening]):
        return 0
    parameters = split_at_commas(head[opening + 1:-1], is_declaration=True)
    return sum('=' not in parameter for parameter in parameters)


def find_kernels(text):
    return {match.group(1): required_template_arguments(text, match.start()) for match in KERNEL.finditer(text)}


def launch_callee(text, launch):
    """Start and end of the kernel's name, template arguments included, before the `<<<` at `launch`."""
    end = launch
    while text[end - 1].isspace():
        end -= 1
    name_end = before_angle(text, end) if text[end - 1] == '>' else end
    match = re.search(r'((?:::)?[A-Za-z_]\w*(?:\s*::\s*[A-Za-z_]\w*)*)\s*$', text[max(0, name_end - 300):name_end])
    if not match:
        raise SourceError(launch, 'no kernel before <<<')
    return name_end - (len(match.string) - match.start(1)), end


def address_of(callee, kernels):
    """An expression for the kernel's address, or nullptr where its template arguments are deduced from the call."""
    name, _, arguments = callee.partition('<')
    given = len(split_at_commas(arguments.rstrip()[:-1])) if arguments else 0
    if given < kernels.get(name.split('::')[-1].strip(), 0):
        return 'nullptr'
    return f'(const void *)({callee})'


CONSTANT = re.compile(r'(?:NULL|nullptr|__null|true|false|[-+]?(?:0[xX][\da-fA-F]+|[\d.]+(?:[eE][-+]?\d+)?)[fFuUlL]*)')


def launch_text(callee, shape, arguments, kernels):
    """Arguments are evaluated at the launch, once, as CUDA does; literals stay as they are."""
    captures, passed = ['='], []
    for number, argument in enumerate(arguments):
        if CONSTANT.fullmatch(argument):
            passed.append(argument)
        else:
            captures.append(f'argument_{number}_ = ({argument})')
            passed.append(f'argument_{number}_')
    return (f'cuda_on_cpu::launch("{callee}", {address_of(callee, kernels)}, cuda_on_cpu::LaunchShape({shape}), '
            f'cuda_on_cpu::Place{{__builtin_FILE(), __builtin_LINE()}}, '
            f'[{", ".join(captures)}] {{ {callee}({", ".join(passed)}); }})')


def rewrite_launches(text, kernels):
    result, position = [], 0
    while True:
        launch = text.find('<<<', position)
        if launch < 0:
            return ''.join(result) + text[position:]
        start, end = launch_callee(text, launch)
        shape_end = find_outside(text, launch + 3, '>>>')
        opening = shape_end + 3
        while text[opening].isspace():
            opening += 1
        if text[opening] != '(':
            raise SourceError(launch, 'no argument list after >>>')
        closing = after_bracket(text, opening)
        callee = without_markers(text[start:end])
        arguments = split_at_commas(without_markers(text[opening + 1:closing - 1]))
        result.append(text[position:start])
        result.append(launch_text(callee, without_markers(text[launch + 3:shape_end]), arguments, kernels))
        result.append(line_keeper(text[start:closing]))
        position = closing


# ---- shared memory

SHARED = re.compile(r'\b(?:(extern|static)\s+)?__shared__\s+')
ALIGNMENT = re.compile(r'\b(?:alignas|__align__|__attribute__)\s*(?=\()')
FIRST_VARIABLE = re.compile(r'(.*[\s*&>}])([A-Za-z_]\w*)\s*((?:\[.*\])?)$', re.S)
NEXT_VARIABLE = re.compile(r'([A-Za-z_]\w*)\s*((?:\[.*\])?)$', re.S)


def take_alignment(declaration):
    """The declaration without alignment specifiers, and the largest alignment asked for as an expression."""
    alignment = '1'
    match = ALIGNMENT.search(declaration)
    while match:
        end = after_bracket(declaration, match.end())
        inside = re.search(r'\d+', declaration[match.end():end])
        alignment = inside.group(0) if inside else alignment
        declaration = declaration[:match.start()] + declaration[end:]
        match = ALIGNMENT.search(declaration)
    return ' '.join(declaration.split()), alignment


def shared_variables(declaration, offset):
    """(type, name, dimensions) for each variable of a declaration without `__shared__`."""
    parts = split_at_commas(declaration, is_declaration=True)
    first = FIRST_VARIABLE.fullmatch(parts[0])
    others = [NEXT_VARIABLE.fullmatch(part) for part in parts[1:]]
    if not first or not all(others):
        raise SourceError(offset, f'cannot understand the shared declaration: {declaration}')
    type_name = first.group(1).strip()
    return [(type_name, first.group(2), first.group(3))] + [(type_name, m.group(1), m.group(2)) for m in others]


def static_shared_text(type_name, name, dimensions, alignment):
    alias = f'shared_type_of_{name}'
    return (f'typedef {type_name} {alias}{dimensions}; static cuda_on_cpu::SharedVariable shared_place_of_{name}; '
            f'{alias} &{name} = *({alias} *)shared_place_of_{name}.in_this_block(sizeof({alias}), '
            f'alignof({alias}) > {alignment} ? alignof({alias}) : {alignment}, "{name}");')


def rewrite_shared(text):
    result, position = [], 0
    for match in SHARED.finditer(text):
        if match.start() < position:
            continue
        end = find_outside(text, match.end(), ';')
        declaration, alignment = take_alignment(without_markers(text[match.end():end]))
        result.append(text[position:match.start()])
        for type_name, name, dimensions in shared_variables(declaration, match.start()):
            if match.group(1) == 'extern':
                result.append(f'{type_name} *{name} = ({type_name} *)cuda_on_cpu::dynamic_shared();')
            else:
                result.append(static_shared_text(type_name, name, dimensions, alignment))
        result.append(line_keeper(text[match.start():end]))
        position = end + 1
    return ''.join(result) + text[position:]


# ---- statuses thrown away

STATEMENT_CALL = re.compile(r'([;{},)]|\belse|\bdo)\s*(?:# [^\n]*\n\s*)*'
                            r'((?:cuda|cublas|cublasLt|cudnn|nccl)[A-Z]\w*)\s*\(')
NO_STATUS = re.compile(r'\w+(?:ErrorString|ErrorName|StatusString|StatusName|GetLastError|Version)')


BLOCK_OPENING = re.compile(r'(?:[;{})\]:]|\belse|\bdo)\s*\{$')


def is_in_statement(text, offset):
    """Whether a comma there separates expressions of a statement, not arguments or the numbers of an initialiser."""
    depth = 0
    for i in range(offset - 1, -1, -1):
        c = text[i]
        if depth == 0 and c in OPENING:
            return c == '{' and BLOCK_OPENING.search(text, max(0, i - 50), i + 1) is not None
        if depth == 0 and c == ';':
            return True
        depth += (c in CLOSING) - (c in OPENING)
    return False


def refuse_unchecked(text):
    """A call that is a whole statement, or stands between a statement's commas, loses its status. `(void)call(...)`
    says that this is meant."""
    for match in STATEMENT_CALL.finditer(text):
        name = match.group(2)
        is_discarded_openly = text[max(0, match.start(2) - 40):match.start(2)].rstrip().endswith('(void)')
        if is_discarded_openly or NO_STATUS.fullmatch(name) or not is_users_text(text, match.start(2)):
            continue
        end = after_bracket(text, match.end() - 1)
        follower = text[end:end + 50].lstrip()[:1]
        is_whole = follower == ';' and match.group(1) != ','
        if is_whole or (follower in (';', ',') and is_in_statement(text, match.end(1))):
            raise SourceError(match.start(2), f'the status of {name} is not checked; check it, or write (void){name}(...)')


def is_users_text(text, offset):
    """Whether the offset is outside system headers, which gcc marks with flag 3."""
    marker = LINE_MARKER.match(text, text.rfind('\n# ', 0, offset) + 1)
    return marker is None or '3' not in marker.group(3).split()


def rewrite(text, allow_unchecked=False):
    if not allow_unchecked:
        refuse_unchecked(text)
    text = rewrite_shared(rewrite_launches(text, find_kernels(text)))
    return re.sub(r'\b__global__\b', '', text)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split('\n')[0])
    parser.add_argument('--allow-unchecked', action='store_true', help='calls may throw away their status')
    options = parser.parse_args()
    text = sys.stdin.read()
    try:
        sys.stdout.write(rewrite(text, options.allow_unchecked))
    except SourceError as error:
        sys.exit(f'{place_of(text, error.offset)}: error: {error}')


if __name__ == '__main__':
    main()
