/* Moves the wall clock of a program that is started with this in LD_PRELOAD; see clocks.py.

   The monotonic clock is left alone, and so are waits for a time that passes. A wait for a moment
   on the wall clock (Python 3.10 waits for its locks like that) ends when the moved clock says so,
   as the kernel does it for a clock that is really set. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <semaphore.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

enum { SECOND = 1000000000, SLICE = SECOND / 50 };

/* Seconds ahead, seconds gained in each second, and the monotonic time since when it gains. */
static const volatile double *moved;

__attribute__((constructor)) static void open_moved(void) {
    int file = open(getenv("MOVED_CLOCK"), O_RDONLY | O_CLOEXEC);
    void *found = mmap(NULL, 3 * sizeof *moved, PROT_READ, MAP_SHARED, file, 0);
    if (found == MAP_FAILED)
        abort();
    moved = found;
    close(file);
}

static long long read_clock(clockid_t id) {
    struct timespec now;
    syscall(SYS_clock_gettime, id, &now);
    return (long long)now.tv_sec * SECOND + now.tv_nsec;
}

static long long wall(void) {
    long long now = read_clock(CLOCK_REALTIME);
    if (moved)
        now += (moved[0] + moved[1] * (read_clock(CLOCK_MONOTONIC) / 1e9 - moved[2])) * SECOND;
    return now;
}

static struct timespec spec(long long ns) {
    return (struct timespec){ns / SECOND, ns % SECOND};
}

int clock_gettime(clockid_t id, struct timespec *now) {
    if (id != CLOCK_REALTIME && id != CLOCK_REALTIME_COARSE)
        return syscall(SYS_clock_gettime, id, now);
    *now = spec(wall());
    return 0;
}

int timespec_get(struct timespec *now, int base) {
    *now = spec(wall());
    return base;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    (void)zone;
    long long ns = wall();
    *now = (struct timeval){ns / SECOND, ns % SECOND / 1000};
    return 0;
}

time_t time(time_t *now) {
    time_t seconds = wall() / SECOND;
    if (now)
        *now = seconds;
    return seconds;
}

int sem_timedwait(sem_t *restrict semaphore, const struct timespec *restrict until) {
    for (;;) {
        long long left = (long long)until->tv_sec * SECOND + until->tv_nsec - wall();
        if (left < 0)
            left = 0;
        struct timespec soon =
            spec(read_clock(CLOCK_MONOTONIC) + (left < SLICE ? left : SLICE));
        if (sem_clockwait(semaphore, CLOCK_MONOTONIC, &soon) == 0)
            return 0;
        if (errno != ETIMEDOUT || left == 0)
            return -1;
    }
}
