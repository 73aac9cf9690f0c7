#include "strict.h"

static int is_strict;

void strict_add_option(Options *options, const char *group) {
    const Option item = {group, "strict", 0, OPTION_FLAG, &is_strict, 0, 1, NULL, "refuse weights without checksums",
                         0,     ""};
    options_add(options, &item, 1);
}

int strict_check(int has_checksums, const char *path, const char *found, Error *error) {
    if (!is_strict || has_checksums) return 0;
    return error_set(error,
                     "%.700s: expected checksums for everything, as --strict demands, found %s; leave --strict out if "
                     "you trust the file",
                     path, found);
}
