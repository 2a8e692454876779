package lab

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// ownerFile is locked by the owner while it lives. It lists the servers that it started:
	// the boot id, then one "pid start" per line.
	ownerFile = "owner"
)

// runDir is the directory of one server: BASE/weir-lab-UID/PID-START-RANDOM, where PID and
// START identify the owner. It belongs to the owner; the server writes to subdirectories that
// belong to its user.
type runDir struct {
	path string
	lock *os.File

	mu sync.Mutex // guards the owner file's content
}

// newRunDir makes a run directory below base, after removing those of dead owners.
func newRunDir(base string) (*runDir, error) {
	sweepOnce()
	self, err := readStat(os.Getpid())
	if err != nil {
		return nil, fmt.Errorf("identify own process: %w", err)
	}
	parent, err := userDir(base)
	if err != nil {
		return nil, err
	}
	path, err := os.MkdirTemp(parent, fmt.Sprintf("%d-%d-", self.id.pid, self.id.start))
	if err != nil {
		return nil, fmt.Errorf("create run directory: %w", err)
	}
	d := &runDir{path: path}
	if err := d.claim(); err != nil {
		return nil, errors.Join(err, os.RemoveAll(path))
	}
	return d, nil
}

// userDirPath is the directory of this user's run directories below base.
func userDirPath(base string) string {
	return filepath.Join(base, fmt.Sprintf("weir-lab-%d", os.Geteuid()))
}

// userDir makes that directory. It is never removed, and empty when nothing runs.
func userDir(base string) (string, error) {
	path := userDirPath(base)
	if err := os.Mkdir(path, 0o711); err != nil && !errors.Is(err, fs.ErrExist) {
		return "", fmt.Errorf("create lab directory: %w", err)
	}
	if err := checkOwnDir(path); err != nil {
		return "", fmt.Errorf("lab directory: %w", err)
	}
	spreadChildren(path)
	return path, nil
}

// topDirFlag is ext4's FS_TOPDIR_FL, `chattr +T`.
const topDirFlag = 0x20000

// spreadChildren makes ext4 place each directory in path in a different part of the disk. By
// default they are close together, where ext4 searches, slower with each, for an inode that was
// not freed within the last 5 seconds: copying and removing a data directory six times took 3.5
// s of system time without this and 0.4 to 0.9 s with it. Other file systems do not need it.
func spreadChildren(path string) {
	dir, err := os.Open(path)
	if err != nil {
		return
	}
	defer dir.Close()
	fd := int(dir.Fd())
	flags, err := unix.IoctlGetUint32(fd, unix.FS_IOC_GETFLAGS)
	if err == nil && flags&topDirFlag == 0 {
		_ = unix.IoctlSetPointerInt(fd, unix.FS_IOC_SETFLAGS, int(flags|topDirFlag))
	}
}

func (d *runDir) claim() error {
	// The server's user must be able to enter the directory, but not to list it.
	if err := os.Chmod(d.path, 0o711); err != nil {
		return fmt.Errorf("open run directory: %w", err)
	}
	f, err := os.OpenFile(filepath.Join(d.path, ownerFile), os.O_CREATE|os.O_RDWR|os.O_APPEND, 0o600)
	if err != nil {
		return fmt.Errorf("create owner file: %w", err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		_ = f.Close()
		return fmt.Errorf("lock owner file: %w", err)
	}
	if _, err := fmt.Fprintln(f, bootID()); err != nil {
		_ = f.Close()
		return fmt.Errorf("write owner file: %w", err)
	}
	d.lock = f
	return nil
}

// sub makes a subdirectory that belongs to the server's user.
func (d *runDir) sub(name string, as *identity, mode os.FileMode) (string, error) {
	path := filepath.Join(d.path, name)
	if err := os.Mkdir(path, mode); err != nil {
		return "", fmt.Errorf("create %s directory: %w", name, err)
	}
	if err := os.Chmod(path, mode); err != nil { // regardless of the umask
		return "", fmt.Errorf("create %s directory: %w", name, err)
	}
	if err := as.chown(path); err != nil {
		return "", fmt.Errorf("hand over %s directory: %w", name, err)
	}
	return path, nil
}

// register records a server, so that a sweep can kill it if it outlives this process.
func (d *runDir) register(id procID) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if _, err := fmt.Fprintf(d.lock, "%d %d\n", id.pid, id.start); err != nil {
		return fmt.Errorf("register server: %w", err)
	}
	return nil
}

// remove deletes the directory. Its servers must be gone.
func (d *runDir) remove() error {
	err := removeRunDir(d.path)
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.lock != nil {
		_ = d.lock.Close()
		d.lock = nil
	}
	return err
}

