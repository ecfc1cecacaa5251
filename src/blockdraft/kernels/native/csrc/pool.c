#include "pool.h"

#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>

#include "bd.h"

/* About 20-60 microseconds on current processors: longer than a healthy wait between two phases
 * of a pass, shorter than a scheduler's time slice. */
#define SPIN_LIMIT 1000
#define MAX_THREADS 256

typedef struct {
    pthread_mutex_t owner; /* held by whoever runs tasks */
    pthread_mutex_t sleep;
    pthread_cond_t wake;
    atomic_uint num_sleepers;
    atomic_uint generation; /* +1 for every task; workers wait for it */
    atomic_uint arrivals;   /* of the barrier */
    atomic_uint phase;      /* +1 whenever the barrier opens */
    int num_threads;        /* asked for */
    int num_workers;        /* running, beside the caller */
    int num_active;         /* threads of a task */
    bd_task task;
    void *argument;
    pthread_t workers[MAX_THREADS];
} bd_pool;

static bd_pool pool = {
    .owner = PTHREAD_MUTEX_INITIALIZER,
    .sleep = PTHREAD_MUTEX_INITIALIZER,
    .wake = PTHREAD_COND_INITIALIZER,
    .num_threads = 1,
    .num_active = 1,
};

static void relax(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* Wait until *word differs from old: spin, then sleep. */
static void wait_for_change(atomic_uint *word, unsigned old) {
    for (int spin = 0; spin < SPIN_LIMIT; spin++) {
        if (atomic_load_explicit(word, memory_order_acquire) != old) return;
        relax();
    }
    pthread_mutex_lock(&pool.sleep);
    /* Counted before the last look at the word; the changer writes the word before it reads the
     * count (both sequentially consistent), so one of the two always sees the other. */
    atomic_fetch_add(&pool.num_sleepers, 1);
    while (atomic_load(word) == old) pthread_cond_wait(&pool.wake, &pool.sleep);
    atomic_fetch_sub(&pool.num_sleepers, 1);
    pthread_mutex_unlock(&pool.sleep);
}

static void change(atomic_uint *word) {
    atomic_fetch_add(word, 1);
    if (atomic_load(&pool.num_sleepers) == 0) return;
    pthread_mutex_lock(&pool.sleep);
    pthread_cond_broadcast(&pool.wake);
    pthread_mutex_unlock(&pool.sleep);
}

void bd_pool_barrier(void) {
    /* Read before arriving: afterwards the next task may already be prepared. */
    unsigned phase = atomic_load_explicit(&pool.phase, memory_order_relaxed);
    unsigned num_active = (unsigned)pool.num_active;
    if (num_active == 1) return;
    if (atomic_fetch_add(&pool.arrivals, 1) + 1 == num_active) {
        atomic_store_explicit(&pool.arrivals, 0, memory_order_relaxed);
        change(&pool.phase);
    } else {
        wait_for_change(&pool.phase, phase);
    }
}

typedef struct {
    int thread;
    unsigned seen; /* the generation when the worker was started */
} bd_start;

static void *serve(void *argument) {
    bd_start start = *(bd_start *)argument;
    free(argument);
    for (;;) {
        wait_for_change(&pool.generation, start.seen++);
        if (pool.task == NULL) return NULL;
        pool.task(pool.argument, start.thread, pool.num_active);
        bd_pool_barrier();
    }
}

static int start_worker(int thread) {
    bd_start *start = malloc(sizeof *start);
    if (start == NULL) return -1;
    *start = (bd_start){thread, atomic_load(&pool.generation)};
    if (pthread_create(&pool.workers[thread], NULL, serve, start) == 0) return 0;
    free(start);
    return -1;
}

static void stop_workers(void) {
    pool.task = NULL;
    change(&pool.generation);
    for (int thread = 1; thread <= pool.num_workers; thread++)
        pthread_join(pool.workers[thread], NULL);
    pool.num_workers = 0;
}

/* The child of a fork has no workers: it starts from nothing. */
static void forget_workers(void) {
    pool.num_workers = 0;
    atomic_store(&pool.num_sleepers, 0);
    atomic_store(&pool.arrivals, 0);
    pthread_mutex_init(&pool.owner, NULL);
    pthread_mutex_init(&pool.sleep, NULL);
    pthread_cond_init(&pool.wake, NULL);
}

static void watch_forks(void) { pthread_atfork(NULL, NULL, forget_workers); }

void bd_pool_lock(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, watch_forks);
    pthread_mutex_lock(&pool.owner);
    if (pool.num_workers + 1 > pool.num_threads) stop_workers();
    while (pool.num_workers + 1 < pool.num_threads && start_worker(pool.num_workers + 1) == 0)
        pool.num_workers++;
    pool.num_active = pool.num_workers + 1;
}

void bd_pool_unlock(void) { pthread_mutex_unlock(&pool.owner); }

int bd_pool_num_threads(void) { return pool.num_active; }

void bd_pool_run(bd_task task, void *argument) {
    pool.task = task;
    pool.argument = argument;
    if (pool.num_workers > 0) change(&pool.generation);
    task(argument, 0, pool.num_active);
    bd_pool_barrier();
}

void bd_set_num_threads(int num_threads) {
    if (num_threads < 1) num_threads = 1;
    if (num_threads > MAX_THREADS) num_threads = MAX_THREADS;
    pthread_mutex_lock(&pool.owner);
    pool.num_threads = num_threads;
    pthread_mutex_unlock(&pool.owner);
}
