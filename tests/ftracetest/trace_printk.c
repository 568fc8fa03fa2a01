/* Stands in for samples/trace_printk: a function that the module calls when it is loaded. */

#define CALL __attribute__((noinline, noipa))
static volatile long sink;

CALL void trace_printk_irq_work(void *work) { sink = (long)work; }
CALL long module_init(void) { trace_printk_irq_work(0); return sink = 1; }
