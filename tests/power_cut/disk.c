/* fsync and fdatasync for a disk whose power will be cut; disk.py says what it is for.
 *
 * What a file holds when it is synced is written to the folder DISK, to a file named after its inode. A second
 * name of the file is put there, too, so that no other file gets its inode. Nothing goes to a real disk. When
 * the power is cut, the folder is gone, and who syncs waits for ever: nobody gets an answer after that.
 *
 * Only these two calls count as a promise of durability: sync_file_range, msync, and writes to files that were
 * opened with O_SYNC or O_DSYNC, of which the servers here need none, do not.
 */

#define _GNU_SOURCE
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#define BLOCK 65536

static void write_what_differs(int from, int to)
{
    char *now = malloc(2 * BLOCK), *old = now + BLOCK;
    off_t at = 0;
    ssize_t size;
    while ((size = pread(from, now, BLOCK, at)) > 0) {
        if (pread(to, old, size, at) != size || memcmp(now, old, size))
            if (pwrite(to, now, size, at) != size)
                abort();
        at += size;
    }
    if (size < 0 || ftruncate(to, at))
        abort();
    free(now);
}

static int keep(int file)
{
    char here[64], name[PATH_MAX], second[PATH_MAX + 8];
    const char *disk = getenv("DISK");
    struct stat facts;
    int from, to;
    if (fstat(file, &facts))
        return -1;
    if (!S_ISREG(facts.st_mode))
        return 0;
    snprintf(here, sizeof here, "/proc/self/fd/%d", file);
    snprintf(name, sizeof name, "%s/%lu", disk, (unsigned long)facts.st_ino);
    snprintf(second, sizeof second, "%s.file", name);
    linkat(AT_FDCWD, here, AT_FDCWD, second, AT_SYMLINK_FOLLOW); /* it has one, or no name any more */
    if (access(second, F_OK) && !access(disk, F_OK))
        return 0;
    to = open(name, O_RDWR | O_CREAT, 0600);
    if (to < 0)
        for (;;)
            pause();
    flock(to, LOCK_EX); /* another process may sync the same file, with older data in hand */
    from = open(here, O_RDONLY);
    write_what_differs(from, to);
    close(from);
    close(to);
    return 0;
}

int fsync(int file) { return keep(file); }
int fdatasync(int file) { return keep(file); }
