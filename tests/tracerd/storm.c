/* Everything the witness records, as fast as this machine can, an exact number of times.
 *
 *   storm MODE COUNT WORKERS SECONDS
 *
 * WORKERS processes, one to a core in turn, each make COUNT calls (or go on for SECONDS when COUNT is 0): open (the
 * shortest record), long (paths of 4095 bytes), fork, or big (execs with an argument of 128 KiB).
 * Prints how many calls were made in all.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static char path[4096], argument[131072 - 16];

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec + t.tv_nsec * 1e-9;
}

static void one(char mode)
{
	int status;

	switch (mode) {
	case 'o':
		close(open("/dev/null", O_RDONLY));
		break;
	case 'l':
		open(path, O_RDONLY);
		break;
	case 'f':
		if (fork() == 0)
			_exit(0);
		wait(&status);
		break;
	case 'b':
		if (vfork() == 0) {
			execl("/bin/true", "true", argument, (char *)0);
			_exit(127);
		}
		wait(&status);
		break;
	}
}

int main(int argc, char **argv)
{
	char mode = argv[1][0];
	long count = atol(argv[2]), workers = atol(argv[3]);
	double end = argc > 4 ? now() + atof(argv[4]) : 0;
	long *made = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0), all = 0;

	memset(path, 'x', sizeof(path) - 1);
	for (size_t i = 0; i < sizeof(path) - 1; i += 200)
		path[i] = '/';
	memset(argument, 'a', sizeof(argument) - 1);
	for (long w = 0; w < workers; w++)
		if (fork() == 0) {
			cpu_set_t set;

			CPU_ZERO(&set);
			CPU_SET(w % sysconf(_SC_NPROCESSORS_ONLN), &set);
			sched_setaffinity(0, sizeof(set), &set);
			while (count ? made[w] < count : (made[w] % 64 || now() < end)) {
				one(mode);
				made[w]++;
			}
			_exit(0);
		}
	while (wait(0) > 0)
		;
	for (long w = 0; w < workers; w++)
		all += made[w];
	printf("%ld\n", all);
	return 0;
}
