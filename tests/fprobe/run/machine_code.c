/* A program in machine code, for tests of `fprobe run ./program` and of `-p`. It does what its arguments say, in their order;
   without arguments it reads words from standard input, and answers each by a line. */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

int compress(unsigned char *, unsigned long *, const unsigned char *, unsigned long);
static _Atomic long calls;
static volatile int go;

__attribute__((noinline)) int own_work(int x) {
    __asm__ volatile("nop; nop; nop; nop; nop; nop");
    calls++;
    return 3 * x;
}

__attribute__((noinline)) int own_caller(int x) { return own_work(x) + 1; }

/* An allocator that knows its threads, as jemalloc does: each tells when it ends. */
static pthread_key_t key;
static _Atomic int allocating;
static __thread int is_known;
static volatile int is_begun;

static void ends(void *known) { allocating -= *(int *)known; }

void *__libc_calloc(size_t, size_t);

void *calloc(size_t number, size_t size) {
    if (is_begun && !is_known) {
        is_known = 1;
        allocating++;
        pthread_setspecific(key, &is_known);
    }
    return __libc_calloc(number, size);
}

__attribute__((constructor)) static void early(void) {
    own_work(0);
    pthread_key_create(&key, ends);
    is_begun = 1;
}

static void pack(void) {
    unsigned char in[1000] = {1}, out[2000];
    unsigned long size = sizeof out;
    compress(out, &size, in, sizeof in);
}

static void repeat(void) {
    for (int i = 0; i < 100; i++) {
        own_caller(i);
        pack();
    }
}

static void *work(void *blocks) {
    sigset_t all;
    sigfillset(&all);
    if (blocks) pthread_sigmask(SIG_SETMASK, &all, 0);
    while (go) {
        own_caller(1);
        pack();
        usleep(100);
    }
    return 0;
}

/* Descriptors, signals, threads, and the environment's size: what a program can see of itself. */
static void state(void) {
    DIR *directory = opendir("/proc/self/fd");
    struct dirent *entry;
    char line[256];
    while ((entry = readdir(directory))) printf("%s ", entry->d_name);
    closedir(directory);
    FILE *status = fopen("/proc/self/status", "r");
    while (fgets(line, sizeof line, status))
        if (!strncmp(line, "Sig", 3) || !strncmp(line, "Shd", 3)) printf("%.*s ", (int)strcspn(line, "\n"), line);
    fclose(status);
    int n = 0;
    while (environ[n]) n++;
    printf("%d variables, terminal %d\n", n, isatty(0));
}

static void forked(void (*then)(void)) {
    pid_t pid = fork();
    if (!pid) {
        then();
        _exit(5);
    }
    int status;
    waitpid(pid, &status, 0);
    printf("child %d\n", WEXITSTATUS(status));
}

static void start(int blocks) {
    static pthread_t thread[4];
    go = 1;
    for (int i = 0; i < 4; i++) pthread_create(&thread[i], 0, work, blocks ? "" : 0);
}

static int act(const char *word) {
    if (!strcmp(word, "repeat")) repeat();
    else if (!strcmp(word, "state")) state();
    else if (!strcmp(word, "fork")) forked(repeat);
    else if (!strcmp(word, "start")) start(0);
    else if (!strcmp(word, "start-blocked")) start(1);
    else if (!strcmp(word, "stop")) { go = 0; usleep(50000); }
    else if (!strcmp(word, "closeall")) for (int i = 3; i < 1024; i++) close(i);
    else if (!strcmp(word, "exec")) execl("/bin/echo", "echo", "executed", (char *)0);
    else if (!strcmp(word, "interrupt")) raise(SIGINT);
    else if (!strcmp(word, "kill")) raise(SIGKILL);
    else if (!strcmp(word, "fault")) *(volatile int *)0 = 1;
    else if (!strcmp(word, "abort")) abort();
    else if (!strcmp(word, "seven")) exit(7);
    else if (!strcmp(word, "allocating")) { void *volatile made = calloc(1, 1); free(made); printf("%d\n", allocating); }
    else if (!strcmp(word, "calls")) printf("%ld\n", calls);
    else return 0;
    return 1;
}

int main(int count, char **words) {
    char line[256];
    for (int i = 1; i < count; i++)
        if (!act(words[i])) return 99;
    if (count > 1) return 0;
    printf("ready\n");
    while (fflush(stdout), fgets(line, sizeof line, stdin)) {
        line[strcspn(line, "\n")] = 0;
        if (!act(line)) return 99;
        printf("done\n");
    }
    return 0;
}
