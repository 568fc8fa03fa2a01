/* A server that forks a process for each connection, as PostgreSQL does: each line is a word, and answered by a line. */
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <signal.h>
#include <unistd.h>

static long calls;

__attribute__((noinline)) int own_work(int x) {
    __asm__ volatile("nop; nop; nop; nop; nop; nop");
    calls++;
    return 3 * x;
}

/* Its first instruction, where a jump is put, is in two cache lines. */
int own_odd(int x);
__asm__(".type own_odd, @function\n\t.p2align 6\n\t.skip 61, 0x90\nown_odd:\n\tmov $1, %eax\n\tlea (%rax, %rdi, 2), %eax\n\tret\n\t.size own_odd, . - own_odd");

static void serve(int connection) {
    char line[64];
    FILE *in = fdopen(connection, "r"), *out = fdopen(dup(connection), "w");
    while (fprintf(out, "%d %ld\n", getpid(), calls), fflush(out), fgets(line, sizeof line, in))
        for (int i = atoi(line); i; i--)
            if (own_odd(own_work(i)) != 6 * i + 1) abort();
    exit(0);
}

int main(int count, char **words) {
    struct sockaddr_un name = {AF_UNIX};
    snprintf(name.sun_path, sizeof name.sun_path, "%s.new", words[1]);
    signal(SIGCHLD, SIG_IGN);
    int listening = socket(AF_UNIX, SOCK_STREAM, 0);
    if (bind(listening, (void *)&name, sizeof name) || listen(listening, 5)) return 1;
    if (rename(name.sun_path, words[1])) return 1; /* whoever finds it can connect */
    for (;;) {
        int connection = accept(listening, 0, 0);
        if (connection < 0) continue;
        if (!fork()) serve(connection);
        close(connection);
    }
}
