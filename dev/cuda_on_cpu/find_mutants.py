"""Finds what can be broken in the device code of a CUDA source, or in a C source, and plants it there, to be chosen when the
program runs.

A mutant is one small change: a barrier or fence removed; a condition made always true; a comparison of whole numbers moved
by one (< to <=), unless it is part of a maximum or minimum; an index, or the address of a load or store, moved by one. In C
also: a call removed whose result nobody uses; a plus turned into a minus, or the other way.
planted() puts all of a file's into its text at once, as
include/mutants.h and include/mutants_c.h describe; as nothing but insertions within a line, so that they do not disturb each
other and lines keep their numbers."""
import re

# ---- reading sources


def blanked(source):
    """The source with comments, what is between quotes, and preprocessor lines as spaces, so that offsets stay."""
    pattern = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])\'|^[ \t]*#(?:\\\n|[^\n])*', re.S | re.M)
    def blank(match):
        quote = match.group(0)[0] if match.group(0)[0] in '"\'' else ''
        spaces = re.sub(r'[^\n]', ' ', match.group(0))
        return quote + spaces[1:-1] + quote if quote else spaces
    return pattern.sub(blank, source)


def after_bracket(text, start):
    pairs = {'(': ')', '[': ']', '{': '}', '<': '>'}
    opening, closing, depth = text[start], pairs[text[start]], 0
    for i in range(start, len(text)):
        depth += (text[i] == opening) - (text[i] == closing)
        if depth == 0:
            return i + 1
    return len(text)


def without_constant_conditions(text):
    """The text with what the compiler decides, in `if constexpr (...)`, as spaces."""
    for match in re.compile(r'\bif\s+constexpr\s*(?=\()').finditer(text):
        end = after_bracket(text, match.end()) - 1
        text = text[:match.end() + 1] + re.sub(r'[^\n]', ' ', text[match.end() + 1:end]) + text[end:]
    return text


def device_bodies(text):
    """(name, start, end) of the bodies of __global__ and __device__ functions. What must be known to the compiler is left
    out: constexpr functions."""
    position = 0
    while True:
        match = re.compile(r'\b__(?:global|device)__\b').search(text, position)
        if not match:
            return
        stop = re.compile(r'[;{=]').search(text, match.end())
        if not stop:
            return
        if stop.group(0) != '{':
            position = stop.end()
            continue
        header = text[match.end():stop.start()]
        start = stop.start()
        initialiser = re.search(r'\)\s*:\s*\w+$', header)
        if initialiser:  # a constructor's `: x{} {`
            start = after_bracket(text, start)
        end = after_bracket(text, text.index('{', start))
        names = [name for name in re.findall(r'\b(\w+)\s*\(', re.sub(r'__launch_bounds__\s*\(', ' ', header)) if name not in ('decltype', 'alignas')]
        if 'constexpr' not in header:
            yield (names[0] if names else 'function'), start, end
        position = end


def without_constants_of_c(text):
    """C with what the compiler has to know as spaces: enumerations, static tables, labels of cases, assertions, attributes."""
    pattern = re.compile(r'\b__attribute__\s*\(\([^;{}]*?\)\)|\benum\s*\w*\s*\{[^}]*\}|\bstatic\s+(?:const|[^;(){}=]*\bconst)\b[^;]*;|\bcase\b[^:]*:|\b_Static_assert\b[^;]*;')
    return pattern.sub(lambda match: re.sub(r'[^\n]', ' ', match.group(0)), text)


FUNCTION_OF_C = re.compile(r'^ *[A-Za-z_][^;{}=]*?\b(\w+)\s*\([^;{}]*\)\s*(?=\{)', re.M)


def bodies_of_c(text):
    """(name, start, end) of the bodies of functions."""
    position = 0
    while match := FUNCTION_OF_C.search(text, position):
        position = after_bracket(text, match.end())
        yield match.group(1), match.end(), position


# ---- what to change

class Mutant:
    """One change of a file. insertions: (offset, order among those at the same offset, text)."""

    def __init__(self, path, source, function, kind, start, end, insertions):
        self.path, self.function, self.kind, self.insertions = path, function, kind, insertions
        self.line = source.count('\n', 0, start) + 1
        self.original = ' '.join(source[start:end].split())
        first, last = source.rfind('\n', 0, start) + 1, source.find('\n', start)
        self.line_text = ' '.join(source[first:last].split())
        self.number = self.occurrence = 0  # set by mutants_of

    def __str__(self):
        return f'{self.path}:{self.line}: {self.function}: {self.kind}: {self.original}'

    def identity(self):
        """What names the mutant when lines move."""
        which = f' #{self.occurrence}' if self.occurrence > 1 else ''
        return ' | '.join([self.path, self.function, self.kind, self.line_text, self.original + which])


