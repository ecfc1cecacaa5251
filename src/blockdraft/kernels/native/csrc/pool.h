/* A small pool of threads. Waiting threads spin for a moment, then sleep: neighbours on the same
 * cores are not hurt by it. One task runs at a time; callers from several threads take turns. */
#ifndef BD_POOL_H
#define BD_POOL_H

#include <stdatomic.h>

typedef void (*bd_task)(void *argument, int thread, int num_threads);

/* Take the pool (and with it the workspace); every lock is paired with an unlock. */
void bd_pool_lock(void);
void bd_pool_unlock(void);
/* Threads the next task will get (at least 1); call with the pool locked. */
int bd_pool_num_threads(void);
/* Run task(argument, 0..n-1, n) on n threads, the caller being thread 0; pool locked. */
void bd_pool_run(bd_task task, void *argument);
/* All threads of the running task meet here. */
void bd_pool_barrier(void);

#endif
