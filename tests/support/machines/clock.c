/* A clock that is an hour fast, for the process that preloads this and for what that starts. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <semaphore.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define OFF 3600
/* Deadlines of other clocks, which count from the machine's start, are smaller. */
#define TODAY 1000000000

int clock_gettime(clockid_t clock, struct timespec *now) {
    int failed = (int)syscall(SYS_clock_gettime, clock, now);
    if (!failed && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) now->tv_sec += OFF;
    return failed;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    struct timespec exact;
    (void)zone;
    if (clock_gettime(CLOCK_REALTIME, &exact)) return -1;
    now->tv_sec = exact.tv_sec;
    now->tv_usec = exact.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *there) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (there) *there = now.tv_sec;
    return now.tv_sec;
}

static struct timespec really(const struct timespec *deadline) {
    struct timespec moment = *deadline;
    if (moment.tv_sec > TODAY) moment.tv_sec -= OFF;
    return moment;
}

int pthread_cond_timedwait(pthread_cond_t *condition, pthread_mutex_t *mutex, const struct timespec *deadline) {
    static int (*own)(pthread_cond_t *, pthread_mutex_t *, const struct timespec *);
    if (!own) *(void **)&own = dlvsym(RTLD_NEXT, "pthread_cond_timedwait", "GLIBC_2.3.2");
    struct timespec moment = really(deadline);
    return own(condition, mutex, &moment);
}

int pthread_mutex_timedlock(pthread_mutex_t *mutex, const struct timespec *deadline) {
    static int (*own)(pthread_mutex_t *, const struct timespec *);
    if (!own) *(void **)&own = dlsym(RTLD_NEXT, "pthread_mutex_timedlock");
    struct timespec moment = really(deadline);
    return own(mutex, &moment);
}

int sem_timedwait(sem_t *semaphore, const struct timespec *deadline) {
    static int (*own)(sem_t *, const struct timespec *);
    if (!own) *(void **)&own = dlsym(RTLD_NEXT, "sem_timedwait");
    struct timespec moment = really(deadline);
    return own(semaphore, &moment);
}
