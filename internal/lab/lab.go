// Package lab starts private, throwaway real servers on this machine: the databases
// (PostgreSQL, MariaDB, MySQL), poolers (PgBouncer), brokers (NATS, Redis, RabbitMQ, Kafka) and
// the object store (S3) that weir's tests and benchmarks use. A lab server has its own
// directory, listens only on the loopback, and ends with its owner: after Stop, after a signal,
// and after a SIGKILL of the owner, upon which the kernel kills the server and the next start
// of a lab removes the directory (see Sweep).
//
// The package neither mocks nor measures. Besides real servers it offers faults on demand: a
// slow disk (FsyncLatency in a server's configuration), a crash (Kill), a hang (Pause) and a
// bad network (Relay).
//
// It runs only on Linux. Root's servers run as an unprivileged user, because they refuse to run
// as root.
package lab

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// Durability is the durability of an acknowledged commit.
type Durability int

const (
	// Prod flushes the log to disk before it acknowledges a commit, and keeps
	// its log as a production server would. It is the zero value, so that no
	// benchmark measures a server without durability by accident.
	Prod Durability = iota
	// Fast never flushes for a commit. A crash of the server alone loses nothing, since the
	// kernel has what was written; a crash of the machine loses everything.
	Fast
)

// ParseDurability is the inverse of String.
func ParseDurability(s string) (Durability, error) {
	switch s {
	case "prod":
		return Prod, nil
	case "fast":
		return Fast, nil
	}
	return 0, fmt.Errorf("durability %q: must be prod or fast", s)
}

func (d Durability) String() string {
	switch d {
	case Prod:
		return "prod"
	case Fast:
		return "fast"
	}
	return fmt.Sprintf("Durability(%d)", int(d))
}

// EnvFastDir names a directory for servers that flush nothing (Fast). It may be in memory.
const EnvFastDir = "WEIR_LAB_FAST_DIR"

// baseDir is the directory for run directories: $WEIR_LAB_DIR; else, for servers that flush
// nothing, $WEIR_LAB_FAST_DIR; else /tmp; but for durable servers /var/tmp if /tmp is in
// memory, where flushes are free and every figure about commits would be wrong. It is never
// os.TempDir: the TMPDIR of a test may be inaccessible to the server's user, and too long for
// the 107 bytes of a Unix socket's path.
func baseDir(d Durability) string {
	if dir := os.Getenv("WEIR_LAB_DIR"); dir != "" {
		return dir
	}
	if dir := os.Getenv(EnvFastDir); dir != "" && d == Fast {
		return dir
	}
	if d == Prod && inMemory("/tmp") {
		return "/var/tmp"
	}
	return "/tmp"
}

// baseDirs lists all places where an earlier process may have left a run directory.
func baseDirs() []string {
	dirs := []string{"/tmp", "/var/tmp"}
	for _, name := range []string{"WEIR_LAB_DIR", EnvFastDir} {
		if dir := os.Getenv(name); dir != "" {
			dirs = append(dirs, filepath.Clean(dir))
		}
	}
	return dirs
}

func inMemory(path string) bool {
	var fs unix.Statfs_t
	if err := unix.Statfs(path, &fs); err != nil {
		return false
	}
	return fs.Type == unix.TMPFS_MAGIC || fs.Type == unix.RAMFS_MAGIC
}

// cacheDir is the directory for results that later processes reuse: initialised data
// directories and the compiled slow-disk shim. It belongs to this user, and no one else may
// write there, since the server executes its content.
func cacheDir() (string, error) {
	var dir string
	if base, err := os.UserCacheDir(); err == nil {
		dir = filepath.Join(base, "weir", "lab")
		if os.MkdirAll(dir, 0o700) != nil {
			dir = ""
		}
	}
	if dir == "" {
		dir = fmt.Sprintf("/var/tmp/weir-lab-cache-%d", os.Geteuid())
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return "", fmt.Errorf("create cache directory: %w", err)
		}
	}
	if err := checkOwnDir(dir); err != nil {
		return "", fmt.Errorf("cache directory: %w", err)
	}
	return dir, nil
}

// checkOwnDir checks that path, which others may have created first, is a directory that only
// this user may write to.
func checkOwnDir(path string) error {
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		return fmt.Errorf("inspect %s: %w", path, err)
	}
	if int(st.Uid) != os.Geteuid() || st.Mode&unix.S_IFMT != unix.S_IFDIR || st.Mode&0o022 != 0 {
		return fmt.Errorf("%s is not a directory that only this user may write", path)
	}
	return nil
}

// stopTimeout limits how long a server may take to stop before it is killed.
const stopTimeout = 20 * time.Second

// End stops one server, even if the context of its user has ended.
func End(stop func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(context.Background(), stopTimeout)
	defer cancel()
	return stop(ctx)
}