BARRIER = re.compile(r'\b(?:__syncthreads|__syncwarp|__threadfence|__threadfence_block)\s*\([^;()]*\)|\b\w+\.sync\(\)')
COMPARISON = re.compile(r'(?<=\s)(<=|>=|<|>)(?=\s)')  # with spaces around it, as the house formats it; unlike template <...>
SUBSCRIPT = re.compile(r'(?<=[\w\])])\[')
NOT_A_TYPE = r'(?!(?:return|else|delete|case|goto|throw)\b)'
DECLARATION = re.compile(NOT_A_TYPE + r'(?:[A-Za-z_][\w:]*(?:<[^;={}]*>)?[\s*&]+)+[A-Za-z_]\w*(?:\s*[\[,][^=;()]*)?$')
ADDRESS = re.compile(r'\b(?:load|store|load4)(?=[<(])|\breinterpret_cast(?=<)')
FRAGMENT_ADDRESS = re.compile(r'\bload_matrix_sync\s*\(\s*[^,()]+,\s*|\bstore_matrix_sync\s*\(\s*')
KNOWN_TO_COMPILER = re.compile(r'\s*(?:static\s+)?(?:constexpr|static_assert)\b')


def around(start, end, before, after):
    """Insertions around source[start:end]: outer ones begin before inner ones and end after them."""
    return [(start, (1, -end), before), (end, (0, -start), after)]


def start_of_statement(text, offset):
    return max(text.rfind(c, 0, offset) for c in ';{}') + 1


def is_known_to_compiler(text, offset):
    return KNOWN_TO_COMPILER.match(text, start_of_statement(text, offset)) is not None


def is_array_declaration(text, offset):
    """Of an array, or of a reference to one."""
    before = text[start_of_statement(text, offset):offset].strip()
    return DECLARATION.match(before) is not None or re.search(r'\w\s*\(&\w+\)$', before) is not None


def start_of_expression(text, end, stops=()):
    """Where the expression that ends at `end` begins: after an assignment, an open bracket, a comma, `return`, a statement's
    end or one of the operators in `stops`."""
    depth, i = 0, end - 1
    while not (depth == 0 and re.compile(r'(?<=\breturn)\s').match(text, i)):
        c = text[i]
        depth += (c in ')]') - (c in '([')
        is_assignment = c == '=' and text[i - 1] not in '<>=!' and text[i + 1] != '='
        is_scope = c == ':' and ':' in (text[i - 1], text[i + 1])
        if depth < 0 or c in ';{}' or (depth == 0 and not is_scope and (c in ',?:' or is_assignment or text[i - 1:i + 1] in stops)):
            break
        i -= 1
    return re.compile(r'\s*').match(text, i + 1).end()


def end_of_expression(text, start, stops=()):
    """Where the expression that begins at `start` ends, its white space not counted."""
    depth, i = 0, start
    while True:
        c = text[i]
        depth += (c in '([{') - (c in ')]}')
        is_scope = c == ':' and ':' in (text[i - 1], text[i + 1])
        if depth < 0 or (depth == 0 and not is_scope and (c in ',;?:' or text[i:i + 2] in stops)):
            return len(text[:i].rstrip())
        i += 1


def is_extremum(text, first, last, sign):
    """`a < b ? a : b`, where it does not matter what happens when both are equal."""
    sides = [text[first:sign.start()].strip(), text[sign.end():last].strip()]
    question = re.compile(r'\s*\?\s*').match(text, last)
    if not question:
        return False
    colon = end_of_expression(text, question.end())
    chosen = text[question.end():colon].strip()
    other_start = re.compile(r'\s*:\s*').match(text, colon)
    return bool(other_start) and sorted([chosen, text[other_start.end():end_of_expression(text, other_start.end())].strip()]) == sorted(sides)


def barriers(text, start, end):
    for match in BARRIER.finditer(text, start, end):
        yield 'barrier removed', match.start(), match.end(), '(cuda_on_cpu::mutant(@) ? (void)0 : (void)', ')'


def conditions(text, start, end):
    for match in re.compile(r'\bif\s*\(').finditer(text, start, end):
        closing = after_bracket(text, match.end() - 1) - 1
        yield 'condition always true', match.end(), closing, 'cuda_on_cpu::mutant(@) || (', ')'
    for match in re.compile(r'\?').finditer(text, start, end):
        last = len(text[:match.start()].rstrip())
        yield 'condition always true', start_of_expression(text, match.start()), last, '(cuda_on_cpu::mutant(@) || (', '))'


def indices(text, start, end):
    for match in SUBSCRIPT.finditer(text, start, end):
        after = after_bracket(text, match.start())
        if not is_array_declaration(text, match.start()) and not re.compile(r'\)\(| = ["{]').match(text, after):
            yield 'index moved', match.end(), after_bracket(text, match.start()) - 1, '(', ') + cuda_on_cpu::mutant(@)'


