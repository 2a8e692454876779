/*
 * fsyncdelay: preloaded under a server, makes every successful flush take
 * WEIR_FSYNC_LATENCY_US microseconds longer, and counts flushes in the first
 * eight bytes of the file WEIR_FSYNC_COUNT, which all processes share. Either
 * may be unset.
 *
 * The real flush comes first, so durability is what it was. The delay is slept
 * per call: two processes that flush at once wait side by side, as on a cloud
 * disk, whose queue holds many requests. A disk that serves one flush at a time
 * would be a harsher model; it is not this one.
 *
 * Only fsync and fdatasync are delayed. A file opened with O_DSYNC is flushed by
 * write itself and sync_file_range promises nothing, so the lab makes its
 * servers use fdatasync.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

static long delay_ns;
static unsigned long long *count;
static int (*real_fsync)(int);
static int (*real_fdatasync)(int);

__attribute__((constructor)) static void start(void)
{
	const char *us = getenv("WEIR_FSYNC_LATENCY_US");

	const char *path = getenv("WEIR_FSYNC_COUNT");
	int fd;

	delay_ns = us ? atol(us) * 1000L : 0;
	if (path && (fd = open(path, O_RDWR | O_CLOEXEC)) >= 0) {
		void *p = mmap(NULL, sizeof *count, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

		if (p != MAP_FAILED)
			count = p;
		close(fd);
	}
	real_fsync = (int (*)(int))dlsym(RTLD_NEXT, "fsync");
	real_fdatasync = (int (*)(int))dlsym(RTLD_NEXT, "fdatasync");
	/* The kernel may round a sleep up by 50 us; 1 us keeps short delays honest. */
	prctl(PR_SET_TIMERSLACK, 1000L, 0L, 0L, 0L);
}

static int delayed(int result)
{
	struct timespec until;
	int saved = errno;

	if (result != 0)
		return result;
	if (count)
		__atomic_fetch_add(count, 1, __ATOMIC_RELAXED);
	if (delay_ns <= 0)
		return result;
	clock_gettime(CLOCK_MONOTONIC, &until);
	until.tv_sec += delay_ns / 1000000000L;
	until.tv_nsec += delay_ns % 1000000000L;
	if (until.tv_nsec >= 1000000000L) {
		until.tv_sec++;
		until.tv_nsec -= 1000000000L;
	}
	/* An absolute time: a signal must not stretch the wait. */
	while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL) == EINTR)
		;
	errno = saved;
	return result;
}

int fsync(int fd)
{
	return delayed(real_fsync(fd));
}

int fdatasync(int fd)
{
	return delayed(real_fdatasync(fd));
}
