/* A program that faults: fprobe trace '*' --program examples/crash.c */

static int last_of(const int *list, int length) { return list[length - 1]; }

static int summary(const int *list) { return last_of(list, 3) + 1; }

int main(void) { return summary(0); }
