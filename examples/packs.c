/* A program in machine code for fprobe run and -p: cc -O1 -g examples/packs.c -o packs -l:libz.so.1
   It compresses lines, and prints how many bytes they were and are. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int compress(unsigned char *, unsigned long *, const unsigned char *, unsigned long);

__attribute__((noinline)) unsigned long pack_line(int number) {
    char line[400] = "";
    unsigned char packed[800];
    unsigned long size = sizeof packed;
    while (strlen(line) < 300) sprintf(line + strlen(line), "%d ", number);
    compress(packed, &size, (unsigned char *)line, strlen(line));
    return size;
}

int main(int count, char **words) {
    unsigned long size = 0;
    int lines = count > 1 ? atoi(words[1]) : 200;
    for (int i = 0; i < lines; i++) {
        size += pack_line(i);
        if (lines > 1000) usleep(1000);
    }
    printf("%lu bytes\n", size);
    return 0;
}