func removeRunDir(path string) error {
	data := filepath.Join(path, "data")
	endStragglers(data)
	reclaimSharedMemory(data)
	if err := os.RemoveAll(path); err != nil {
		return fmt.Errorf("remove run directory: %w", err)
	}
	return nil
}

var sweepOnce = sync.OnceFunc(func() { _, _ = Sweep() })

// Sweep removes the run directories of owners that died without cleaning up, after killing
// their servers that still run, and returns the removed paths. It only touches directories of
// this user, and nothing of a living owner: a directory is removed only if the process that it
// names is gone *and* its lock is free, which also protects owners in another PID namespace.
// Every process sweeps once, before it starts its first server.
func Sweep() ([]string, error) { return sweep(baseDirs()) }

// sweep is Sweep of the run directories below the given ones.
func sweep(bases []string) ([]string, error) {
	var removed []string
	var errs []error
	seen := map[string]bool{}
	for _, base := range bases {
		paths, err := filepath.Glob(filepath.Join(userDirPath(base), "*-*-*"))
		if err != nil {
			errs = append(errs, fmt.Errorf("list run directories: %w", err))
		}
		for _, path := range paths {
			if seen[path] {
				continue
			}
			seen[path] = true
			gone, err := sweepDir(path)
			if err != nil {
				errs = append(errs, fmt.Errorf("sweep %s: %w", path, err))
			}
			if gone {
				removed = append(removed, path)
			}
		}
	}
	return removed, errors.Join(errs...)
}

// parseDirName returns the owner in a run directory's name.
func parseDirName(name string) (procID, bool) {
	f := strings.Split(name, "-")
	if len(f) != 3 || f[2] == "" {
		return procID{}, false
	}
	pid, err1 := strconv.Atoi(f[0])
	start, err2 := strconv.ParseUint(f[1], 10, 64)
	return procID{pid, start}, err1 == nil && err2 == nil && pid > 0
}

// graceNoLock is how long a directory without an owner file is kept: its owner may be about to
// create it.
const graceNoLock = time.Minute

func sweepDir(path string) (bool, error) {
	owner, ok := parseDirName(filepath.Base(path))
	if !ok || owner.alive() {
		return false, nil
	}
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	if st, ok := info.Sys().(*syscall.Stat_t); !ok || !info.IsDir() || int(st.Uid) != os.Geteuid() {
		return false, nil
	}
	lock, err := os.OpenFile(filepath.Join(path, ownerFile), os.O_RDWR|syscall.O_NOFOLLOW, 0)
	if errors.Is(err, fs.ErrNotExist) {
		if time.Since(info.ModTime()) < graceNoLock {
			return false, nil
		}
		return true, removeRunDir(path)
	}
	if err != nil {
		return false, err
	}
	defer lock.Close()
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return false, nil // its owner lives, or another process sweeps it
	}
	content, err := os.ReadFile(lock.Name())
	if err != nil {
		return false, nil // swept by another process before we had the lock
	}
	endOrphans(string(content))
	return true, removeRunDir(path)
}

// endOrphans kills the servers listed in an owner file. The parent-death signal has done so
// already, unless the owner died between the server's start and its request for that signal.
func endOrphans(content string) {
	boot, list, _ := strings.Cut(content, "\n")
	if boot == "" || boot != bootID() {
		return // the PIDs are from before a reboot
	}
	for line := range strings.Lines(list) {
		var id procID
		if n, err := fmt.Sscanf(line, "%d %d\n", &id.pid, &id.start); n != 2 || err != nil || id.pid <= 1 {
			continue
		}
		if !id.alive() {
			continue
		}
		all := append([]procID{id}, descendants(id.pid)...)
		for _, p := range all {
			_ = p.signal(syscall.SIGKILL)
		}
		waitGone(all)
	}
}

// endStragglers kills the PostgreSQL processes of a data directory whose postmaster is gone.
// Most of them notice its death; one that is busy with a query does not until it ends, and
// meanwhile prevents the start of a new postmaster. They have no parent then, so they are found
// by their working directory: a shell in that directory is not killed.
func endStragglers(dataDir string) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return
	}
	var found []procID
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		if cwd, err := os.Readlink(filepath.Join("/proc", e.Name(), "cwd")); err != nil || cwd != dataDir {
			continue
		}
		comm, err := os.ReadFile(filepath.Join("/proc", e.Name(), "comm"))
		if err != nil || strings.TrimSpace(string(comm)) != "postgres" {
			continue
		}
		if st, err := readStat(pid); err == nil {
			found = append(found, st.id)
		}
	}
	for _, id := range found {
		_ = id.signal(syscall.SIGKILL)
	}
	waitGone(found)
}

func bootID() string {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}
