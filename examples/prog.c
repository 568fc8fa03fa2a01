/* A program to probe: fprobe stat '*' --program examples/prog.c --call main */
#include <string.h>

struct point { int x, y; };

static struct point mirrored(struct point p) { return (struct point){-p.x, p.y}; }

static int is_vowel(char c) { return strchr("aeiou", c) != 0; }

static int vowels(const char *text) {
    int found = 0;
    for (; *text; text++)
        found += is_vowel(*text);
    return found;
}

static int fib(int n) { return n < 2 ? n : fib(n - 1) + fib(n - 2); }

int main(int argc, char **argv) {
    struct point p = mirrored((struct point){3, 4});
    return fib(12) + vowels("function probes") + vowels(argv[argc - 1]) + p.x;
}