def addresses(text, start, end):
    """The first arguments of loads and stores, and what is cast to another kind of pointer."""
    for match in ADDRESS.finditer(text, start, end):
        bracket = after_bracket(text, match.end()) if text[match.end()] == '<' else match.end()
        if text[bracket:bracket + 1] == '(':
            yield 'address moved', bracket + 1, end_of_expression(text, bracket + 1), '(', ') + cuda_on_cpu::mutant(@)'
    for match in FRAGMENT_ADDRESS.finditer(text, start, end):
        yield 'address moved', match.end(), end_of_expression(text, match.end()), '(', ') + cuda_on_cpu::mutant(@)'


CALL = re.compile(r'(?:(?<=[;{})])[ \t]*\n\s*|(?<=\)) )(?!(?:if|for|while|switch|return|sizeof|else|do|defined|free|\w+_free|json_decref|va_end)\b)(?=[a-z_]\w*\()')
SIGN = re.compile(r'(?<=[\w\])] )[+-](?= [\w(*&])')


def calls_removed(text, start, end):
    """Statements that are nothing but a call, unless it only gives memory back, which no test notices."""
    for match in CALL.finditer(text, start, end):
        bracket = text.index('(', match.end())
        closing = after_bracket(text, bracket)
        if text[closing:closing + 1] == ';':
            yield 'call removed', match.end(), closing, '(void)(mutant(@) || (', ', 0))'


CAST = re.compile(r'\((?:size_t|int|long|ptrdiff_t|u?int\d\d_t)\)\($')  # of a difference of pointers


def is_pointer(text, start, end, name):
    """Whether the function with this body declares, or looks through, a pointer of this name."""
    return re.search(rf'\*{name}\b', text[text.rfind('\n', 0, start - 1):end])


def signs_turned(text, start, end):
    """Not where pointers are subtracted: they have differences, but no opposite."""
    for match in SIGN.finditer(text, start, end):
        name = re.compile(r' (\w+)(?![\w(.[]|->)').match(text, match.end())
        is_cast = match.group(0) == '-' and CAST.search(text, start, start_of_expression(text, match.start()))
        if not is_cast and not (name and is_pointer(text, start, end, name.group(1))):
            yield 'sign turned', match.start(), match.end(), '', ' TURNED(@) *'


def mutants_of_c_body(path, source, text, function, start, end):
    for changes in (conditions, indices, calls_removed, signs_turned):
        for kind, first, last, before, after in changes(text, start, end):
            insertions = [(offset, order, insertion.replace('cuda_on_cpu::', '')) for offset, order, insertion in around(first, last, before, after)]
            yield Mutant(path, source, function, kind, first, last, insertions)
    for sign in COMPARISON.finditer(text, start, end):
        first = start_of_expression(text, sign.start(), ('&&', '||'))
        right = re.compile(r'\s*').match(text, sign.end()).end()
        last = end_of_expression(text, sign.end(), ('&&', '||'))
        if not is_extremum(text, first, last, sign):
            moved = 'MOVED_UP' if sign.group(0) in ('<', '>=') else 'MOVED_DOWN'
            yield Mutant(path, source, function, 'comparison moved', first, last, around(right, last, f'{moved}(@, ', ')'))


def mutants_of_body(path, source, text, function, start, end):
    for changes in (barriers, conditions, indices, addresses):
        for kind, first, last, before, after in changes(text, start, end):
            if not is_known_to_compiler(text, first):
                yield Mutant(path, source, function, kind, first, last, around(first, last, before, after))
    for sign in COMPARISON.finditer(text, start, end):
        first = start_of_expression(text, sign.start(), ('&&', '||'))
        last = end_of_expression(text, sign.end(), ('&&', '||'))
        if not is_known_to_compiler(text, sign.start()) and not is_extremum(text, first, last, sign):
            insertion = (sign.end(), (0, 0), f' cuda_on_cpu::Moved{{@}} {sign.group(0)}')
            yield Mutant(path, source, function, 'comparison moved', first, last, [insertion])


def mutants_of(path, source, first_number):
    """All mutants of a file by line, numbered from first_number on."""
    is_c = path.endswith('.c')
    text = (without_constants_of_c if is_c else without_constant_conditions)(blanked(source))
    in_body, bodies = (mutants_of_c_body, bodies_of_c) if is_c else (mutants_of_body, device_bodies)
    found = [mutant for function, start, end in bodies(text) for mutant in in_body(path, source, text, function, start, end)]
    found.sort(key=lambda mutant: mutant.insertions[0][0])
    seen = {}
    for i, mutant in enumerate(found):
        mutant.number = first_number + i
        name = mutant.identity()
        mutant.occurrence = seen[name] = seen.get(name, 0) + 1
    return found


def planted(source, mutants):
    """The source with all these mutants in it."""
    insertions = [(offset, order, text.replace('@', str(mutant.number)))
                  for mutant in mutants for offset, order, text in mutant.insertions]
    parts, position = [], 0
    for offset, _, text in sorted(insertions):
        parts += [source[position:offset], text]
        position = offset
    return ''.join(parts) + source[position:]
