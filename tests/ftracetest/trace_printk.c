/* Stands in for samples/trace_printk: what the module prints when it is loaded, and in a function that it calls as an interrupt. */

#define CALL __attribute__((noinline, noipa))
#define HERE ((unsigned long)__builtin_return_address(0))
static volatile long sink;

int __trace_bprintk(unsigned long ip, const char *fmt, ...);
int __trace_bputs(unsigned long ip, const char *text);
int __trace_puts(unsigned long ip, const char *text, int size);
int trace_printk(const char *fmt, ...);

CALL void trace_printk_irq_work(void *work)
{
    sink = (long)work;
    __trace_bputs(HERE, "(irq) This is a static string that will use trace_bputs\n");
    __trace_puts(HERE, "(irq) This is a text that will use trace_puts\n", 46);
    __trace_bprintk(HERE, "(irq) This is a %s that will use trace_bprintk\n", "text");
    trace_printk("(irq) This is a %s that will use trace_printk\n", "text");
}

CALL long module_init(void)
{
    __trace_bputs(HERE, "This is a static string that will use trace_bputs\n");
    __trace_puts(HERE, "This is a text that will use trace_puts\n", 40);
    __trace_bprintk(HERE, "This is a %s that will use trace_bprintk\n", "text");
    trace_printk("This is a %s that will use trace_printk\n", "text");
    trace_printk_irq_work(0);
    return sink = 1;
}
