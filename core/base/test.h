// A test harness of one page. A test program lists its tests in main with RUN(name) and returns test_summary(), which
// prints `N passed, N failed` as the last line, followed by `, N skipped` where a test had to SKIP, and is non-zero
// when any failed. TEST_ONLY=one,another in the environment runs those alone, and a name that the program does not have
// is a failure; TEST_STOP=1 ends the program at the first failed check; TEST_ALL=1 leaves out no combination.
#ifndef CORE_TEST_H
#define CORE_TEST_H

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int test_passed, test_failed, test_skipped, test_failures_here, test_skips_here, test_count;
static const char *test_names[200]; // all of the program's, whether they run or not

// A comparison is written so that NaN fails it.
#define CHECK(condition)                                                                                              \
    do {                                                                                                              \
        if (!(condition)) test_complain(__FILE__, __LINE__, #condition);                                              \
    } while (0)
#define CHECK_CLOSE(found, expected, tolerance)                                                                       \
    do {                                                                                                              \
        double found_ = (found), expected_ = (expected), tolerance_ = (tolerance);                                    \
        if (!(fabs(found_ - expected_) <= tolerance_)) {                                                              \
            if (test_complain(__FILE__, __LINE__, #found " == " #expected))                                           \
                printf("    found %.9g, expected %.9g within %.2g\n", found_, expected_, tolerance_);                  \
        }                                                                                                             \
    } while (0)
#define CHECK_CONTAINS(text, part)                                                                                    \
    do {                                                                                                              \
        const char *text_ = (text), *part_ = (part);                                                                  \
        if (!strstr(text_, part_)) {                                                                                  \
            if (test_complain(__FILE__, __LINE__, #text " contains " #part))                                          \
                printf("    \"%s\" in \"%s\"\n", part_, text_);                                                        \
        }                                                                                                             \
    } while (0)
#define RUN(test) test_run(#test, test)
// Leaves the test. What cannot be tested here is reported and counted, never passed over in silence.
#define SKIP(why)                                                                                                      \
    do {                                                                                                               \
        printf("skipped: %s: %s\n", test_names[test_count - 1], why);                                                  \
        test_skips_here++;                                                                                             \
        return;                                                                                                        \
    } while (0)

// Whether this failure is printed: only a test's first ten are.
static inline int test_complain(const char *file, int line, const char *what) {
    int tells = ++test_failures_here <= 10;
    if (tells) printf("  %s:%d: failed: %s\n", file, line, what);
    if (getenv("TEST_STOP")) exit(1);
    return tells;
}

// Whether TEST_ONLY names the test, or is not set.
static inline int test_is_wanted(const char *name) {
    const char *only = getenv("TEST_ONLY");
    size_t length = strlen(name);
    if (!only || !*only) return 1;
    for (const char *at = strstr(only, name); at; at = strstr(at + 1, name))
        if ((at == only || at[-1] == ',') && (at[length] == ',' || at[length] == 0)) return 1;
    return 0;
}

// A third of the combinations of two lists, in which each of their entries has its part: with one that costs as much as
// on a GPU's twin, all of them (TEST_ALL=1) take minutes.
static inline int test_is_chosen(size_t a, size_t b) {
    return getenv("TEST_ALL") || (a + b) % 3 == 0;
}

static inline void test_run(const char *name, void (*test)(void)) {
    if (test_count < (int)(sizeof test_names / sizeof *test_names)) test_names[test_count++] = name;
    if (!test_is_wanted(name)) return;
    test_failures_here = test_skips_here = 0;
    test();
    if (test_failures_here || !test_skips_here) printf("%-4s %s\n", test_failures_here ? "FAIL" : "ok", name);
    fflush(stdout);
    if (test_failures_here) test_failed++;
    else if (test_skips_here) test_skipped++;
    else test_passed++;
}

// A list with a name that no test has would silently run less.
static inline void test_refuse_unknown_names(void) {
    const char *only = getenv("TEST_ONLY"), *name = only ? only : "";
    for (size_t length; *name; name += length + (name[length] == ',')) {
        int known = 0;
        length = strcspn(name, ",");
        for (int i = 0; i < test_count; i++)
            known |= strlen(test_names[i]) == length && !strncmp(test_names[i], name, length);
        if (known || !length) continue;
        printf("FAIL TEST_ONLY: there is no test %.*s\n", (int)length, name);
        test_failed++;
    }
}

static inline int test_summary(void) {
    test_refuse_unknown_names();
    printf("%d passed, %d failed", test_passed, test_failed);
    if (test_skipped) printf(", %d skipped", test_skipped);
    printf("\n");
    return test_failed != 0;
}

#endif
