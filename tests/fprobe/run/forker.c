/* Forks as often as it can until its input ends. Each child takes locks of the C library, and has to end. */
#include <locale.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <poll.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { PATIENCE = 500000 };

static long now(void) {
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return at.tv_sec * 1000000 + at.tv_nsec / 1000;
}

static void take_locks(void) {
    time_t at = time(0);
    struct tm parts;
    setlocale(LC_CTYPE, "C.UTF-8");
    setlocale(LC_TIME, "C.UTF-8");
    localtime_r(&at, &parts);
    strerror(2);
    setenv("A", "B", 1);
    exit(0);
}

int main(void) {
    struct pollfd input = {0, POLLIN, 0};
    long forks = 0, hung = 0, longest = 0;
    puts("ready");
    fflush(stdout);
    while (!poll(&input, 1, 0)) {
        long before = now();
        pid_t child = fork();
        if (!child) take_locks();
        long took = now() - before;
        if (took > longest) longest = took;
        forks++;
        int tries = 0;
        while (!waitpid(child, 0, WNOHANG)) {
            usleep(20);
            if (++tries == PATIENCE) {
                hung++;
                kill(child, SIGKILL);
            }
        }
    }
    printf("{\"forks\": %ld, \"hung\": %ld, \"longest\": %ld}\n", forks, hung, longest);
}
